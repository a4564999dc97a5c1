//! The alarm about a model whose prompts the filter counts otherwise than the engine: it comes where it should,
//! and never where it should not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, FrontOptions, post};
use warmpath_e2e::client::{Connection, Version};
use warmpath_e2e::fleet::{fast, served_once};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{MODEL, prompt};
use warmpath_e2e::scripted::ScriptedEngine;
use warmpath_harness::fleet::FleetOptions;
use warmpath_harness::{Variant, paths};
use warmpath_pack::{ModelFiles, pack};

const CHATS: &str = "/v1/chat/completions";

/// The main thread's VM and the two workers'.
const VMS: u64 = 3;

/// The answers that the filter remembers of a model.
const WINDOW: usize = 100;

/// Requests without a false alarm.
const QUIET_REQUESTS: u64 = 10_000;

/// Connections that send them.
const CONNECTIONS: u64 = 16;

fn demo_bundle() -> PathBuf {
    paths::demo_bundle().expect("the demo's bundle")
}

/// Engines that tokenize for themselves, by the demo model's own bundle.
fn engines() -> FleetOptions {
    FleetOptions { bundle: Some(demo_bundle()), ..fast(2) }
}

async fn start(bundle: PathBuf, config_patch: Value) -> Bed {
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.bundle = Some(bundle);
    for (key, value) in config_patch.as_object().expect("an object") {
        options.config_patch[key] = value.clone();
    }
    let bed = Bed::with_fleet(&options, &engines()).await;
    bed.front.wait_for_bundles(VMS).await;
    bed
}

/// The demo model with a template that writes one character more.
fn wrong_bundle(dir: &Path) -> PathBuf {
    let repository = paths::repository();
    let template = repository.join("examples/demo-model/chat_template.jinja");
    let template = std::fs::read_to_string(template).expect("the demo's template");
    let wrong = dir.join("wrong.jinja");
    std::fs::write(&wrong, template + "{{- '!' -}}").expect("a file");
    let model = repository.join(".cache/demo-model");
    let files = ModelFiles::find(&model, None, None, Some(&wrong)).expect("the demo model");
    let bundle = dir.join("wrong.wpb");
    std::fs::write(&bundle, pack(MODEL, &files).expect("a bundle").bytes).expect("a file");
    bundle
}

