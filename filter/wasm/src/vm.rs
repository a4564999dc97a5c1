//! What all plugins and streams of this VM share.
//!
//! A configuration change makes a new root context in the same VM while streams of the old one
//! go on. Load and loaded models belong to the VM, so that neither is lost or doubled.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::rc::{Rc, Weak};

use warmpath_core::config::BundleSource;
use warmpath_core::ids::NowMs;
use warmpath_core::load::{Ledger, Totals};
use warmpath_core::metrics::Metric;
use warmpath_core::model::Model;
use warmpath_core::peers;

use crate::backlog::Ended;
use crate::host::{self, HostStore};
use crate::plugin::Plugin;
use crate::stats::Stats;

/// The VM's state.
pub struct Vm {
    /// Tells it from all other VMs.
    nonce: u64,
    /// Requests in flight, by backend.
    pub ledger: RefCell<Ledger>,
    /// Loaded models and their bundles. They live as long as a routing configuration has them: a VM's
    /// memory never shrinks, but what is freed is used again.
    models: RefCell<Vec<(BundleSource, Weak<Model>)>>,
    /// Envoy's stats.
    pub stats: Stats,
    /// Routing configurations, the newest last. Older ones live on while their streams and their root
    /// contexts do.
    plugins: RefCell<Vec<Weak<Plugin>>>,
    /// Requests that are over and not yet learnt from.
    ended: RefCell<Vec<Ended>>,
    dice: RefCell<Dice>,
}

struct Dice {
    rng: fastrand::Rng,
    turn: u64,
}

thread_local! {
    static VM: Rc<Vm> = Rc::new(Vm::start());
}

impl Vm {
    /// The state of this VM, made at the first call.
    pub fn get() -> Rc<Self> {
        VM.with(Rc::clone)
    }

    fn start() -> Self {
        // The standard library seeds its hasher from the host's randomness.
        let nonce = RandomState::new().hash_one(host::now().0);
        let mut rng = fastrand::Rng::with_seed(nonce);
        let turn = rng.u64(..);
        Self {
            nonce,
            ledger: RefCell::new(Ledger::new(nonce)),
            models: RefCell::default(),
            stats: Stats::define(),
            plugins: RefCell::default(),
            ended: RefCell::default(),
            dice: RefCell::new(Dice { rng, turn }),
        }
    }

    /// What all live VMs and the peers have in flight; `None` while the ledger is in use, or the host fails.
    pub fn totals(&self, now: NowMs) -> Option<Totals> {
        self.look_at_peers(now);
        self.ledger.try_borrow().ok()?.totals(&HostStore, now).ok()
    }

    /// Looks at what peers have in flight.
    pub fn look_at_peers(&self, now: NowMs) {
        let looked = self.ledger.try_borrow_mut().map(|mut it| it.look_at_peers(&HostStore, now));
        if matches!(looked, Ok(Err(_))) {
            self.stats.add(Metric::StoreUpdatesLost, 1);
        }
    }

    /// What this Envoy calls itself before its peers; `None` while the host fails.
    pub fn envoy(&self) -> Option<u64> {
        peers::envoy_id(&HostStore, self.nonce).ok()
    }

    /// Notes what peers are to be told, as long as a routing configuration has any.
    pub fn open_to_peers(&self) {
        let has_peers = self.teller().is_some();
        if let Ok(mut ledger) = self.ledger.try_borrow_mut() {
            ledger.open_to_peers(has_peers);
        }
    }

    /// The newest routing configuration that has peers: it is the one that tells them, for all.
    pub fn teller(&self) -> Option<Rc<Plugin>> {
        self.living().find(|plugin| plugin.config.peers.is_some())
    }

    /// The model of a bundle, if a routing configuration has it loaded.
    pub fn model(&self, source: &BundleSource) -> Option<Rc<Model>> {
        let models = self.models.try_borrow().ok()?;
        models.iter().filter(|(of, _)| of == source).find_map(|(_, model)| model.upgrade())
    }

    /// Lets further routing configurations have a model.
    pub fn keep_model(&self, source: &BundleSource, model: &Rc<Model>) {
        if let Ok(mut models) = self.models.try_borrow_mut() {
            models.retain(|(_, model)| model.strong_count() > 0);
            models.push((source.clone(), Rc::downgrade(model)));
        }
    }

    /// Takes in a new routing configuration.
    pub fn register(&self, plugin: &Rc<Plugin>) {
        if let Ok(mut plugins) = self.plugins.try_borrow_mut() {
            plugins.retain(|plugin| plugin.strong_count() > 0);
            plugins.push(Rc::downgrade(plugin));
        }
    }

    /// The newest routing configuration called `name`, or the newest of all.
    pub fn newest(&self, name: Option<&str>) -> Option<Rc<Plugin>> {
        let mut living = self.living();
        living.find(|plugin| name.is_none_or(|name| plugin.config.name == name))
    }

    /// All routing configurations, the newest first.
    pub fn living(&self) -> impl Iterator<Item = Rc<Plugin>> + use<> {
        let plugins = self.plugins.try_borrow().map(|plugins| plugins.clone()).unwrap_or_default();
        plugins.into_iter().rev().filter_map(|plugin| plugin.upgrade())
    }

    /// Keeps a request that is over for later; returns how many wait.
    pub fn put_off(&self, request: Ended) -> usize {
        let Ok(mut ended) = self.ended.try_borrow_mut() else { return 0 };
        ended.push(request);
        ended.len()
    }

    /// The requests that wait.
    pub fn take_ended(&self) -> Vec<Ended> {
        self.ended.take()
    }

    /// A random number, and the number of this decision in the VM. Workers start at random turns,
    /// so that their round robins do not march in step.
    pub fn draw(&self) -> (u64, u64) {
        let Ok(mut dice) = self.dice.try_borrow_mut() else { return (0, 0) };
        dice.turn = dice.turn.wrapping_add(1);
        (dice.rng.u64(..), dice.turn)
    }
}
