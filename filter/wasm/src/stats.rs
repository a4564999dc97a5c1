//! Envoy's stats, resolved once a VM.
//!
//! What a request counts collects here and goes to Envoy when a request has ended, and at each tick: a
//! call of the host costs about 2 us, which a request that waits for its decision need not pay.

use std::cell::{Cell, RefCell};

use warmpath_core::dispatch::{Verdict, Written};
use warmpath_core::metrics::{
    BackendMetric, Definition, Failure, Kind, Metric, ModelMetric, Reason,
};
use warmpath_core::status::ModelTokens;

use crate::host;

/// A metric as the host knows it, and what the host was not told yet of a counter. A metric that the
/// host refused is not recorded.
#[derive(Debug)]
struct Stat {
    id: Option<u32>,
    pending: Cell<u64>,
}

impl Stat {
    fn define(kind: Kind, name: &str) -> Self {
        Self { id: host::define_metric(kind, name), pending: Cell::new(0) }
    }

    fn add(&self, count: u64) {
        self.pending.set(self.pending.get().saturating_add(count));
    }

    fn record(&self, value: u64) {
        if let Some(id) = self.id {
            host::record_metric(id, value);
        }
    }

    /// What the host has, over all workers.
    fn total(&self) -> u64 {
        self.id.map_or(0, host::metric)
    }

    fn flush(&self) {
        if let (count @ 1.., Some(id)) = (self.pending.take(), self.id) {
            host::add_to_metric(id, count);
        }
    }
}

/// All metrics of a VM.
#[derive(Debug)]
pub struct Stats {
    metrics: [Stat; Metric::ALL.len()],
    decisions: [Stat; Reason::ALL.len()],
    failures: [Stat; Failure::ALL.len()],
    decision_times_us: RefCell<Vec<u64>>,
}

impl Stats {
    /// Defines every metric.
    pub fn define() -> Self {
        Self {
            metrics: Metric::ALL.map(|metric| {
                let Definition { name, kind, .. } = metric.definition();
                Stat::define(kind, name)
            }),
            decisions: Reason::ALL.map(|reason| Stat::define(Kind::Counter, &reason.name())),
            failures: Failure::ALL.map(|failure| Stat::define(Kind::Counter, &failure.name())),
            decision_times_us: RefCell::default(),
        }
    }

    /// Adds to a counter.
    pub fn add(&self, metric: Metric, count: u64) {
        if let Some(stat) = self.stat(metric) {
            stat.add(count);
        }
    }

    /// Sets a gauge.
    pub fn record(&self, metric: Metric, value: u64) {
        if let Some(stat) = self.stat(metric) {
            stat.record(value);
        }
    }

    /// Counts a decision.
    pub fn decided(&self, reason: Reason) {
        let position = Reason::ALL.iter().position(|other| *other == reason);
        if let Some(stat) = position.and_then(|position| self.decisions.get(position)) {
            stat.add(1);
        }
    }

    /// Counts a backend's failure.
    pub fn failed(&self, failure: Failure) {
        let position = Failure::ALL.iter().position(|other| *other == failure);
        if let Some(stat) = position.and_then(|position| self.failures.get(position)) {
            stat.add(1);
        }
    }

    /// Decisions of all workers so far, by reason.
    pub fn decisions(&self) -> Vec<(&'static str, u64)> {
        let all = Reason::ALL.iter().zip(&self.decisions);
        all.map(|(reason, stat)| (reason.label(), stat.total())).collect()
    }

    /// A counter of all workers.
    pub fn total(&self, metric: Metric) -> u64 {
        self.stat(metric).map_or(0, Stat::total)
    }

    /// Takes in how long a decision took.
    pub fn took_us(&self, time_us: u64) {
        if let Ok(mut times) = self.decision_times_us.try_borrow_mut() {
            times.push(time_us);
        }
    }

