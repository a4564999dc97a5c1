//! One routing configuration in one VM: what its streams, its root context and the internal endpoints
//! need of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::config::{Config, Source};
use warmpath_core::dispatch::Writer;
use warmpath_core::endpoints;
use warmpath_core::explore::Explorer;
use warmpath_core::health::{Availability, HealthTable};
use warmpath_core::ids::{BackendId, NowMs};
use warmpath_core::live::Live;
use warmpath_core::load::Totals;
use warmpath_core::metrics::{BackendMetric, Metric};
use warmpath_core::model::Model;
use warmpath_core::parity;
use warmpath_core::residency;

use crate::host::{self, HostStore};
use crate::stats::{BackendStats, ModelStats};
use crate::vm::Vm;

/// How old the view of endpoints and reports may be that decisions read: a quarter of the time in which
/// they change.
const LIVE_MS: u64 = 250;

/// How often a VM looks whether the note of an observed backend is due.
const NOTE_MS: u64 = 5_000;

/// How long what answers taught may wait. Longer than an answer takes to leave, short beside a prefill.
const SETTLE: Duration = Duration::from_millis(5);

/// What a plugin's streams need of it. Streams keep it alive when the configuration changes.
pub struct Plugin {
    /// The checked configuration.
    pub config: Config,
    /// Loaded models, at the positions of the configuration's.
    pub models: RefCell<Vec<Option<Rc<Model>>>>,
    /// Stats of the models, at the same positions.
    pub model_stats: Vec<ModelStats>,
    /// The VM's state.
    pub vm: Rc<Vm>,
    /// This VM's exploration.
    pub explorer: RefCell<Explorer>,
    /// Whether the root context's next tick was asked for soon.
    is_hurried: Cell<bool>,
    backend_stats: Vec<(BackendId, BackendStats)>,
    live: RefCell<(NowMs, Rc<Live>)>,
    /// When this VM last noted that an address served.
    noted: RefCell<AHashMap<String, NowMs>>,
}

impl Plugin {
    /// The plugin of a configuration whose models are as far as they are loaded.
    pub fn new(config: Config, models: Vec<Option<Rc<Model>>>, vm: Rc<Vm>) -> Self {
        let model_stats =
            config.models.iter().map(|model| ModelStats::define(&model.name)).collect();
        let configured = config.backends.iter();
        let backend_stats = configured.map(|it| (it.id, BackendStats::define(&it.name))).collect();
        let live = RefCell::new((NowMs(0), Rc::new(Live::configured(&config))));
        Self {
            config,
            models: RefCell::new(models),
            model_stats,
            vm,
            explorer: RefCell::default(),
            is_hurried: Cell::new(false),
            backend_stats,
            live,
            noted: RefCell::default(),
        }
    }

    /// The configuration as it is now, a moment old at most.
    pub fn live(&self, now: NowMs) -> Rc<Live> {
        let Ok(mut live) = self.live.try_borrow_mut() else {
            return Rc::new(Live::configured(&self.config));
        };
        if now.has_passed(LIVE_MS, live.0)
            && let Ok(refreshed) = live.1.refresh(&HostStore, &self.config)
        {
            *live = (now, Rc::new(refreshed));
        }
        Rc::clone(&live.1)
    }

    /// Makes the next look at the configuration a fresh one.
    pub fn refresh(&self) {
        if let Ok(mut live) = self.live.try_borrow_mut() {
            live.0 = NowMs(0);
        }
    }

    /// Notes that `address`, a host of the endpoint cluster, served.
    pub fn note_served(&self, address: &str, now: NowMs) {
        let Ok(mut noted) = self.noted.try_borrow_mut() else { return };
        if noted.get(address).is_some_and(|at| !now.has_passed(NOTE_MS, *at)) {
            return;
        }
        // What went from the list is noted again when it serves again.
        noted.retain(|_, at| !now.has_passed(NOTE_MS, *at));
        noted.insert(address.to_owned(), now);
        self.keep_endpoint(address, now);
        if let Ok(mut ledger) = self.vm.ledger.try_borrow_mut() {
            ledger.outbox.serves(&self.config.name, address);
        }
    }

    /// Keeps `address`, a host of the endpoint cluster that serves, in the list of backends.
    pub fn keep_endpoint(&self, address: &str, now: NowMs) {
        match endpoints::seen(&HostStore, &self.config.name, address, now) {
            Ok(true) => {
                log::info!("warmpath: {address} serves and is a backend from now on");
                if let Ok(mut explorer) = self.explorer.try_borrow_mut() {
                    explorer.found(now);
                }
                self.refresh();
            }
            Ok(false) => {}
            Err(_) => self.vm.stats.add(Metric::StoreUpdatesLost, 1),
        }
    }

