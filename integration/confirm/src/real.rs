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
use warmpath_engine_sim::model::SimTime;
use warmpath_fleet::arm::Arm;
use warmpath_fleet::scenario::Scenario;
use warmpath_fleet::text;
use warmpath_fleet::workload::{Arrival, Request};
use warmpath_harness::fleet::{Fleet, FleetOptions, Served, ServedFigures};
use warmpath_harness::http::HttpClient;
use warmpath_harness::{EnvoyOptions, EnvoyProcess, FilterOptions, Variant};

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
    let envoy = envoy(scenario, policy, &fleet).await?;
    let (sent, failed) = drive(scenario, envoy.public(), speed, seed).await?;
    let row = row(&fleet.served().await?, failed);
    anyhow::ensure!(row.requests + failed == sent, "{sent} sent, {row:?}");
    Ok(row)
}

async fn envoy(scenario: &Scenario, policy: Policy, fleet: &Fleet) -> anyhow::Result<EnvoyProcess> {
    let mut filter = FilterOptions::built(Arm::Policy(policy).name())?;
    filter.config_patch = json!({"kv_capacity_tokens": scenario.told_kv_tokens});
    let mut options = EnvoyOptions::with_filter(Variant::OverrideHost, fleet.addresses(), filter);
    options.concurrency = scenario.workers.try_into()?;
    EnvoyProcess::start(&options).await.context("Envoy did not start")
}

/// Sends the workload. Returns how many requests were sent, and how many were not answered well.
async fn drive(
    scenario: &Scenario,
    target: SocketAddr,
    speed: f64,
    seed: u64,
) -> anyhow::Result<(usize, usize)> {
    let mut workload = scenario.workload(seed)?;
    let started = Instant::now();
    let (ended, mut endings) = mpsc::unbounded_channel();
    let send = |arrival: Arrival| {
        let (ended, client) = (ended.clone(), HttpClient::new());
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
        next.drain(..).for_each(&send);
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
