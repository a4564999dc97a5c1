//! One run through a real Envoy.
//!
//! In: a scenario, a policy, a speed. Out: what the engines say of it. Requests are sent as token ids,
//! so that the engines and the filter see the very prompts of the simulation.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use warmpath_core::config::Policy;
use warmpath_core::limits::PEER_MS_MIN;
use warmpath_engine_sim::model::SimTime;
use warmpath_fleet::arm::Arm;
use warmpath_fleet::scenario::Scenario;
use warmpath_fleet::text;
use warmpath_fleet::workload::{Arrival, Request};
use warmpath_harness::envoy::free_port;
use warmpath_harness::fleet::{Fleet, FleetOptions, Served, ServedFigures};
use warmpath_harness::http::HttpClient;
use warmpath_harness::{EnvoyOptions, EnvoyProcess, FilterOptions, Peers, Variant};

use crate::row::Row;

/// Ids below this are in the demo model's vocabulary.
const VOCABULARY: u32 = 100_000;

/// A request that is not answered for this long is lost.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs `scenario` under `policy`, engines and clock `speed` times as fast.
pub async fn run(
    scenario: &Scenario,
    policy: Policy,
    speed: f64,
    seed: u64,
) -> anyhow::Result<Row> {
    let fleet = Fleet::start(&FleetOptions {
        engines: scenario.backends,
        profile: scenario.profile.clone(),
        speed,
        bundle: None,
        model: "demo".to_owned(),
    })
    .await?;
    let envoys = envoys(scenario, policy, &fleet, speed).await?;
    let targets: Vec<SocketAddr> = envoys.iter().map(EnvoyProcess::public).collect();
    let (sent, failed) = drive(scenario, &targets, speed, seed).await?;
    let row = row(&fleet.served().await?, failed);
    anyhow::ensure!(row.requests + failed == sent, "{sent} sent, {row:?}");
    Ok(row)
}

async fn envoys(
    scenario: &Scenario,
    policy: Policy,
    fleet: &Fleet,
    speed: f64,
) -> anyhow::Result<Vec<EnvoyProcess>> {
    let listener = |_| Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
    let all = (0..scenario.envoys).map(listener).collect::<anyhow::Result<Vec<_>>>()?;
    let mut envoys = Vec::new();
    for listener in &all {
        let mut filter = FilterOptions::built(Arm::Policy(policy).name())?;
        filter.config_patch = json!({"kv_capacity_tokens": scenario.told_kv_tokens});
        let told_every_ms = scenario.told_every.map(|every| every.as_secs_f64() * 1e3 / speed);
        if let Some(interval_ms) = told_every_ms {
            let interval_ms = (interval_ms as u32).max(PEER_MS_MIN);
            filter.config_patch["peers"] = json!({"interval_ms": interval_ms});
        }
        let mut options =
            EnvoyOptions::with_filter(Variant::OverrideHost, fleet.addresses(), filter);
        options.concurrency = scenario.workers.try_into()?;
        let peers = Peers { port: listener.port(), all: all.clone() };
        options.peers = scenario.told_every.map(|_| peers);
        envoys.push(EnvoyProcess::start(&options).await.context("Envoy did not start")?);
    }
    for envoy in envoys.iter().filter(|_| scenario.told_every.is_some()) {
        know_each_other(envoy, all.len() - 1).await?;
    }
    Ok(envoys)
}

/// Waits until an Envoy tells so many others what it does.
async fn know_each_other(envoy: &EnvoyProcess, others: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = envoy.status().await?.json();
        if status["peers"]["told"].as_array().map(Vec::len) == Some(others) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "the Envoys do not find each other: {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends the workload. Returns how many requests were sent, and how many were not answered well.
async fn drive(
    scenario: &Scenario,
    targets: &[SocketAddr],
    speed: f64,
    seed: u64,
) -> anyhow::Result<(usize, usize)> {
    let mut workload = scenario.workload(seed)?;
    let mut number = 0;
    let started = Instant::now();
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut send = |arrival: Arrival| {
        let (ended, client) = (ended.clone(), HttpClient::new());
        number += 1;
        let draw = text::mix(seed ^ text::mix(number));
        let target = targets[(draw % targets.len() as u64) as usize];
        tokio::spawn(async move {
            let at = Duration::from_secs_f64(arrival.at.as_secs_f64() / speed);
            tokio::time::sleep_until(started + at).await;
            let is_answered = ask(&client, target, &arrival.request).await;
            // The receiver outlives all requests.
            let _ = ended.send((arrival.request, is_answered));
        });
    };
    let (mut sent, mut open, mut failed) = (0, 0, 0);
    let mut next = workload.start();
    loop {
        sent += next.len();
        open += next.len();
        next.drain(..).for_each(&mut send);
        if open == 0 {
            return Ok((sent, failed));
        }
        let (request, is_answered) = endings.recv().await.context("requests are open")?;
        open -= 1;
        failed += usize::from(!is_answered);
        let now = SimTime::from_secs_f64(started.elapsed().as_secs_f64() * speed);
        next.extend(workload.answered(now, &request, &[]));
    }
}

async fn ask(client: &HttpClient, target: SocketAddr, request: &Request) -> bool {
    let prompt: Vec<u32> =
        text::tokens(&request.pieces).iter().map(|token| token % VOCABULARY).collect();
    let body = json!({
        "model": "demo", "prompt": prompt, "max_tokens": request.output_tokens, "ignore_eos": true,
    });
    let answer = client.post_json(target, "/v1/completions", &body);
    let answer = tokio::time::timeout(TIMEOUT, answer).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
}

fn row(served: &[Served], failed: usize) -> Row {
    let figures = ServedFigures::of(served);
    let quantile_ms = |q: f64| figures.ttft_us.value_at_quantile(q) as f64 / 1e3;
    Row {
        requests: figures.finished,
        failed,
        cached_share: figures.cached_tokens as f64 / (figures.prompt_tokens as f64).max(1.0),
        ttft_p50_ms: quantile_ms(0.5),
        ttft_p99_ms: quantile_ms(0.99),
    }
}
