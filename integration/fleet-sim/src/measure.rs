//! From a run's records to its figures.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;
use serde::Serialize;
use warmpath_engine_sim::model::SimTime;

use crate::fleet::{Record, Run};
use crate::workload::{BURST_USERS, Class};

/// Mean and quantiles of a time, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// One in ten is slower.
    pub p90_ms: f64,
    /// One in a hundred is slower.
    pub p99_ms: f64,
}

/// A run's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that were served.
    pub requests: u64,
    /// Requests that no engine could ever serve.
    pub refused: u64,
    /// Share of prompt tokens that the engines did not compute, by their own counters.
    pub cached_share: f64,
    /// Share of requests with any cached token.
    pub hit_share: f64,
    /// From arrival to first token, routing included.
    pub ttft: Quantiles,
    /// The same, of prompts of at least 4,000 tokens.
    pub ttft_extra_large: Quantiles,
    /// Time of an output token after the first.
    pub tpot: Quantiles,
    /// From arrival to the last token, routing included.
    pub latency: Quantiles,
    /// Requests ended before the workload did, a second.
    pub requests_per_s: f64,
    /// Most backends that computed most of one burst's prompt.
    pub burst_backends: usize,
    /// Standard deviation over mean of the backends' computed prompt tokens.
    pub spread: f64,
    /// Mean distance of predicted and reported cached tokens, as a share of all prompt tokens.
    pub prediction_error: f64,
    /// Predicted minus reported cached tokens, as a share of all prompt tokens.
    pub prediction_bias: f64,
    /// Decisions that the residency estimate changed.
    pub downgrades: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Decisions by reason.
    pub reasons: BTreeMap<&'static str, u64>,
}

/// Works the figures out. Throughput counts what ended before `duration_s`.
#[must_use]
pub fn figures(run: &Run, duration_s: f64) -> Figures {
    let mut ttft = Times::new();
    let mut ttft_extra_large = Times::new();
    let mut tpot = Times::new();
    let mut latency = Times::new();
    let mut figures = Figures { refused: run.refused, ..Figures::default() };
    let (mut prompt_tokens, mut hits, mut in_time) = (0u64, 0u64, 0u64);
    let (mut error, mut bias) = (0.0, 0.0);
    for record in &run.records {
        let done = &record.finished;
        let overhead_ms = run.arm.overhead_ms(done.prompt_tokens);
        let first_ms = ms(done.first_token_at) - ms(done.arrived_at) + overhead_ms;
        ttft.add(first_ms);
        latency.add(ms(record.finished_at) - ms(done.arrived_at) + overhead_ms);
        if Class::of(done.prompt_tokens as usize) == Class::ExtraLarge {
            ttft_extra_large.add(first_ms);
        }
        if done.output_tokens > 1 {
            let rest = ms(record.finished_at) - ms(done.first_token_at);
            tpot.add(rest / f64::from(done.output_tokens - 1));
        }
        prompt_tokens += u64::from(done.prompt_tokens);
        hits += u64::from(done.cached_tokens > 0);
        in_time += u64::from(record.finished_at.as_secs_f64() < duration_s);
        let off = f64::from(record.predicted_cached_tokens) - f64::from(done.cached_tokens);
        figures.downgrades += u64::from(record.downgraded);
        error += off.abs();
        bias += off;
        *figures.reasons.entry(record.reason.label()).or_default() += 1;
    }
    figures.requests = run.records.len() as u64;
    figures.hit_share = ratio(hits as f64, figures.requests as f64);
    figures.ttft = ttft.quantiles();
    figures.ttft_extra_large = ttft_extra_large.quantiles();
    figures.tpot = tpot.quantiles();
    figures.latency = latency.quantiles();
    figures.requests_per_s = ratio(in_time as f64, duration_s);
    figures.prediction_error = ratio(error, prompt_tokens as f64);
    figures.prediction_bias = ratio(bias, prompt_tokens as f64);
    figures.preemptions = run.engines.iter().map(|engine| engine.preemptions).sum();
    let queries: u64 = run.engines.iter().map(|engine| engine.prefix_cache_queries).sum();
    let found: u64 = run.engines.iter().map(|engine| engine.prefix_cache_hits).sum();
    figures.cached_share = ratio(found as f64, queries as f64);
    figures.spread = spread(&run.records, run.engines.len());
    figures.burst_backends = burst_backends(&run.records);
    figures
}

fn burst_backends(records: &[Record]) -> usize {
    let mut computed_at: BTreeMap<SimTime, BTreeSet<usize>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.user >= BURST_USERS) {
        let done = &record.finished;
        if done.cached_tokens * 2 < done.prompt_tokens {
            computed_at.entry(done.arrived_at).or_default().insert(record.backend);
        }
    }
    computed_at.values().map(BTreeSet::len).max().unwrap_or(0)
}

fn spread(records: &[Record], backends: usize) -> f64 {
    let mut computed = vec![0.0; backends];
    for record in records {
        let done = &record.finished;
        computed[record.backend] += f64::from(done.prompt_tokens - done.cached_tokens);
    }
    let mean = computed.iter().sum::<f64>() / backends as f64;
    let variance =
        computed.iter().map(|tokens| (tokens - mean).powi(2)).sum::<f64>() / backends as f64;
    ratio(variance.sqrt(), mean)
}

/// 0 of nothing is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn ms(at: SimTime) -> f64 {
    at.as_millis_f64()
}

/// Times by their frequency, to three digits.
struct Times(Histogram<u64>);

impl Times {
    fn new() -> Self {
        // Microseconds up to a day; auto-resizing would only hide a simulation that never ends.
        Self(Histogram::new_with_max(86_400_000_000, 3).expect("the bounds are valid"))
    }

    fn add(&mut self, time_ms: f64) {
        self.0.saturating_record((time_ms * 1e3).round() as u64);
    }

    fn quantiles(&self) -> Quantiles {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Quantiles {
            mean_ms: self.0.mean() / 1e3,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
        }
    }
}
