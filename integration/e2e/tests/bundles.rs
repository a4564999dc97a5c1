//! Without the model's bundle requests are served all the same, and with it as soon as it comes.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use warmpath_e2e::bed::{Bed, Front, FrontOptions, post};
use warmpath_e2e::client::Version;
use warmpath_e2e::fleet::{fast, served_once};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{MODEL, prompt};
use warmpath_e2e::scripted::ScriptedEngine;
use warmpath_harness::fleet::{Fleet, FleetOptions};
use warmpath_harness::{Bootstrap, HarnessError, Variant, paths};

/// A file of its own with these bytes.
fn file(dir: &TempDir, bytes: &[u8]) -> Option<PathBuf> {
    let path = dir.path().join("bundle");
    std::fs::write(&path, bytes).unwrap();
    Some(path)
}

/// A chat and a text are routed by load and served; token ids need no bundle.
async fn serves_without(options: &FrontOptions, why: &str) {
    let bed = Bed::start(options, 2).await;
    poll::until("failed attempts to get the bundle", async || {
        match bed.front.metric("bundle_failures_total").await {
            0 => Err("none"),
            _ => Ok(()),
        }
    })
    .await;
    let mut connection = bed.front.connect(Version::Http1).await;
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]});
    let text = json!({"model": MODEL, "prompt": "hello"});
    for (path, body) in [("/v1/chat/completions", &chat), ("/v1/completions", &text)] {
        let (id, answer) = post(&mut connection, path, body, &[]).await;
        assert_eq!(answer.status, 200, "{why}");
        assert_eq!(served_once(&bed.fleet, &id).await.state, "finished", "{why}");
    }
    let first = bed.complete(&prompt(1, 20)).await;
    let second = bed.complete(&prompt(1, 20)).await;
    assert_eq!((second.engine, second.cached_tokens), (first.engine, Some(320)), "{why}");
    let decisions = bed.front.decisions().await;
    assert_eq!(decisions["no_tokenizer"], 2, "{why}");
    assert_eq!(bed.front.metric("bundles_loaded_total").await, 0, "{why}");
    let log = bed.front.envoy.log();
    assert!(log.contains(why), "the log does not say {why:?}:\n{log}");
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_has_no_bundle() {
    serves_without(&FrontOptions::new(Variant::ClusterHeader), "the status is not 200").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundle_is_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let garbage: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for bytes in [&garbage[..], b"", b"{}", b"<html>not found</html>"] {
        let mut options = FrontOptions::new(Variant::OverrideHost);
        options.bundle = file(&dir, bytes);
        serves_without(&options, "not loaded").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundle_is_cut_short() {
    let bytes = std::fs::read(paths::demo_bundle().expect("the demo's bundle")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2, 16] {
        let mut options = FrontOptions::new(Variant::OverrideHost);
        options.bundle = file(&dir, &bytes[..length]);
        serves_without(&options, "not loaded").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_of_the_bundle_is_flipped() {
    let mut bytes = std::fs::read(paths::demo_bundle().expect("the demo's bundle")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    let dir = tempfile::tempdir().unwrap();
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.bundle = file(&dir, &bytes);
    serves_without(&options, "not loaded").await;
}

fn refuse(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    // Nothing listens on the port for multiplexing TCP services, and nothing that tests start ever will.
    let cluster = bootstrap.cluster_mut("warmpath_internal")?;
    let endpoint = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
    endpoint["address"]["socket_address"]["port_value"] = json!(1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_listens_where_the_bundle_should_be() {
    let mut options = FrontOptions::new(Variant::ClusterHeader);
    options.edit = refuse;
    serves_without(&options, "not loaded").await;
}

fn models(cluster: &str) -> Value {
    json!({
        "kv_capacity_tokens": 1 << 23,
        "models": [{
            "name": MODEL,
            "block_size_tokens": 16,
            "bundle": {"cluster": cluster, "path": "/_warmpath/bundles/demo.wpb"},
        }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundles_cluster_does_not_exist() {
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.config_patch = models("nowhere");
    serves_without(&options, "the cluster is unknown").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundles_server_breaks_off_and_then_comes_to_its_senses() {
    let bytes = std::fs::read(paths::demo_bundle().expect("the demo's bundle")).unwrap();
    let mut server = ScriptedEngine::start().await;
    let fleet = Fleet::start(&with_bundle(1)).await.unwrap();
    // In this variant each engine has a cluster, so that one of them can play the server of bundles.
    let mut options = FrontOptions::new(Variant::ClusterHeader);
    options.config_patch = models("engine-1");
    let engines = [fleet.addresses()[0], server.address()];
    let start = tokio::spawn(async move { options.start(&engines).await });
    // The main thread and two workers ask, and the canary that only checks the configuration may.
    for round in 0..4 {
        let mut served = server.next().await;
        assert!(served.seen.line.starts_with("GET /_warmpath/bundles/demo.wpb"));
        match round {
            0 => served.reset(),
            1 => served.answer(503, "text/plain", b"not yet").await,
            2 => {
                served.send_head(200, &[]).await;
                served.send_chunk(&bytes[..bytes.len() / 3]).await;
                served.reset();
            }
            _ => served.answer(200, "application/octet-stream", &bytes[1..]).await,
        }
    }
    tokio::spawn(async move {
        loop {
            let served = server.next().await;
            served.answer(200, "application/octet-stream", &bytes).await;
        }
    });
    let front: Front = start.await.unwrap();
    front.wait_for_bundles(3).await;
    assert!(front.metric("bundle_failures_total").await > 0);
    front.assert_no_crash().await;
}

fn with_bundle(engines: usize) -> FleetOptions {
    FleetOptions { bundle: Some(paths::demo_bundle().expect("the demo's bundle")), ..fast(engines) }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_bundle_chats_and_texts_are_routed_by_their_tokens() {
    for variant in Variant::ALL {
        let mut options = FrontOptions::new(variant);
        options.bundle = Some(paths::demo_bundle().expect("the demo's bundle"));
        let bed = Bed::with_fleet(&options, &with_bundle(3)).await;
        bed.front.wait_for_bundles(3).await;
        let mut connection = bed.front.connect(Version::Http1).await;
        let mut answered = 0;
        for number in 0..6 {
            let opening = format!("Tell me a story of {number} bears. {}", "And a fox. ".repeat(40));
            let mut messages = vec![
                json!({"role": "system", "content": format!("You are narrator {number}.")}),
                json!({"role": "user", "content": opening}),
            ];
            let mut first = None;
            for turn in 0..3 {
                let body = json!({"model": MODEL, "messages": messages, "max_tokens": 20});
                let (id, answer) = post(&mut connection, "/v1/chat/completions", &body, &[]).await;
                assert_eq!(answer.status, 200, "{:?}", answer.body);
                let served = served_once(&bed.fleet, &id).await;
                answered += 1;
                let (engine, length) = *first.get_or_insert((served.engine, served.prompt_tokens));
                assert_eq!(served.engine, engine, "{variant:?}: chat {number}, turn {turn}");
                let cached = served.cached_tokens.unwrap();
                // All full blocks of the opening prompt, at least.
                let known = if turn == 0 { 0 } else { length / 16 * 16 };
                assert!(cached >= known, "{variant:?}: turn {turn}: {cached} of {known} cached");
                let reply = answer.json()["choices"][0]["message"]["content"].clone();
                messages.push(json!({"role": "assistant", "content": reply}));
                messages.push(json!({"role": "user", "content": format!("Go on, {turn}.")}));
            }
            let text = json!({"model": MODEL, "prompt": format!("{number} {}", "word ".repeat(99))});
            let mut engines = Vec::new();
            for _ in 0..2 {
                let (id, _) = post(&mut connection, "/v1/completions", &text, &[]).await;
                engines.push(served_once(&bed.fleet, &id).await.engine);
                answered += 1;
            }
            assert_eq!(engines[0], engines[1]);
        }
        // The filter counted the tokens of each as the engine did.
        poll::until_equal("parity", answered, async || {
            bed.front.metric("parity_agreements_total").await
        })
        .await;
        assert_eq!(bed.front.metric("parity_disagreements_total").await, 0);
        assert_eq!(bed.front.decisions().await.get("no_tokenizer"), None);
        bed.front.assert_no_crash().await;
    }
}
