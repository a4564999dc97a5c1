//! Requests through Envoy and the filter to a real vLLM: our token counts against the engine's
//! `usage`, and predicted cached tokens against those that the engine had; and what the filter reads in
//! its metrics and load reports.
//!
//! Needs vLLM, so it runs only when asked for: `make e2e-vllm`. `WARMPATH_VLLM_FAMILIES` names the
//! families, separated by commas; else it is one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_harness::http::HttpClient;
use warmpath_harness::{
    Bootstrap, EnvoyOptions, EnvoyProcess, FilterOptions, HarnessError, Variant, paths,
};
use warmpath_vllm::compare::{compare_all, counted};
use warmpath_vllm::engine::Engine;
use warmpath_vllm::family::{bundle_file, repository_file};
use warmpath_vllm::workload::requests;

const REQUESTS: usize = 200;
const SEED: u64 = 20_250_611;

async fn front(
    family: &str,
    engine: &Engine,
    dir: &Path,
    edit: fn(&mut Bootstrap) -> Result<(), HarnessError>,
) -> EnvoyProcess {
    let filter = FilterOptions {
        wasm: paths::wasm().expect("the filter"),
        bundle: Some(bundle_file(family, dir)),
        policy: "kv_cost".to_owned(),
        config_patch: json!({
            // Both wrong: the engine says better.
            "kv_capacity_tokens": 1 << 12,
            "models": [{
                "name": family,
                "block_size_tokens": 16,
                "bundle": {"cluster": "warmpath_internal", "path": "/_warmpath/bundles/demo.wpb"},
            }],
        }),
    };
    let mut options = EnvoyOptions::with_filter(Variant::OverrideHost, &[engine.address()], filter);
    options.edit = edit;
    let envoy = EnvoyProcess::start(&options).await.expect("Envoy");
    envoy.wait_for_bundles(2, Duration::from_secs(60)).await.expect("loads");
    envoy
}

/// What the filter's status says of its only backend and model.
async fn status(envoy: &EnvoyProcess) -> [Value; 2] {
    let status = envoy.status().await.expect("an answer").json();
    [status["backends"][0].clone(), status["models"][0].clone()]
}

