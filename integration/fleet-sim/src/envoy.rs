//! One simulated Envoy: worker VMs that share a store, each running the real core.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::answer::Usage;
use warmpath_core::config::{Config, ConfigError};
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict, Writer};
use warmpath_core::ids::{BackendId, BackendIndex, NowMs};
use warmpath_core::load::Ledger;
use warmpath_core::peers::{self, Message};
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Router, TokenizedPrompt};
use warmpath_core::score::Match;
use warmpath_core::store::{MemoryStore, StoreError};
use warmpath_engine_sim::model::SimTime;

use crate::arm::Arm;
use crate::fleet::{FleetError, FleetSpec};
use crate::text::{self, mix};

/// The wall clock at the start of a simulation: any time after the epoch, for ages reckon back.
const START_MS: u64 = 1_700_000_000_000;

/// How long what an Envoy did waits before it tells its peers: the filter's next tick, and the way.
const TELLING_DELAY: Duration = Duration::from_millis(6);

/// The moment as the core sees it.
#[must_use]
pub fn core_now(at: SimTime) -> NowMs {
    NowMs(START_MS + at.as_nanos() / 1_000_000)
}

/// The core's configuration for a fleet.
///
/// # Errors
/// When there are more backends than the core takes.
pub fn config(spec: &FleetSpec) -> Result<Config, ConfigError> {
    let list: Vec<serde_json::Value> = (0..spec.backends)
        .map(|index| serde_json::json!({ "name": format!("e{index}"), "cluster": format!("e{index}") }))
        .collect();
    let json = serde_json::json!({
        "kv_capacity_tokens": spec.told_kv_tokens,
        "backends": list,
        "models": [{
            "name": text::MODEL,
            "block_size_tokens": spec.profile.block_size_tokens,
            "bundle": { "cluster": "none", "path": "/none" },
        }],
    });
    let mut config = Config::parse(json.to_string().as_bytes())?;
    config.policy = spec.arm.policy();
    config.weights = spec.arm.weights();
    Ok(config)
}

/// What the oracle knows of a backend's cache: leading blocks resident, or about to be.
pub type Truth = AHashMap<BackendId, Match>;

struct Vm {
    ledger: Ledger,
    turn: u64,
    seed: u64,
    /// When it tells its peers what it did; `None` while it did nothing.
    tells_at: Option<SimTime>,
}

/// One Envoy.
pub struct Envoy {
    arm: Arm,
    config: Arc<Config>,
    store: MemoryStore,
    vms: Vec<Vm>,
    told_every: Option<Duration>,
}

/// A request that left an Envoy.
#[derive(Debug)]
pub struct Sent {
    /// Where it went.
    pub backend: BackendIndex,
    /// Tokens that the core believes to be cached there.
    pub predicted_cached_tokens: u32,
    /// Whether the residency estimate changed the pick.
    pub downgraded: bool,
    /// Why it went there.
    pub reason: warmpath_core::metrics::Reason,
    vm: usize,
    dispatched: Dispatched,
}

