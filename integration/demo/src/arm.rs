//! One policy's run: a fresh Envoy, engines with empty caches, the traffic, and what the engines say.

use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde_json::json;
use warmpath_harness::fleet::{Fleet, Served, ServedFigures};
use warmpath_harness::load::{self, LoadOptions, LoadReport};
use warmpath_harness::workload::Workload;
use warmpath_harness::{EnvoyOptions, EnvoyProcess, FilterOptions, Variant};

use crate::scenario::{KV_TOKENS, Scenario};

/// A policy of the comparison. All run through the same filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Each engine in turn.
    RoundRobin,
    /// The engine with the fewest requests in flight.
    LeastRequest,
    /// Warmpath: the engine with the least prefill work.
    KvCost,
}

impl Policy {
    /// In the order of the table.
    pub const ALL: [Self; 3] = [Self::RoundRobin, Self::LeastRequest, Self::KvCost];

    /// Its name in the filter's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastRequest => "least_request",
            Self::KvCost => "kv_cost",
        }
    }

    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::RoundRobin => "round robin",
            Self::LeastRequest => "least request",
            Self::KvCost => "Warmpath",
        }
    }
}

/// What one policy achieved, by the engines' own records. Times are engine time.
#[derive(Debug, Clone)]
pub struct Arm {
    /// The policy.
    pub policy: Policy,
    /// Requests answered in full.
    pub completed: usize,
    /// Requests that were not.
    pub failed: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Of these, tokens found in an engine's cache.
    pub cached_tokens: u64,
    /// Median time to first token.
    pub ttft_p50: Duration,
    /// Time to first token that 99 of 100 requests stayed within.
    pub ttft_p99: Duration,
    /// Answers a second.
    pub completed_per_s: f64,
}

impl Arm {
    /// The cached part of the prompts' tokens.
    pub fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / (self.prompt_tokens as f64).max(1.0)
    }
}

/// More requests in flight than this would mean a fleet that is far behind.
const IN_FLIGHT_MAX: usize = 2_000;
/// A request is given up after this long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// The filter has its tokenizer by then, or something is wrong.
const BUNDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Worker threads of Envoy.
const WORKERS: u32 = 2;
/// Envoy's main thread has a VM of its own, which loads the tokenizer like the others.
const VMS: u32 = WORKERS + 1;

/// Runs `workload` under `policy`.
pub async fn run(
    policy: Policy,
    fleet: &Fleet,
    workload: &Workload,
    scenario: &Scenario,
    bar: &ProgressBar,
) -> anyhow::Result<Arm> {
    bar.set_message("(Envoy is starting)");
    fleet.reset().await?;
    let envoy = start_envoy(policy, fleet, 0).await?;
    bar.set_message("");
    bar.reset_elapsed();
    let options = LoadOptions {
        target: envoy.public(),
        model: "demo".to_owned(),
        speed: scenario.speed,
        in_flight_max: IN_FLIGHT_MAX,
        timeout: REQUEST_TIMEOUT,
    };
    let report = load::run(&options, workload, |_| bar.inc(1)).await;
    let served = fleet.served().await?;
    let arm = summarize(policy, &report, &served, scenario.speed);
    if arm.completed == 0 {
        bail!("nothing was answered: {:?}\n{}", report.failures(), envoy.log());
    }
    Ok(arm)
}

/// Starts an Envoy with the filter in front of `fleet` and waits until every worker has its tokenizer.
pub async fn start_envoy(policy: Policy, fleet: &Fleet, port: u16) -> anyhow::Result<EnvoyProcess> {
    let mut filter = FilterOptions::built(policy.name())?;
    filter.config_patch = json!({"kv_capacity_tokens": KV_TOKENS});
    let mut options = EnvoyOptions::with_filter(Variant::ClusterHeader, fleet.addresses(), filter);
    options.public_port = port;
    options.concurrency = WORKERS;
    let envoy = EnvoyProcess::start(&options).await.context("Envoy did not start")?;
    envoy.wait_for_bundles(VMS, BUNDLE_TIMEOUT).await.with_context(|| envoy.log())?;
    Ok(envoy)
}

fn summarize(policy: Policy, report: &LoadReport, served: &[Served], speed: f64) -> Arm {
    let figures = ServedFigures::of(served);
    let quantile = |q: f64| Duration::from_micros(figures.ttft_us.value_at_quantile(q));
    Arm {
        policy,
        completed: figures.finished,
        failed: report.samples.len() - report.completed(),
        prompt_tokens: figures.prompt_tokens,
        cached_tokens: figures.cached_tokens,
        ttft_p50: quantile(0.5),
        ttft_p99: quantile(0.99),
        completed_per_s: figures.finished as f64 / (report.elapsed.as_secs_f64() * speed),
    }
}