/// Waits until the filter reckons with what vLLM's metrics say, and compares that with vLLM's own text.
async fn wait_for_metrics(envoy: &EnvoyProcess, engine: &Engine) {
    let started = Instant::now();
    let (backend, model) = loop {
        let [backend, model] = status(envoy).await;
        if model["block_size_tokens"] == 32 {
            break (backend, model);
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{backend} {model}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let text = HttpClient::new().get(engine.address(), "/metrics").await.expect("metrics").text();
    let info = text.lines().find(|line| line.starts_with("vllm:cache_config_info")).expect("info");
    let label = |name: &str| -> u64 {
        let (_, rest) = info.split_once(&format!("{name}=\"")).expect("a label");
        rest.split_once('"').expect("its end").0.parse().expect("a number")
    };
    let capacity = label("num_gpu_blocks") * label("block_size");
    assert_eq!(backend["report"]["engine"], "vllm");
    assert_eq!(backend["report"]["block_size_tokens"], label("block_size"));
    assert_eq!(backend["kv_capacity_tokens"], capacity);
    assert_eq!(backend["cache"]["capacity_blocks"], label("num_gpu_blocks"));
    assert_eq!(model["configured_block_size_tokens"], 16);
    println!(
        "from vLLM's metrics: {capacity} tokens of KV memory in blocks of 32, corrected from 16"
    );
}

/// The most running requests and KV usage in vLLM's metrics while it computes something.
async fn load_while_computing(envoy: &EnvoyProcess, family: &str) -> (u64, f64) {
    let body = json!({"model": family, "prompt": "Count:", "max_tokens": 400, "ignore_eos": true});
    let server = envoy.public();
    let running = tokio::spawn(async move {
        HttpClient::new().post_json(server, "/v1/completions", &body).await.expect("an answer")
    });
    let mut most = (0, 0.0);
    while !running.is_finished() {
        let [backend, _] = status(envoy).await;
        let report = &backend["report"];
        most.0 = most.0.max(report["running"].as_u64().unwrap_or(0));
        most.1 = f64::max(most.1, report["kv_usage"].as_f64().unwrap_or(0.0));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(running.await.expect("ends").status, 200);
    most
}

/// The load that vLLM reports, in its metrics and in its answers.
async fn check_load(envoy: &EnvoyProcess, family: &str) {
    let mut most = (0, 0.0);
    // A fast answer may begin and end between two readings.
    for _ in 0..10 {
        most = load_while_computing(envoy, family).await;
        if most.0 > 0 && most.1 > 0.0 {
            break;
        }
    }
    let [backend, _] = status(envoy).await;
    println!("from vLLM's metrics: {} running, {:.4} of KV memory used", most.0, most.1);
    println!("from vLLM's answers (ORCA): {}", backend["load_report"]);
    assert!(most.0 == 1 && most.1 > 0.0, "{backend}");
    assert!(backend["load_report"]["kv_usage"].is_f64(), "{backend}");
    assert_eq!(backend["load_report"]["waiting"], 0);
}

fn logs() -> PathBuf {
    let dir = repository_file(".cache/vllm-e2e");
    std::fs::create_dir_all(&dir).expect("a folder for logs");
    dir
}

async fn check(family: &str) {
    let dir = logs();
    let engine = Engine::start(family, &dir.join(format!("{family}.log"))).await;
    let envoy = front(family, &engine, &dir, |_| Ok(())).await;
    wait_for_metrics(&envoy, &engine).await;
    check_load(&envoy, family).await;
    let start = envoy.stats().await.expect("statistics");
    let (all, refused) = compare_all(&envoy, requests(family, SEED), REQUESTS).await;
    let end = envoy.stats().await.expect("statistics");
    let grown = |part: &str| counted(&end, part) - counted(&start, part);
    let read = grown("reason.prefix_hit") + grown("reason.prefix_miss");
    let lengths = all.iter().filter(|it| it.ours.prompt_tokens == it.theirs.prompt_tokens).count();
    let hits = all.iter().filter(|it| it.ours.cached_tokens == it.theirs.cached_tokens).count();
    let cached: u64 = all.iter().map(|it| it.theirs.cached_tokens).sum();
    let total: u64 = all.iter().map(|it| it.theirs.prompt_tokens).sum();
    println!(
        "{family}: {lengths} of {REQUESTS} prompts of equal length, {hits} of equal cached tokens; \
         the engine had {cached} of {total} tokens cached; {refused} more were refused by the template, \
         in the engine and here"
    );
    assert_eq!(read, REQUESTS as u64, "{family}: requests whose prompt was not read");
    assert_eq!(lengths, REQUESTS, "{family}: prompts of another length");
    assert!(hits * 100 >= REQUESTS * 95, "{family}: {hits} of {REQUESTS} predictions right");
    // What the filter itself makes of the answers.
    let disagreements = grown("warmpath_parity_disagreements_total");
    let agreements = grown("warmpath_parity_agreements_total");
    assert_eq!((disagreements, agreements), (0, REQUESTS as u64), "{family}: the filter's verdict");
    assert!(cached * 4 > total, "{family}: too little is cached to prove anything");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real vLLM: make e2e-vllm"]
async fn counts_and_predictions_are_the_engines() {
    let families = std::env::var("WARMPATH_VLLM_FAMILIES").unwrap_or_else(|_| "qwen3".to_owned());
    for family in families.split(',') {
        check(family).await;
    }
}

fn two_ranks(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    bootstrap.filter_config_mut()?["backends"][0]["data_parallel_size"] = json!(2);
    Ok(())
}

/// The tokens that each of a vLLM's ranks was asked for, by its own metrics.
async fn tokens_of_ranks(engine: &Engine) -> [u64; 2] {
    let text = HttpClient::new().get(engine.address(), "/metrics").await.expect("metrics").text();
    [0, 1].map(|rank| {
        let start = format!("vllm:prompt_tokens_total{{engine=\"{rank}\"");
        let line = text.lines().find(|line| line.starts_with(&start)).expect("a counter");
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        value.expect("a number") as u64
    })
}

/// Two engines behind one address, each with a cache of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real vLLM: make e2e-vllm"]
async fn ranks_are_told_apart() {
    let (family, dir, count) = ("qwen3", logs(), 100);
    let flags = ["--data-parallel-size", "2"];
    let engine = Engine::start_with(family, &dir.join("ranks.log"), &flags).await;
    let envoy = front(family, &engine, &dir, two_ranks).await;
    let started = Instant::now();
    let capacities = loop {
        let status = envoy.status().await.expect("an answer").json();
        let backends = status["backends"].as_array().cloned().unwrap_or_default();
        if backends.len() == 2 && backends.iter().all(|it| it["report"].is_object()) {
            break backends.iter().map(|it| it["kv_capacity_tokens"].clone()).collect::<Vec<_>>();
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let before = tokens_of_ranks(&engine).await;
    // vLLM does not read the rank of responses: these go by load, which is not compared.
    let asks = requests(family, SEED).filter(|ask| ask.path != "/v1/responses");
    let (all, _) = compare_all(&envoy, asks, count).await;
    let equal = all.iter().filter(|it| it.ours == it.theirs).count();
    let cached: u64 = all.iter().map(|it| it.theirs.cached_tokens).sum();
    let total: u64 = all.iter().map(|it| it.theirs.prompt_tokens).sum();
    let after = tokens_of_ranks(&engine).await;
    let shares = [after[0] - before[0], after[1] - before[1]];
    println!(
        "{family}, two ranks of {capacities:?} tokens: {equal} of {count} prompts of equal length and \
         cached tokens; the engines had {cached} of {total} tokens cached, and were asked for {shares:?}"
    );
    assert_eq!(equal, count);
    assert!(shares.iter().all(|tokens| tokens * 5 > total), "{shares:?}");
    assert!(cached * 4 > total, "too little is cached to prove anything");
}
