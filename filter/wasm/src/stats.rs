//! Envoy's stats, resolved once a VM.

use warmpath_core::dispatch::{Verdict, Written};
use warmpath_core::metrics::{self, Kind, Metric, ModelMetric, Reason};

use crate::host;

/// Ids of all metrics. A metric that the host refused is not recorded.
#[derive(Debug)]
pub struct Stats {
    metrics: [Option<u32>; Metric::ALL.len()],
    decisions: [Option<u32>; Reason::ALL.len()],
}

impl Stats {
    /// Defines every metric.
    pub fn define() -> Self {
        Self {
            metrics: Metric::ALL.map(|metric| {
                let (name, kind) = metric.definition();
                host::define_metric(kind, name)
            }),
            decisions: Reason::ALL
                .map(|reason| host::define_metric(Kind::Counter, &metrics::decisions_name(reason))),
        }
    }

    /// Adds to a counter.
    pub fn add(&self, metric: Metric, count: u64) {
        if let Some(id) = self.id(metric) {
            host::add_to_metric(id, count);
        }
    }

    /// Sets a gauge or records a value of a histogram.
    pub fn record(&self, metric: Metric, value: u64) {
        if let Some(id) = self.id(metric) {
            host::record_metric(id, value);
        }
    }

    /// Counts a decision.
    pub fn decided(&self, reason: Reason) {
        let position = Reason::ALL.iter().position(|other| *other == reason);
        let id = position.and_then(|position| self.decisions.get(position)).copied().flatten();
        if let Some(id) = id {
            host::add_to_metric(id, 1);
        }
    }

    /// Counts what the write path did.
    pub fn written(&self, written: Written) {
        self.add(Metric::IndexBlocksAdded, written.added_blocks);
        self.add(Metric::IndexBlocksEvicted, written.evicted_blocks);
        self.add(Metric::StoreUpdatesLost, written.lost_updates);
    }

    fn id(&self, metric: Metric) -> Option<u32> {
        let position = Metric::ALL.iter().position(|other| *other == metric)?;
        self.metrics.get(position).copied().flatten()
    }
}

/// Stats of one configured model.
#[derive(Debug)]
pub struct ModelStats {
    metrics: [Option<u32>; ModelMetric::ALL.len()],
}

impl ModelStats {
    /// Defines the metrics of `model`.
    pub fn define(model: &str) -> Self {
        Self {
            metrics: ModelMetric::ALL
                .map(|metric| host::define_metric(metric.definition().1, &metric.name(model))),
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
        if let Some(id) = self.id(ModelMetric::Approximate) {
            host::record_metric(id, u64::from(is_approximate));
        }
    }

    fn add(&self, metric: ModelMetric, count: u64) {
        if let Some(id) = self.id(metric) {
            host::add_to_metric(id, count);
        }
    }

    fn id(&self, metric: ModelMetric) -> Option<u32> {
        let position = ModelMetric::ALL.iter().position(|other| *other == metric)?;
        self.metrics.get(position).copied().flatten()
    }
}
