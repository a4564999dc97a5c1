//! Without the model's bundle requests are served all the same, and by their tokens as soon as it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, FrontOptions, difference, post};
use warmpath_e2e::client::{Connection, Version};
use warmpath_e2e::fleet::{fast, served_once};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{MODEL, prompt};
use warmpath_e2e::scripted::{ScriptedEngine, ServedRequest};
use warmpath_harness::fleet::{Fleet, FleetOptions, Served};
use warmpath_harness::{Bootstrap, HarnessError, Variant, paths};

/// The main thread's VM and the two workers'.
const VMS: u64 = 3;

fn good_bundle() -> Vec<u8> {
    std::fs::read(paths::demo_bundle().expect("the demo's bundle")).expect("a file")
}

fn with_bundle(engines: usize) -> FleetOptions {
    FleetOptions { bundle: Some(paths::demo_bundle().expect("the demo's bundle")), ..fast(engines) }
}

/// Sends a chat or a text; it must be served.
async fn send(bed: &Bed, connection: &mut Connection, path: &str, body: &Value) -> (Served, Value) {
    let (id, answer) = post(connection, path, body, &[]).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    (served_once(&bed.fleet, &id).await, answer.json())
}

fn chat() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]})
}

/// A chat and a text are routed by load and served; token ids need no bundle.
async fn serves_without_bundle(bed: &Bed, why: &str) {
    poll::until("an attempt to get the bundle", async || {
        let failures = bed.front.metric("bundle_failures_total").await;
        if failures > 0 { Ok(()) } else { Err(failures) }
    })
    .await;
    let before = bed.front.decisions().await;
    let mut connection = bed.front.connect(Version::Http1).await;
    send(bed, &mut connection, "/v1/chat/completions", &chat()).await;
    let text = json!({"model": MODEL, "prompt": "hello"});
    send(bed, &mut connection, "/v1/completions", &text).await;
    let first = bed.complete(&prompt(1, 20)).await;
    let second = bed.complete(&prompt(1, 20)).await;
    assert_eq!((second.engine, second.cached_tokens), (first.engine, Some(320)), "{why}");
    let decisions = difference(&before, &bed.front.decisions().await);
    assert_eq!(decisions["no_tokenizer"], 2, "{why}");
    assert_eq!(bed.front.metric("bundles_loaded_total").await, 0, "{why}");
    let log = bed.front.envoy.log();
    assert!(log.contains(why), "the log does not say {why:?}:\n{log}");
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_has_no_bundle() {
    let bed = Bed::start(&FrontOptions::new(Variant::ClusterHeader), 2).await;
    serves_without_bundle(&bed, "the status is not 200").await;
}

fn refuse(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    // Port 1 is nobody's: no test binds it, nor does the system give it out.
    let cluster = bootstrap.cluster_mut("warmpath_internal")?;
    let endpoint = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
    endpoint["address"]["socket_address"]["port_value"] = json!(1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_listens_where_the_bundle_should_be() {
    let options = FrontOptions { edit: refuse, ..FrontOptions::new(Variant::OverrideHost) };
    serves_without_bundle(&Bed::start(&options, 2).await, "not loaded").await;
}

fn models(bundle_cluster: &str) -> Value {
    json!([{
        "name": MODEL,
        "block_size_tokens": 16,
        "bundle": {"cluster": bundle_cluster, "path": "/bundle"},
    }])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundles_cluster_does_not_exist() {
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.config_patch["models"] = models("nowhere");
    serves_without_bundle(&Bed::start(&options, 2).await, "the cluster is unknown").await;
}

/// What a server of bundles may give instead of one.
enum Wrong {
    Status(u16),
    Body(Vec<u8>),
    /// The head and these bytes, then a reset.
    CutOff(Vec<u8>),
    Reset,
}

impl Wrong {
    async fn answer(self, mut request: ServedRequest) {
        match self {
            Self::Status(status) => request.answer(status, "text/plain", b"no").await,
            Self::Body(body) => request.answer(200, "application/octet-stream", &body).await,
            Self::CutOff(body) => {
                request.send_head(200, &[]).await;
                request.send_chunk(&body).await;
                request.reset();
            }
            Self::Reset => request.reset(),
        }
    }
}

fn wrongs(good: &[u8]) -> Vec<Wrong> {
    let mut flipped = good.to_vec();
    flipped[good.len() / 2] ^= 0x10;
    let garbage = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    vec![
        Wrong::Reset,
        Wrong::Status(503),
        Wrong::CutOff(good[..good.len() / 3].to_vec()),
        Wrong::Body(good[..good.len() - 1].to_vec()),
        Wrong::Body(good[..good.len() / 2].to_vec()),
        Wrong::Body(good[..16].to_vec()),
        Wrong::Body(flipped),
        Wrong::Body(garbage),
        Wrong::Body(b"<html>not found</html>".to_vec()),
        Wrong::Body(b"{}".to_vec()),
        Wrong::Body(Vec::new()),
        Wrong::Status(404),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bundles_are_refused_until_a_good_one_comes() {
    let good = good_bundle();
    let mut server = ScriptedEngine::start().await;
    let fleet = Fleet::start(&with_bundle(2)).await.unwrap();
    let mut addresses = fleet.addresses().to_vec();
    addresses.push(server.address());
    // In this variant each engine has a cluster; the last one is no backend, but the server of bundles.
    let mut options = FrontOptions::new(Variant::ClusterHeader);
    options.config_patch["models"] = models("engine-2");
    options.config_patch["backends"] = (0..2)
        .map(|i| {
            let name = format!("engine-{i}");
            json!({"name": name, "cluster": name, "address": addresses[i].to_string()})
        })
        .collect();
    let is_good = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let (may_be_good, counter) = (Arc::clone(&is_good), Arc::clone(&answered));
    let server = tokio::spawn(async move {
        let mut wrongs = wrongs(&good).into_iter();
        loop {
            let request = server.next_head().await;
            let wrong = wrongs.next().unwrap_or(Wrong::Status(404));
            if may_be_good.load(Ordering::Relaxed) {
                request.answer(200, "application/octet-stream", &good).await;
            } else {
                wrong.answer(request).await;
            }
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let bed = Bed { front: options.start(&addresses).await, fleet };
    poll::until("all wrong answers to be given", async || {
        let answered = answered.load(Ordering::Relaxed);
        if answered >= 13 { Ok(()) } else { Err(answered) }
    })
    .await;
    serves_without_bundle(&bed, "not loaded").await;
    is_good.store(true, Ordering::Relaxed);
    bed.front.wait_for_bundles(VMS).await;
    let before = bed.front.decisions().await;
    let mut connection = bed.front.connect(Version::Http1).await;
    send(&bed, &mut connection, "/v1/chat/completions", &chat()).await;
    let decisions = difference(&before, &bed.front.decisions().await);
    assert_eq!(decisions.into_keys().collect::<Vec<_>>(), ["prefix_miss"]);
    bed.front.assert_no_crash().await;
    server.abort();
}

async fn by_tokens(variant: Variant) {
    let mut options = FrontOptions::new(variant);
    options.bundle = Some(paths::demo_bundle().expect("the demo's bundle"));
    let bed = Bed::with_fleet(&options, &with_bundle(3)).await;
    bed.front.wait_for_bundles(VMS).await;
    let mut connection = bed.front.connect(Version::Http1).await;
    for number in 0..6 {
        chats_stay_with_their_engine(&bed, &mut connection, number).await;
        let text = json!({"model": MODEL, "prompt": format!("{number} {}", "word ".repeat(99))});
        let (first, _) = send(&bed, &mut connection, "/v1/completions", &text).await;
        let (second, _) = send(&bed, &mut connection, "/v1/completions", &text).await;
        let known = first.prompt_tokens.saturating_sub(1) / 16 * 16;
        assert_eq!((second.engine, second.cached_tokens), (first.engine, Some(known)));
    }
    // The filter counted the tokens of each as its engine did.
    let agreements = async || bed.front.model_metric("parity_agreements_total").await;
    poll::until_equal("parity", 6 * 5, agreements).await;
    assert_eq!(bed.front.model_metric("parity_disagreements_total").await, 0);
    let decisions: Vec<String> = bed.front.decisions().await.into_keys().collect();
    assert_eq!(decisions, ["prefix_hit", "prefix_miss"]);
    bed.front.assert_no_crash().await;
}

/// A chat of three turns, each with the answers before it.
async fn chats_stay_with_their_engine(bed: &Bed, connection: &mut Connection, number: u32) {
    let opening = format!("Tell me a story of {number} bears. {}", "And a fox. ".repeat(40));
    let mut messages = vec![
        json!({"role": "system", "content": format!("You are narrator {number}.")}),
        json!({"role": "user", "content": opening}),
    ];
    let mut before: Option<Served> = None;
    for turn in 0..3 {
        let body = json!({"model": MODEL, "messages": messages, "max_tokens": 20});
        let (served, answer) = send(bed, connection, "/v1/chat/completions", &body).await;
        if let Some(before) = before {
            assert_eq!(served.engine, before.engine, "chat {number}, turn {turn}");
            // All full blocks of the turn before.
            let known = before.prompt_tokens / 16 * 16;
            assert!(served.cached_tokens >= Some(known), "{:?} of {known}", served.cached_tokens);
        }
        before = Some(served);
        let reply = answer["choices"][0]["message"]["content"].clone();
        messages.push(json!({"role": "assistant", "content": reply}));
        messages.push(json!({"role": "user", "content": format!("Go on, {turn}.")}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_and_texts_are_routed_by_their_tokens_by_cluster_header() {
    by_tokens(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_and_texts_are_routed_by_their_tokens_by_override_host() {
    by_tokens(Variant::OverrideHost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_of_one_bundle_load_it_once() {
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.bundle = Some(paths::demo_bundle().expect("the demo's bundle"));
    let model = |name: &str| {
        json!({
            "name": name,
            "block_size_tokens": 16,
            "bundle": {"cluster": "warmpath_internal", "path": "/_warmpath/bundles/demo.wpb"},
        })
    };
    options.config_patch["models"] = json!([model(MODEL), model("twin")]);
    let bed = Bed::with_fleet(&options, &with_bundle(1)).await;
    bed.front.wait_for_bundles(VMS).await;
    let mut prompts = Vec::new();
    for name in [MODEL, "twin"] {
        let body = json!({"model": name, "prompt": "word ".repeat(99)});
        let explained = bed.front.explain("/v1/completions", &body).await;
        assert_eq!(explained["configured_model"], name);
        prompts.push(explained["prompt"].clone());
    }
    let [one, other] = &prompts[..] else { unreachable!() };
    assert!(one["tokens"].as_u64() > Some(90), "{one}");
    assert_eq!(one["token_ids"], other["token_ids"]);
    assert_ne!(one["block_hashes"], other["block_hashes"]);
    assert_eq!(bed.front.metric("bundles_loaded_total").await, VMS);
}