/// Sends the same request until the filter remembers nothing else, and expects the alarm with both numbers:
/// the engine's, and ours with so many tokens more.
async fn alarms(bed: &Bed, body: &Value, ours_more: i64) {
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut theirs = 0;
    for _ in 0..WINDOW {
        let (id, answer) = post(&mut connection, CHATS, body, &[]).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        theirs = served_once(&bed.fleet, &id).await.prompt_tokens;
    }
    let gauge = async || bed.front.model_metric("model_approximate").await;
    poll::until_equal("the gauge", 1, gauge).await;
    let ours = theirs.checked_add_signed(ours_more).expect("a length");
    let numbers = format!("the last one {ours} tokens by our count and {theirs} by the engine's");
    poll::until("the warning", async || {
        let log = bed.front.envoy.log();
        let warned = log.lines().any(|line| {
            line.contains(&format!("model {MODEL} is approximate")) && line.contains(&numbers)
        });
        if warned { Ok(()) } else { Err(format!("no line with {numbers:?} in\n{log}")) }
    })
    .await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_with_another_template_raises_the_alarm() {
    let dir = tempfile::tempdir().expect("a directory");
    let bed = start(wrong_bundle(dir.path()), json!({})).await;
    let body = json!({
        "model": MODEL, "max_tokens": 1,
        "messages": [{"role": "user", "content": "Which template is this?"}],
    });
    alarms(&bed, &body, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_configured_otherwise_than_the_engine_raises_the_alarm() {
    let patch = json!({"models": [{
        "name": MODEL,
        "exclude_tools_when_tool_choice_none": true,
        "bundle": {"cluster": "warmpath_internal", "path": "/_warmpath/bundles/demo.wpb"},
    }]});
    let bed = start(demo_bundle(), patch).await;
    let mut body = json!({
        "model": MODEL, "max_tokens": 1, "tool_choice": "none",
        "messages": [{"role": "user", "content": "Which tools are these?"}],
    });
    let mut connection = bed.front.connect(Version::Http1).await;
    let (id, _) = post(&mut connection, CHATS, &body, &[]).await;
    let without_tools = served_once(&bed.fleet, &id).await.prompt_tokens;
    body["tools"] = json!([{"type": "function", "function": {
        "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}},
    }}]);
    let (id, _) = post(&mut connection, CHATS, &body, &[]).await;
    let with_tools = served_once(&bed.fleet, &id).await.prompt_tokens;
    assert!(with_tools > without_tools);
    let tokens = |count: u64| i64::try_from(count).expect("a short prompt");
    alarms(&bed, &body, tokens(without_tools) - tokens(with_tools)).await;
}

/// A chat of its own for each number: text of many scripts, turns, tools.
fn chat(number: u64) -> Value {
    const TEXTS: [&str; 6] = [
        "How do I rotate the keys of the staging cluster?",
        "Wie heißt die Straße, in der ihr wohnt?",
        "请用一句话解释什么是前缀缓存。",
        "fn main() {\n    println!(\"{}\", 1 + 1);\n}",
        "🦀 émoji, tabs\tand  spaces   <｜User｜> that only look special",
        "Сколько будет 17 * 23?\r\n\r\n  - ответ одним числом",
    ];
    let text = |at: u64| format!("{number} {}", TEXTS[(at % 6) as usize]);
    let mut messages = vec![json!({"role": "user", "content": text(number)})];
    if number.is_multiple_of(3) {
        messages.insert(0, json!({"role": "system", "content": text(number / 3)}));
    }
    if number.is_multiple_of(4) {
        messages.push(json!({"role": "assistant", "content": text(number / 4)}));
        let parts = json!([{"type": "text", "text": text(number / 5)}]);
        messages.push(json!({"role": "user", "content": parts}));
    }
    let mut body = json!({"model": MODEL, "messages": messages, "max_tokens": 1});
    if number.is_multiple_of(5) {
        body["tools"] = json!([{"type": "function", "function": {
            "name": format!("f{number}"), "description": text(number), "parameters": {},
        }}]);
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_bundle_never_does() {
    let bed = start(demo_bundle(), json!({})).await;
    let next = AtomicU64::new(0);
    let send = async || {
        let mut connection = bed.front.connect(Version::Http1).await;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= QUIET_REQUESTS {
                return;
            }
            let (_, answer) = post(&mut connection, CHATS, &chat(number), &[]).await;
            assert_eq!(answer.status, 200, "{number}: {:?}", answer.body);
        }
    };
    let watch = async || {
        while next.load(Ordering::Relaxed) < QUIET_REQUESTS {
            assert_eq!(bed.front.model_metric("model_approximate").await, 0);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let senders = futures::future::join_all((0..CONNECTIONS).map(|_| send()));
    futures::join!(senders, watch());
    let agreements = async || bed.front.model_metric("parity_agreements_total").await;
    poll::until_equal("all answers to be read", QUIET_REQUESTS, agreements).await;
    assert_eq!(bed.front.model_metric("parity_disagreements_total").await, 0);
    assert_eq!(bed.front.model_metric("model_approximate").await, 0);
    assert!(!bed.front.envoy.log().contains("is approximate"));
    bed.front.assert_no_crash().await;
}

/// Sends a request to an engine that answers so.
async fn answered_with(
    connection: Connection,
    engine: &mut ScriptedEngine,
    (path, body): (&str, &Value),
    (content_type, answer): (&str, &str),
) -> Connection {
    let body = body.clone();
    let path = path.to_owned();
    let client = tokio::spawn(async move {
        let mut connection = connection;
        let (_, answer) = post(&mut connection, &path, &body, &[]).await;
        assert_eq!(answer.status, 200);
        connection
    });
    let served = engine.next().await;
    served.answer(200, content_type, answer.as_bytes()).await;
    poll::within("an answer", client).await.expect("no panic")
}

/// The usage of a batch is of all its prompts, and we count the first one.
#[tokio::test(flavor = "multi_thread")]
async fn batches_are_not_compared() {
    let mut engine = ScriptedEngine::start().await;
    let front = FrontOptions::new(Variant::ClusterHeader).start(&[engine.address()]).await;
    let mut connection = front.connect(Version::Http1).await;
    let (one, other) = (prompt(1, 20), prompt(2, 20));
    let tokens = one.len();
    let openai = |tokens: usize| json!({"usage": {"prompt_tokens": tokens}});
    let sglang = |tokens: usize| json!({"meta_info": {"prompt_tokens": tokens}});
    let last_of = |tokens: usize| json!([sglang(1), sglang(tokens)]);
    let completions = "/v1/completions";
    let batches = [
        (completions, json!({"model": MODEL, "prompt": [one, other]}), openai(2 * tokens)),
        ("/generate", json!({"model": MODEL, "input_ids": [one, other]}), last_of(2 * tokens)),
        // Batches of one are prompts like any other.
        (completions, json!({"model": MODEL, "prompt": [one]}), openai(tokens)),
        ("/generate", json!({"model": MODEL, "input_ids": [one]}), json!([sglang(tokens)])),
        (completions, json!({"model": MODEL, "prompt": one}), openai(tokens)),
    ];
    for (path, body, answer) in &batches {
        let answer = ("application/json", &*answer.to_string());
        connection = answered_with(connection, &mut engine, (path, body), answer).await;
    }
    let agreements = async || front.model_metric("parity_agreements_total").await;
    poll::until_equal("the other answers to be read", 3, agreements).await;
    assert_eq!(front.model_metric("parity_disagreements_total").await, 0);
    assert_eq!(front.decisions().await.values().sum::<u64>(), 5);
    front.assert_no_crash().await;
}

/// Ollama's count of a prompt is taken for its length only where the cached part is named beside it.
#[tokio::test(flavor = "multi_thread")]
async fn ollamas_counts_are_read() {
    let mut engine = ScriptedEngine::start().await;
    let mut options = FrontOptions::new(Variant::ClusterHeader);
    options.bundle = Some(demo_bundle());
    let front = options.start(&[engine.address()]).await;
    front.wait_for_bundles(VMS).await;
    let mut connection = front.connect(Version::Http1).await;
    let raw = json!({"model": MODEL, "prompt": "Why is the sky blue?", "raw": true});
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]});
    let end = |cached: &str| {
        format!(r#""done":true,"prompt_eval_count":999,{cached}"eval_count":7,"eval_duration":1}}"#)
    };
    let json = |cached: &str| format!(r#"{{"response":"x",{}"#, end(cached));
    let lines = |cached: &str| format!("{{\"response\":\"x\"}}\n{}\n", json(cached));
    let cached = r#""prompt_eval_cached_count":3,"#;
    let (one, many) = ("application/json", "application/x-ndjson");
    for (path, body, content_type, answer) in [
        ("/api/generate", &raw, one, json(cached)),
        ("/api/generate", &raw, many, lines(cached)),
        // Not reliable, and not the engine's template: not compared.
        ("/api/generate", &raw, one, json("")),
        ("/api/generate", &raw, many, lines("")),
        ("/api/chat", &chat, many, lines(cached)),
    ] {
        let answer = (content_type, &*answer);
        connection = answered_with(connection, &mut engine, (path, body), answer).await;
    }
    let disagreements = async || front.model_metric("parity_disagreements_total").await;
    poll::until_equal("the reliable counts to be read", 2, disagreements).await;
    assert_eq!(front.model_metric("reported_cached_tokens_total").await, 6);
    assert_eq!(front.model_metric("parity_agreements_total").await, 0);
    front.assert_no_crash().await;
}
