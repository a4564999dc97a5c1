//! Faults beside the generation endpoints' own, and the account of what was sent.

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::{CHAT, COMPLETIONS, Fleet, chat, events, quick, slow, start, streaming};
use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::{Value, json};
use warmpath_engine_sim::server::ServerConfig;
use warmpath_engine_sim::server::record::body_hash;

/// Time in which a paused engine would have done something, if it did anything.
const WHILE: Duration = Duration::from_millis(200);

fn bytes(body: &Value) -> Option<Vec<u8>> {
    Some(body.to_string().into_bytes())
}

/// A whole number of tokens that a prompt can have.
fn makes_sense(usage: &Value) -> bool {
    let count = |count: &Value| count.as_u64().filter(|count| *count < 100_000);
    let prompt = count(&usage["prompt_tokens"]);
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    prompt.zip(cached).is_some_and(|(prompt, cached)| cached <= prompt)
}

/// The usage of a stream: of its only event that has one.
fn usage_of_stream(text: &str) -> Option<Value> {
    let events = events(text);
    assert_eq!(events.last(), Some(&"[DONE]"));
    let events = events.iter().filter(|event| **event != "[DONE]");
    let mut parsed = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
    parsed.find_map(|mut event| event.get_mut("usage").map(Value::take))
}

#[tokio::test]
async fn metrics_fail_as_told_while_requests_are_served() {
    let fleet = start(quick()).await;
    let whole = fleet.get("/metrics").await;
    fleet.fail(json!({"metrics": "http_500"})).await;
    assert_eq!(fleet.get("/metrics").await.status, StatusCode::INTERNAL_SERVER_ERROR);

    fleet.fail(json!({"metrics": "truncated"})).await;
    let cut = fleet.get("/metrics").await;
    assert_eq!(cut.status, StatusCode::OK);
    assert!(!cut.body.ends_with(b"\n") && cut.body.len() < whole.body.len());
    assert!(cut.body.len() > whole.body.len() / 3);

    fleet.fail(json!({"metrics": "garbage"})).await;
    let page = fleet.get("/metrics").await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.headers["content-type"], whole.headers["content-type"]);
    assert!(std::str::from_utf8(&page.body).is_err());
    assert_ne!(fleet.get("/metrics").await.body, page.body);

    fleet.fail(json!({"metrics": "hang"})).await;
    let hung = fleet.open("/metrics", &[], None);
    assert!(tokio::time::timeout(WHILE, hung).await.is_err());
    assert_eq!(fleet.post(CHAT, &chat("hi", 2)).await.status, StatusCode::OK);
    assert_eq!(fleet.get("/health").await.status, StatusCode::OK);

    fleet.fail(json!({"mode": "ok"})).await;
    assert_eq!(fleet.get("/metrics").await.status, StatusCode::OK);
}

#[tokio::test]
async fn usage_can_be_missing_or_make_no_sense() {
    let fleet = start(quick()).await;
    let body = chat("hello", 2);
    assert!(makes_sense(&fleet.post(CHAT, &body).await.json()["usage"]));
    let stream = fleet.post(CHAT, &streaming(body.clone())).await;
    assert!(makes_sense(&usage_of_stream(stream.text()).unwrap()));

    fleet.fail(json!({"usage": "missing"})).await;
    assert!(fleet.post(CHAT, &body).await.json().get("usage").is_none());
    let stream = fleet.post(CHAT, &streaming(body.clone())).await;
    assert_eq!(usage_of_stream(stream.text()), None);

    fleet.fail(json!({"usage": "garbage", "slow_factor": 0.5})).await;
    let mut seen = HashSet::new();
    for _ in 0..20 {
        let usage = fleet.post(CHAT, &body).await.json()["usage"].take();
        assert!(!makes_sense(&usage), "{usage}");
        seen.insert(usage.to_string());
        let stream = fleet.post(CHAT, &streaming(body.clone())).await;
        let usage = usage_of_stream(stream.text()).unwrap();
        assert!(!makes_sense(&usage), "{usage}");
        seen.insert(usage.to_string());
    }
    assert!(seen.len() > 5, "{seen:?}");
    // Without being asked a stream has none, as ever.
    let mut unasked = body.clone();
    unasked["stream"] = json!(true);
    assert_eq!(usage_of_stream(fleet.post(CHAT, &unasked).await.text()), None);
}

