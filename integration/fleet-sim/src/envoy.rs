//! One simulated Envoy: worker VMs that share a store, each running the real core.

use std::num::NonZeroU32;
use std::sync::Arc;

use ahash::AHashMap;
use warmpath_core::answer::Usage;
use warmpath_core::config::{Config, ConfigError};
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict, Writer};
use warmpath_core::ids::{BackendId, BackendIndex, NowMs};
use warmpath_core::load::Ledger;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Router, TokenizedPrompt};
use warmpath_core::score::Match;
use warmpath_core::store::{MemoryStore, StoreError};
use warmpath_engine_sim::model::SimTime;

use crate::arm::Arm;
use crate::fleet::FleetSpec;
use crate::text::{self, mix};

/// The wall clock at the start of a simulation: any time after the epoch, for ages reckon back.
const START_MS: u64 = 1_700_000_000_000;

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
}

/// One Envoy.
pub struct Envoy {
    arm: Arm,
    config: Arc<Config>,
    store: MemoryStore,
    vms: Vec<Vm>,
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
                Vm { ledger: Ledger::new(seed | 1), turn: 0, seed }
            })
            .collect();
        Self { arm, config, store: MemoryStore::default(), vms }
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
        Ok(Sent { backend, predicted_cached_tokens, downgraded, reason, vm: vm_index, dispatched })
    }

    /// The first byte of the answer came.
    pub fn first_byte(&mut self, at: SimTime, sent: &mut Sent) {
        let mut writer = self.writer(sent.vm, core_now(at));
        writer.first_byte(&mut sent.dispatched, true);
        writer.settle();
    }

    /// The answer is complete.
    pub fn finish(&mut self, at: SimTime, sent: Sent, usage: Usage) -> Option<Verdict> {
        let mut writer = self.writer(sent.vm, core_now(at));
        let (_, verdict) = writer.finish(sent.dispatched, Outcome::Answered, Some(usage));
        writer.settle();
        verdict
    }

    /// Renews the workers' leases.
    ///
    /// # Errors
    /// When the store fails.
    pub fn heartbeat(&mut self, at: SimTime) -> Result<(), StoreError> {
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
