//! Engines that are asked, killed and started again.

#![allow(clippy::unwrap_used)]

use serde_json::json;
use warmpath_harness::fleet::{MetricsFault, Profile, UsageFault, body_hash};
use warmpath_harness::http::HttpClient;
use warmpath_harness::{Fleet, FleetOptions};

async fn fleet() -> Fleet {
    let profile = Profile::named("a100-8b").unwrap();
    let (speed, model) = (50.0, "demo".to_owned());
    Fleet::start(&FleetOptions { engines: 2, profile, speed, bundle: None, model }).await.unwrap()
}

fn ask(text: &str) -> serde_json::Value {
    json!({"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": text}]})
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread")]
async fn engines_tell_what_they_served() {
    let fleet = fleet().await;
    let client = HttpClient::new();
    let question = "x".repeat(100);
    for _ in 0..2 {
        let answer = client.post_json(fleet.addresses()[1], CHAT, &ask(&question)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let served = fleet.served().await.unwrap();
    assert_eq!(served.len(), 2);
    assert!(served.iter().all(|request| request.engine == 1 && request.finished()));
    assert_eq!(served[0].cached_tokens, Some(0));
    // "user: ", the question, a line feed and "assistant: " are 118 bytes; 7 whole blocks of 16.
    assert_eq!((served[1].prompt_tokens, served[1].cached_tokens), (118, Some(112)));
    assert_eq!(served[1].header("content-type"), Some("application/json"));
    assert!(served[1].ttft_ms.unwrap() < served[0].ttft_ms.unwrap());

    fleet.reset().await.unwrap();
    assert_eq!(fleet.served().await.unwrap().len(), 0);
    let answer = client.post_json(fleet.addresses()[1], CHAT, &ask(&question)).await.unwrap();
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 118);
    assert_eq!(fleet.served_by(1).await.unwrap()[0].cached_tokens, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_refuses_and_comes_back_empty() {
    let mut fleet = fleet().await;
    let client = HttpClient::new();
    let address = fleet.addresses()[0];
    client.post_json(address, CHAT, &ask("hello")).await.unwrap();
    fleet.kill(0);
    let mut refused = false;
    for _ in 0..100 {
        refused = HttpClient::new().post_json(address, CHAT, &ask("hello")).await.is_err();
        if refused {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(refused, "a dead engine answers");
    assert_eq!(fleet.served().await.unwrap().len(), 0);

    fleet.restart(0).await.unwrap();
    assert_eq!(fleet.addresses()[0], address);
    assert_eq!(client.post_json(address, CHAT, &ask("hello")).await.unwrap().status, 200);
    assert_eq!(fleet.served_by(0).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_fails_on_demand() {
    let fleet = fleet().await;
    let client = HttpClient::new();
    fleet.fail(0, "http_503").await.unwrap();
    assert_eq!(client.post_json(fleet.addresses()[0], CHAT, &ask("x")).await.unwrap().status, 503);
    fleet.fail(0, "ok").await.unwrap();
    assert_eq!(client.post_json(fleet.addresses()[0], CHAT, &ask("x")).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_combine_and_bodies_are_accounted_for() {
    let fleet = fleet().await;
    let client = HttpClient::new();
    let address = fleet.addresses()[0];
    fleet.fail_metrics(0, MetricsFault::Http500).await.unwrap();
    fleet.fail_usage(0, UsageFault::Missing).await.unwrap();
    assert_eq!(client.get(address, "/metrics").await.unwrap().status, 500);
    let answer = client.post_json(address, CHAT, &ask("x")).await.unwrap();
    assert!(answer.json().get("usage").is_none());
    let served = fleet.served_by(0).await.unwrap();
    assert_eq!(served[0].sent_bytes, answer.body.len() as u64);
    assert_eq!(served[0].sent_hash, Some(body_hash(&answer.body)));

    fleet.pause(0).await.unwrap();
    let question = ask("x");
    let asked = client.post_json(address, CHAT, &question);
    let waited = tokio::time::timeout(std::time::Duration::from_millis(200), asked).await;
    assert!(waited.is_err(), "a paused engine answers");
    fleet.resume(0).await.unwrap();
    fleet.fail_usage(0, UsageFault::Ok).await.unwrap();
    let answer = client.post_json(address, CHAT, &ask("x")).await.unwrap();
    assert!(answer.json()["usage"]["prompt_tokens"].is_u64());
    assert_eq!(fleet.stats(0).await.unwrap()["fault"]["metrics"], "http_500");
}