    /// Runs `change` on the write path.
    pub fn write<T>(
        &self,
        now: NowMs,
        change: impl FnOnce(&mut Writer<'_, HostStore>) -> T,
    ) -> Option<T> {
        let live = self.live(now);
        let mut ledger = self.vm.ledger.try_borrow_mut().ok()?;
        let config = &live.config;
        Some(change(&mut Writer { config, store: &HostStore, ledger: &mut ledger, now }))
    }

    /// In a stream's callbacks: asks for the root context's tick in a few milliseconds.
    pub fn settle_soon(&self) {
        if !self.is_hurried.replace(true) {
            host::set_tick_period(SETTLE);
        }
    }

    /// In the tick: whether it was asked for, so that the period is to be set again.
    pub fn take_hurry(&self) -> bool {
        self.is_hurried.take()
    }

    /// Tells Envoy what the VM and the plugin's models counted.
    pub fn flush_stats(&self) {
        self.vm.stats.flush();
        self.model_stats.iter().for_each(ModelStats::flush);
    }

    /// Shows which models are approximate, and warns about them once a minute.
    pub fn watch_parity(&self, now: NowMs) {
        for (model, stats) in self.config.models.iter().zip(&self.model_stats) {
            let Ok(parity) = parity::load(&HostStore, &model.name) else { continue };
            stats.approximate(parity.is_approximate());
            if parity.is_approximate()
                && parity::claim_warning(&HostStore, now, &model.name) == Ok(true)
            {
                log::warn!(
                    "warmpath: model {} is approximate: {} of the last {} prompts had another \
                     length in the engine, the last one {} tokens by our count and {} by the \
                     engine's; is its bundle made from the engine's own tokenizer and template?",
                    model.name,
                    parity.disagreements(),
                    parity.answers,
                    parity.ours_tokens,
                    parity.theirs_tokens,
                );
            }
        }
    }

    /// The configuration was replaced: gauges of backends and models that no other one has would stay
    /// what they are for as long as Envoy runs.
    pub fn retire_gauges(&self) {
        let others: Vec<Rc<Self>> =
            self.vm.living().filter(|it| !std::ptr::eq(&**it, self)).collect();
        for (id, stats) in &self.backend_stats {
            if !others.iter().any(|it| it.backend_stats.iter().any(|(other, _)| other == id)) {
                BackendMetric::ALL.iter().for_each(|metric| stats.record(*metric, 0));
            }
        }
        for (model, stats) in self.config.models.iter().zip(&self.model_stats) {
            if !others.iter().any(|it| it.config.models.iter().any(|it| it.name == model.name)) {
                stats.approximate(false);
            }
        }
    }

    /// Sets the gauges of the backends.
    pub fn show_backends(&self, live: &Live, totals: &Totals, now: NowMs) {
        let Ok(health) = HealthTable::load(&HostStore) else { return };
        let backends = &live.config.backends;
        let is_down = |id| {
            let reported_at = live.reported.reported_at(id);
            health.availability(id, reported_at, now) == Availability::Down
        };
        let down = backends.iter().filter(|backend| is_down(backend.id)).count();
        let stats = &self.vm.stats;
        stats.record(Metric::Backends, backends.len() as u64);
        stats.record(Metric::BackendsDown, down as u64);
        let envoys = self.vm.ledger.try_borrow().map_or(0, |ledger| ledger.peers.envoys);
        stats.record(Metric::Peers, envoys as u64);
        stats.record(Metric::BlockSizeContradictions, live.contradictions.len() as u64);
        let configured = backends.iter().filter(|it| it.source == Source::Configured);
        for (backend, (_, stats)) in configured.zip(&self.backend_stats) {
            let load = totals.load(backend.id);
            let sighting = totals.sightings.get(&backend.id);
            let others = live.reported.others(backend.id, sighting, now);
            stats.record(BackendMetric::Up, u64::from(!is_down(backend.id)));
            stats.record(BackendMetric::InFlight, load.running.into());
            stats.record(BackendMetric::PendingPrefillTokens, load.pending_prefill_tokens.into());
            stats.record(BackendMetric::OthersInFlight, others.running.into());
            let capacity = backend.kv_capacity_tokens.map_or(0, |tokens| tokens.get().into());
            stats.record(BackendMetric::KvCapacityTokens, capacity);
            if let Ok(clock) = residency::load(&HostStore, backend.id, 0) {
                stats.record(BackendMetric::CacheGeneration, clock.generation.into());
            }
        }
    }
}