#[tokio::test]
async fn a_paused_engine_stands_still_and_goes_on() {
    // Long enough to be under way when the pause comes: 500 tokens take 0.6 s.
    let fleet = start(ServerConfig { speed: 10.0, ..quick() }).await;
    let stream = fleet.open(CHAT, &[], bytes(&streaming(chat("hi", 500)))).await.unwrap();
    let mut stream = stream.into_body();
    let first = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    fleet.wait_for("a running request", |stats| stats["running"] == 1).await;
    fleet.fail(json!({"pause": true})).await;
    // What had left before still arrives.
    let mut seen = first.to_vec();
    while let Ok(frame) = tokio::time::timeout(WHILE, stream.frame()).await {
        seen.extend(frame.expect("the stream has not ended").unwrap().into_data().unwrap());
    }
    assert!(!seen.ends_with(b"data: [DONE]\n\n"));
    let stood = fleet.stats().await;
    assert_eq!((&stood["running"], &stood["fault"]["pause"]), (&json!(1), &json!(true)));

    // Nothing else moves either, and connections are taken.
    let waiting = fleet.open(CHAT, &[], bytes(&chat("later", 2)));
    let mut waiting = std::pin::pin!(waiting);
    assert!(tokio::time::timeout(WHILE, &mut waiting).await.is_err());
    for path in ["/metrics", "/health", "/v1/models", "/nothing"] {
        let asked = fleet.open(path, &[], None);
        assert!(tokio::time::timeout(WHILE / 4, asked).await.is_err(), "{path}");
    }
    let still = fleet.stats().await;
    for field in ["model_time_ms", "steps", "generation_tokens", "submitted", "running"] {
        assert_eq!(still[field], stood[field], "{field}");
    }
    assert_eq!(fleet.records().await.len(), 1, "what waits is unread");

    fleet.fail(json!({"mode": "ok"})).await;
    seen.extend(stream.collect().await.unwrap().to_bytes());
    assert!(seen.ends_with(b"data: [DONE]\n\n"));
    let text = String::from_utf8(seen).unwrap();
    assert_eq!(usage_of_stream(&text).unwrap()["completion_tokens"], 500);
    assert_eq!(waiting.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn starting_over_ends_a_pause() {
    let fleet = start(slow()).await;
    fleet.fail(json!({"pause": true, "mode": "http_503"})).await;
    assert!(tokio::time::timeout(WHILE, fleet.open("/health", &[], None)).await.is_err());
    fleet.send("/sim/reset", &[], Some(Vec::new())).await;
    assert_eq!(fleet.get("/health").await.status, StatusCode::OK);
}

/// The only record of `fleet`.
async fn record(fleet: &Fleet) -> Value {
    let mut records = fleet.records().await;
    assert_eq!(records.len(), 1);
    records.remove(0)
}

#[tokio::test]
async fn records_tell_what_was_sent() {
    let two = json!({"model": "sim", "prompt": ["a", "bc"], "max_tokens": 3});
    for (path, body) in [
        (CHAT, chat("hello", 4)),
        (CHAT, streaming(chat("hello", 40))),
        (CHAT, json!({"messages": 3})),
        (CHAT, chat(&"x".repeat(2_000), 3)),
        (COMPLETIONS, two.clone()),
        (COMPLETIONS, streaming(two)),
    ] {
        let fleet = start(quick()).await;
        let answer = fleet.post(path, &body).await;
        for record in fleet.records().await {
            assert_eq!(record["sent_bytes"], answer.body.len(), "{}", answer.text());
            assert_eq!(record["sent_hash"], json!(body_hash(&answer.body)), "{}", answer.text());
        }
        let is_stream = answer.headers["content-type"] != "application/json";
        assert_eq!(answer.headers.contains_key("content-length"), !is_stream);
    }
}

#[tokio::test]
async fn records_of_broken_answers_tell_what_left() {
    let fleet = start(quick()).await;
    fleet.fail(json!({"mode": "http_503"})).await;
    let answer = fleet.post(CHAT, &chat("hello", 4)).await;
    assert_eq!(record(&fleet).await["sent_hash"], json!(body_hash(&answer.body)));

    let fleet = start(quick()).await;
    fleet.fail(json!({"mode": "reset_before_headers"})).await;
    assert!(fleet.open(CHAT, &[], bytes(&chat("hello", 4))).await.is_err());
    assert_eq!(record(&fleet).await["state"], "failed");

    let fleet = start(quick()).await;
    fleet.fail(json!({"mode": "reset_mid_stream"})).await;
    let mut body = fleet.open(CHAT, &[], bytes(&chat("hello", 4))).await.unwrap().into_body();
    let mut seen = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        seen.extend(frame.into_data().unwrap());
    }
    let record = record(&fleet).await;
    assert_eq!(record["sent_hash"], json!(body_hash(&seen)));
    assert_eq!(record["sent_bytes"], seen.len());
}
