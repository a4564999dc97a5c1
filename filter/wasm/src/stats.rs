//! Envoy's stats, resolved once a VM.

use warmpath_core::dispatch::{Verdict, Written};
use warmpath_core::metrics::{self, Kind, Metric, Reason};

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

    /// Counts what an answer said about the prediction.
    pub fn judged(&self, verdict: &Verdict) {
        let agrees = verdict.prompt_tokens == verdict.usage.prompt_tokens;
        let parity = if agrees { Metric::ParityAgreements } else { Metric::ParityDisagreements };
        self.add(parity, 1);
        self.add(Metric::ReportedPromptTokens, u64::from(verdict.usage.prompt_tokens));
        if let Some(cached) = verdict.usage.cached_tokens {
            self.add(Metric::ReportedCachedTokens, u64::from(cached));
        }
    }

    fn id(&self, metric: Metric) -> Option<u32> {
        let position = Metric::ALL.iter().position(|other| *other == metric)?;
        self.metrics.get(position).copied().flatten()
    }
}