/// Why an Envoy could not route.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The core left the choice to Envoy, which a simulation does not have.
    #[error("no backend was picked: {0}")]
    NoPick(&'static str),
    /// The in-memory store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Envoy {
    /// An Envoy with `workers` worker VMs.
    #[must_use]
    pub fn new(arm: Arm, config: Arc<Config>, workers: usize, seed: u64) -> Self {
        let vms = (0..workers as u64)
            .map(|index| {
                let seed = mix(seed ^ mix(index));
                let ledger = Ledger::new(seed | 1);
                Vm { ledger, turn: 0, seed, tells_at: None }
            })
            .collect();
        Self { arm, config, store: MemoryStore::default(), vms, told_every: None }
    }

    /// Makes it note what peers are to be told, at most once in `every`.
    pub fn open_to_peers(&mut self, every: Duration) {
        self.told_every = Some(every);
        for vm in &mut self.vms {
            vm.ledger.open_to_peers(true);
        }
    }

    /// When it next has something to tell.
    #[must_use]
    pub fn tells_at(&self) -> Option<SimTime> {
        self.vms.iter().filter_map(|vm| vm.tells_at).min()
    }

    /// Sees when a VM has something to tell, after what happened to it.
    fn plan_telling(&mut self, vm: usize, at: SimTime) {
        let Some(every) = self.told_every else { return };
        let vm = &mut self.vms[vm];
        let due_ms = vm.ledger.tells_in_ms(every.as_millis() as u64, core_now(at));
        let due = due_ms.map(|ms| at + TELLING_DELAY.max(Duration::from_millis(ms)));
        vm.tells_at = vm.tells_at.into_iter().chain(due).min();
    }

    /// What its VMs have to tell by then, a message each that has news.
    ///
    /// # Errors
    /// When the store fails.
    pub fn messages(&mut self, at: SimTime) -> Result<Vec<Vec<u8>>, StoreError> {
        let now = core_now(at);
        let mut messages = Vec::new();
        for index in 0..self.vms.len() {
            let vm = &mut self.vms[index];
            if vm.tells_at.is_none_or(|due| due > at) {
                continue;
            }
            vm.tells_at = None;
            let envoy = peers::envoy_id(&self.store, vm.seed | 1)?;
            messages.push(vm.ledger.message(envoy, now));
            self.plan_telling(index, at);
        }
        Ok(messages)
    }

    /// Takes in a peer's message, on any worker.
    ///
    /// # Errors
    /// When it is not understood, or the store fails.
    pub fn hear(&mut self, at: SimTime, message: &[u8]) -> Result<(), FleetError> {
        let (message, _) = Message::decode(message)?;
        if peers::loads::record(&self.store, &message, core_now(at))? {
            let vm = (message.vm % self.vms.len() as u64) as usize;
            self.writer(vm, core_now(at)).take_in(&[], message.events);
        }
        Ok(())
    }

    /// How many worker VMs it has.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.vms.len()
    }

    /// Routes and dispatches a prompt on one worker. `truth` is asked only by the oracle.
    ///
    /// # Errors
    /// When no backend was picked.
    pub fn send(
        &mut self,
        vm_index: usize,
        at: SimTime,
        prompt: TokenizedPrompt,
        truth: impl FnOnce() -> Truth,
    ) -> Result<Sent, RouteError> {
        let now = core_now(at);
        let vm = &mut self.vms[vm_index];
        vm.turn += 1;
        vm.ledger.look_at_peers(&self.store, now)?;
        let router = Router {
            config: &self.config,
            models: &[],
            store: &self.store,
            ledger: &vm.ledger,
            reported: &NOTHING,
            explorer: None,
            now,
            random: mix(vm.seed ^ vm.turn),
            turn: vm.turn,
        };
        let decision = match self.arm {
            Arm::Oracle => {
                let path = router.walk(&prompt)?;
                router.place(prompt, path, &truth())
            }
            Arm::NoResidency => {
                let path = router.walk(&prompt)?;
                let matches = warmpath_core::score::matches(&path, |_| 1.0);
                router.place(prompt, path, &matches)
            }
            Arm::Policy(_) | Arm::Without(_) => router.route_tokenized(prompt),
        };
        let reason = decision.reason();
        let Decision::Pick(pick) = &decision else {
            return Err(RouteError::NoPick(reason.label()));
        };
        let (backend, predicted_cached_tokens) = (pick.order[0], pick.prompt.cached_tokens);
        let downgraded = pick.downgraded;
        let (dispatched, _) = self.writer(vm_index, now).dispatch(decision);
        self.plan_telling(vm_index, at);
        Ok(Sent { backend, predicted_cached_tokens, downgraded, reason, vm: vm_index, dispatched })
    }

    /// The first byte of the answer came.
    pub fn first_byte(&mut self, at: SimTime, sent: &mut Sent) {
        let mut writer = self.writer(sent.vm, core_now(at));
        writer.first_byte(&mut sent.dispatched, true);
        writer.settle();
        self.plan_telling(sent.vm, at);
    }

    /// The answer is complete.
    pub fn finish(&mut self, at: SimTime, sent: Sent, usage: Usage) -> Option<Verdict> {
        let vm = sent.vm;
        let mut writer = self.writer(vm, core_now(at));
        let (_, verdict) = writer.finish(sent.dispatched, Outcome::Answered, Some(usage));
        writer.settle();
        self.plan_telling(vm, at);
        verdict
    }

    /// Renews the workers' leases.
    ///
    /// # Errors
    /// When the store fails.
    pub fn heartbeat(&mut self, at: SimTime) -> Result<(), StoreError> {
        for vm in 0..self.vms.len() {
            self.plan_telling(vm, at);
        }
        for vm in &mut self.vms {
            vm.ledger.heartbeat(&self.store, core_now(at))?;
        }
        Ok(())
    }

    fn writer(&mut self, vm: usize, now: NowMs) -> Writer<'_, MemoryStore> {
        Writer { config: &self.config, store: &self.store, ledger: &mut self.vms[vm].ledger, now }
    }
}

/// Block size of a configuration's only model.
#[must_use]
pub fn block_size_tokens(config: &Config) -> NonZeroU32 {
    config.models.first().map_or(NonZeroU32::MIN, |model| model.block_size_tokens)
}