    /// Counts what the write path did.
    pub fn written(&self, written: Written) {
        self.add(Metric::IndexBlocksAdded, written.added_blocks);
        self.add(Metric::IndexBlocksEvicted, written.evicted_blocks);
        self.add(Metric::StoreUpdatesLost, written.lost_updates);
    }

    /// Tells Envoy what collected.
    pub fn flush(&self) {
        let counters = self.metrics.iter().chain(&self.decisions).chain(&self.failures);
        counters.for_each(Stat::flush);
        for time_us in self.decision_times_us.take() {
            self.record(Metric::DecisionTime, time_us);
        }
    }

    fn stat(&self, metric: Metric) -> Option<&Stat> {
        let position = Metric::ALL.iter().position(|other| *other == metric)?;
        self.metrics.get(position)
    }
}

/// Stats of one configured model.
#[derive(Debug)]
pub struct ModelStats {
    metrics: [Stat; ModelMetric::ALL.len()],
}

impl ModelStats {
    /// Defines the metrics of `model`.
    pub fn define(model: &str) -> Self {
        Self {
            metrics: ModelMetric::ALL
                .map(|metric| Stat::define(metric.definition().kind, &metric.name(model))),
        }
    }

    /// Counts a prompt that was placed.
    pub fn placed(&self, prompt_tokens: u64, predicted_cached_tokens: u64) {
        self.add(ModelMetric::PromptTokens, prompt_tokens);
        self.add(ModelMetric::PredictedCachedTokens, predicted_cached_tokens);
    }

    /// Counts what an answer said about the prediction.
    pub fn judged(&self, verdict: &Verdict) {
        let agrees = verdict.prompt_tokens == verdict.usage.prompt_tokens;
        let parity =
            if agrees { ModelMetric::ParityAgreements } else { ModelMetric::ParityDisagreements };
        self.add(parity, 1);
        self.add(ModelMetric::ReportedPromptTokens, u64::from(verdict.usage.prompt_tokens));
        if let Some(cached) = verdict.usage.cached_tokens {
            self.add(ModelMetric::ReportedCachedTokens, u64::from(cached));
        }
    }

    /// Shows whether the model is approximate.
    pub fn approximate(&self, is_approximate: bool) {
        if let Some(stat) = self.stat(ModelMetric::Approximate) {
            stat.record(u64::from(is_approximate));
        }
    }

    /// Tells Envoy what collected.
    pub fn flush(&self) {
        self.metrics.iter().for_each(Stat::flush);
    }

    /// Tokens of all workers so far.
    pub fn tokens(&self) -> ModelTokens {
        let total = |metric| self.stat(metric).map_or(0, Stat::total);
        ModelTokens {
            prompt: total(ModelMetric::PromptTokens),
            predicted_cached: total(ModelMetric::PredictedCachedTokens),
            reported_cached: total(ModelMetric::ReportedCachedTokens),
            reported_prompt: total(ModelMetric::ReportedPromptTokens),
        }
    }

    fn add(&self, metric: ModelMetric, count: u64) {
        if let Some(stat) = self.stat(metric) {
            stat.add(count);
        }
    }

    fn stat(&self, metric: ModelMetric) -> Option<&Stat> {
        let position = ModelMetric::ALL.iter().position(|other| *other == metric)?;
        self.metrics.get(position)
    }
}

/// Gauges of one configured backend.
#[derive(Debug)]
pub struct BackendStats {
    metrics: [Stat; BackendMetric::ALL.len()],
}

impl BackendStats {
    /// Defines the metrics of `backend`.
    pub fn define(backend: &str) -> Self {
        let define =
            |metric: BackendMetric| Stat::define(metric.definition().kind, &metric.name(backend));
        Self { metrics: BackendMetric::ALL.map(define) }
    }

    /// Sets a gauge.
    pub fn record(&self, metric: BackendMetric, value: u64) {
        let position = BackendMetric::ALL.iter().position(|other| *other == metric);
        if let Some(stat) = position.and_then(|position| self.metrics.get(position)) {
            stat.record(value);
        }
    }
}
