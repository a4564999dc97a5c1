//! Fetches the models' bundles by callout, until each is there.
//!
//! Failures are retried for as long as it takes, with a growing pause: a file that is not there
//! yet, or a listener that is not up yet, must not need a restart. Until then the model's
//! requests are routed by load.

use std::rc::Rc;
use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::config::BundleSource;
use warmpath_core::ids::NowMs;
use warmpath_core::limits::BUNDLE_BYTES_MAX;
use warmpath_core::metrics::Metric;
use warmpath_core::model::Model;

use crate::host::{self, Callout};
use crate::vm::Vm;

/// Time for one fetch: 32 MiB over loopback takes a fraction of a second.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// First pause after a failure: Envoy's own listener comes up within it.
const PAUSE_FIRST_MS: u64 = 200;

/// Longest pause after a failure.
const PAUSE_MAX_MS: u64 = 30_000;

/// Fetches of one configuration.
#[derive(Default)]
pub struct Bundles {
    wanted: Vec<Wanted>,
    tokens: AHashMap<u32, usize>,
}

struct Wanted {
    /// Positions of the models that are made from it.
    model_indices: Vec<usize>,
    source: BundleSource,
    state: State,
    failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Due(NowMs),
    Fetching,
    Loaded,
}

impl Bundles {
    /// Wants the bundle of the model at each position, the same one once. Those that this VM has
    /// already are not fetched again, and returned.
    pub fn want(
        sources: impl Iterator<Item = BundleSource>,
        vm: &Vm,
    ) -> (Self, Vec<Option<Rc<Model>>>) {
        let mut bundles = Self::default();
        let mut models = Vec::new();
        for (model_index, source) in sources.enumerate() {
            let model = vm.model(&source);
            let state = if model.is_some() { State::Loaded } else { State::Due(NowMs(0)) };
            models.push(model);
            match bundles.wanted.iter_mut().find(|wanted| wanted.source == source) {
                Some(twin) => twin.model_indices.push(model_index),
                None => {
                    let model_indices = vec![model_index];
                    bundles.wanted.push(Wanted { model_indices, source, state, failures: 0 });
                }
            }
        }
        (bundles, models)
    }

    /// Whether all bundles are loaded.
    pub fn complete(&self) -> bool {
        self.wanted.iter().all(|wanted| wanted.state == State::Loaded)
    }

    /// Starts the fetches that are due.
    pub fn fetch(&mut self, now: NowMs, vm: &Vm) {
        for (position, wanted) in self.wanted.iter_mut().enumerate() {
            if !matches!(wanted.state, State::Due(at) if now.is_due(at, PAUSE_MAX_MS)) {
                continue;
            }
            let BundleSource { cluster, authority, path } = &wanted.source;
            let callout = Callout { cluster, authority, path, more: &[], timeout: FETCH_TIMEOUT };
            match callout.get() {
                Some(token) => {
                    self.tokens.insert(token, position);
                    wanted.state = State::Fetching;
                }
                None => wanted.failed(now, vm, "the cluster is unknown"),
            }
        }
    }

    /// A callout ended. Returns the positions and the model if it brought one.
    pub fn answered(
        &mut self,
        token: u32,
        has_headers: bool,
        body_bytes: usize,
        vm: &Vm,
    ) -> Option<(&[usize], Rc<Model>)> {
        let position = self.tokens.remove(&token)?;
        let wanted = self.wanted.get_mut(position)?;
        // The fetch of another configuration was faster. A VM's memory never shrinks: one copy is enough.
        if let Some(model) = vm.model(&wanted.source) {
            wanted.state = State::Loaded;
            return Some((&wanted.model_indices, model));
        }
        let now = host::now();
        // Without headers the callout failed, and asking for its body would trap.
        if !has_headers {
            wanted.failed(now, vm, "no answer");
            return None;
        }
        if host::callout_header(":status").as_deref() != Some(b"200") {
            wanted.failed(now, vm, "the status is not 200");
            return None;
        }
        if body_bytes > BUNDLE_BYTES_MAX {
            wanted.failed(now, vm, "the bundle is larger than 32 MiB");
            return None;
        }
        let bytes = host::callout_body(body_bytes).unwrap_or_default();
        let started = host::Instant::now();
        match Model::from_bundle(bytes, vm.draw().0) {
            Ok(model) => {
                wanted.state = State::Loaded;
                vm.stats.add(Metric::BundlesLoaded, 1);
                vm.stats.record(Metric::VmMemoryBytes, host::memory_bytes());
                log::info!(
                    "warmpath: bundle {} of {body_bytes} bytes loaded in {} us, memory {} bytes",
                    wanted.source.path,
                    host::Instant::now().since_us(started),
                    host::memory_bytes(),
                );
                let model = Rc::new(model);
                vm.keep_model(&wanted.source, &model);
                Some((&wanted.model_indices, model))
            }
            Err(error) => {
                wanted.failed(now, vm, &error.to_string());
                None
            }
        }
    }
}

impl Wanted {
    fn failed(&mut self, now: NowMs, vm: &Vm, why: &str) {
        let pause_ms = (PAUSE_FIRST_MS << self.failures.min(16)).min(PAUSE_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Due(NowMs(now.0.saturating_add(pause_ms)));
        vm.stats.add(Metric::BundleFailures, 1);
        log::warn!(
            "warmpath: bundle {}{} not loaded (attempt {}): {why}; again in {pause_ms} ms",
            self.source.cluster,
            self.source.path,
            self.failures,
        );
    }
}
