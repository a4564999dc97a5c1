//! Requests through Envoy and the filter to two real llama.cpp servers: our token counts and predicted cached
//! tokens against theirs, and what is cached under `kv_cost` and under `round_robin`.
//!
//! Needs llama.cpp, so it runs only when asked for: `make e2e-llama-cpp`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_harness::http::HttpClient;
use warmpath_harness::{EnvoyOptions, EnvoyProcess, FilterOptions, Variant, paths};
use warmpath_llama_cpp::Engine;
use warmpath_vllm::compare::{Compared, compare_all, counted};
use warmpath_vllm::family::{bundle_file, repository_file};
use warmpath_vllm::workload::{Ask, requests};

const REQUESTS: usize = 200;
const SEED: u64 = 20_250_611;

/// The filter's blocks, in tokens. llama.cpp has none: it keeps each prompt to its last token.
const BLOCK: u64 = 16;

/// A request as llama.cpp takes it, without what only vLLM has; `None` for a path that it does not have.
fn adapted(mut ask: Ask) -> Option<Ask> {
    let fields = ask.body.as_object_mut()?;
    for field in ["cache_salt", "echo", "logprobs", "prompt_logprobs"] {
        fields.remove(field);
    }
    if let Some(items) = fields.get_mut("input").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(spell_out);
    }
    (ask.path != "/inference/v1/generate").then_some(ask)
}

/// Writes an item of a response's input as llama.cpp wants it.
fn spell_out(item: &mut Value) {
    let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
    item["content"] = json!([{"type": kind, "text": item["content"]}]);
    item["type"] = "message".into();
}

/// Two servers, cold, with as many conversations at a time as llama.cpp has by itself.
async fn engines(family: &str, dir: &Path, policy: &str) -> [Engine; 2] {
    let flags = ["--ctx-size", "65536", "--parallel", "4", "--threads", "1"];
    let log = |number| dir.join(format!("{family}-{policy}-{number}.log"));
    [Engine::start(family, &log(0), &flags).await, Engine::start(family, &log(1), &flags).await]
}

async fn front(family: &str, dir: &Path, policy: &str, engines: &[Engine; 2]) -> EnvoyProcess {
    let filter = FilterOptions {
        wasm: paths::wasm().expect("the filter"),
        bundle: Some(bundle_file(family, dir)),
        policy: policy.to_owned(),
        config_patch: json!({
            // The engine does not say: its --ctx-size.
            "kv_capacity_tokens": 1 << 16,
            "models": [{
                "name": family,
                "engine": "llama_cpp",
                "block_size_tokens": BLOCK,
                "bundle": {"cluster": "warmpath_internal", "path": "/_warmpath/bundles/demo.wpb"},
            }],
        }),
    };
    let addresses: Vec<SocketAddr> = engines.iter().map(Engine::address).collect();
    let options = EnvoyOptions::with_filter(Variant::OverrideHost, &addresses, filter);
    let envoy = EnvoyProcess::start(&options).await.expect("Envoy");
    envoy.wait_for_bundles(2, Duration::from_secs(60)).await.expect("loads");
    envoy
}

/// Prompt tokens computed and cached, by the engine's own metrics.
async fn own_count(engine: &Engine) -> [u64; 2] {
    let text = HttpClient::new().get(engine.address(), "/metrics").await.expect("metrics").text();
    ["llamacpp:prompt_tokens_total ", "llamacpp:prompt_tokens_cached_total "].map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)).expect("a counter");
        value.trim().parse::<f64>().expect("a number") as u64
    })
}

/// Waits until the filter has read of both engines what they say themselves.
async fn wait_for_metrics(envoy: &EnvoyProcess, engines: &[Engine; 2]) {
    let own = [own_count(&engines[0]).await, own_count(&engines[1]).await];
    let started = Instant::now();
    loop {
        let status = envoy.status().await.expect("an answer").json();
        let is_read = |number: usize| {
            let report = &status["backends"][number]["report"];
            let [computed, cached] = own[number];
            report["engine"] == "llamacpp"
                && report["prompt_tokens"] == computed + cached
                && report["prefix_hit_tokens"] == cached
        };
        if is_read(0) && is_read(1) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{own:?} {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What is cached of all prompts under a policy, and each request's numbers.
async fn run(family: &str, policy: &str) -> (f64, Vec<Compared>) {
    let dir = repository_file(".cache/llama-cpp-e2e");
    std::fs::create_dir_all(&dir).expect("a folder for logs");
    let engines = engines(family, &dir, policy).await;
    let envoy = front(family, &dir, policy, &engines).await;
    let start = envoy.stats().await.expect("statistics");
    let asks = requests(family, SEED).filter_map(adapted);
    let (all, _) = compare_all(&envoy, asks, REQUESTS).await;
    let end = envoy.stats().await.expect("statistics");
    wait_for_metrics(&envoy, &engines).await;
    let grown = |part: &str| counted(&end, part) - counted(&start, part);
    let verdicts = ["agreements", "disagreements"]
        .map(|verdict| grown(&format!("warmpath_parity_{verdict}_total")));
    let equal = all.iter().filter(|it| it.ours.prompt_tokens == it.theirs.prompt_tokens).count();
    // What the filter itself makes of the answers.
    assert_eq!(verdicts, [equal as u64, (REQUESTS - equal) as u64], "{family}");
    let cached: u64 = all.iter().map(|it| it.theirs.cached_tokens).sum();
    let total: u64 = all.iter().map(|it| it.theirs.prompt_tokens).sum();
    (cached as f64 / total as f64, all)
}

async fn check(family: &str) {
    let (in_turn, _) = run(family, "round_robin").await;
    let (warm, all) = run(family, "kv_cost").await;
    let equal = all.iter().filter(|it| it.ours.prompt_tokens == it.theirs.prompt_tokens).count();
    let near = |it: &&Compared| it.ours.cached_tokens.abs_diff(it.theirs.cached_tokens) <= BLOCK;
    let near = all.iter().filter(near).count();
    println!(
        "{family}: {equal} of {REQUESTS} prompts of equal length, {near} predictions of cached tokens within a \
         block; of all prompt tokens the engines had {:.1}% cached, {:.1}% under round robin",
        100.0 * warm,
        100.0 * in_turn,
    );
    assert_eq!(equal, REQUESTS, "{family}: prompts of another length");
    // The others are conversations whose end a slot gave up for another one with the same beginning.
    assert!(near * 100 >= REQUESTS * 90, "{family}: {near} of {REQUESTS} predictions right");
    assert!(warm > in_turn, "{family}: {warm} cached, {in_turn} under round robin");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real llama.cpp: make e2e-llama-cpp"]
async fn counts_and_predictions_are_the_engines() {
    for family in ["qwen3", "llama3_1"] {
        check(family).await;
    }
}
