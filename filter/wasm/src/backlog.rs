//! What answers taught, taken in after they have left.
//!
//! Envoy writes an answer to its client when the callbacks of its last bytes are over, those of access
//! logging included. So what can wait does: requests in flight are counted at once, while cache clocks,
//! health, parity and Envoy's stats follow at a tick of the root context a few milliseconds later, for
//! all requests that ended meanwhile. Failures do not wait, nor does the outcome where a backend was in
//! trouble.

use std::rc::Rc;

use warmpath_core::answer::UsageScanner;
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict};
use warmpath_core::ids::NowMs;
use warmpath_core::metrics::{Failure, Metric};
use warmpath_core::parity;

use crate::host::{self, HostStore};
use crate::plugin::Plugin;

/// Requests that may wait; the next one takes all in at once.
pub const ENDED_MAX: usize = 256;

/// A request that is over, its load given back.
pub struct Ended {
    /// Whose it was.
    pub plugin: Rc<Plugin>,
    /// The request.
    pub dispatched: Dispatched,
    /// When it ended.
    pub at: NowMs,
    /// How it ended.
    pub outcome: Outcome,
    /// How its backend failed, if it did.
    pub failure: Option<Failure>,
    /// What its answer said of usage.
    pub scanner: Option<UsageScanner>,
}

impl Ended {
    /// Takes in what it taught.
    fn conclude(self) {
        let plugin = &self.plugin;
        let usage = self.scanner.and_then(UsageScanner::finish);
        let (dispatched, outcome) = (self.dispatched, self.outcome);
        let result = plugin.write(self.at, |writer| writer.finish(dispatched, outcome, usage));
        let Some((written, verdict)) = result else { return };
        let stats = &plugin.vm.stats;
        stats.written(written);
        if let Some(failure) = self.failure {
            stats.failed(failure);
        }
        if let Some(verdict) = verdict {
            judge(plugin, &verdict);
        }
    }
}

fn judge(plugin: &Plugin, verdict: &Verdict) {
    if let Some(stats) = plugin.model_stats.get(verdict.model_index) {
        stats.judged(verdict);
    }
    if let Some(model) = plugin.config.models.get(verdict.model_index) {
        let (ours, theirs) = (verdict.prompt_tokens, verdict.usage.prompt_tokens);
        if parity::record(&HostStore, &model.name, ours, theirs).is_err() {
            plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
        }
    }
}

/// Takes in all that waits in `plugin`'s VM, and tells the other VMs and Envoy.
pub fn settle(plugin: &Plugin) {
    // First bytes came before what ended; its load was given back when it did.
    if let Some(written) = plugin.write(host::now(), |writer| writer.settle()) {
        plugin.vm.stats.written(written);
    }
    for ended in plugin.vm.take_ended() {
        let owner = Rc::clone(&ended.plugin);
        ended.conclude();
        // A plugin that was replaced has stats of its own.
        if !std::ptr::eq(&*owner, plugin) {
            owner.flush_stats();
        }
    }
    plugin.flush_stats();
}
