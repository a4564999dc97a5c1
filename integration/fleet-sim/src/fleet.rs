//! The fleet in virtual time: engines, Envoys and users, one event after the other.
//!
//! In: a fleet's description, an arm and a workload. Out: a [`Run`] with one record a request and
//! the engines' own counters. The order of events is fixed by their times and, where these are
//! equal, by the order in which they were queued, so the same seed gives the same run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::answer::Usage;
use warmpath_core::config::{Config, ConfigError};
use warmpath_core::ids::BlockHash;
use warmpath_core::metrics::Reason;
use warmpath_core::peers::message::MessageError;
use warmpath_core::route::TokenizedPrompt;
use warmpath_core::score::Match;
use warmpath_core::store::StoreError;
use warmpath_engine_sim::model::{
    Engine, EngineStats, Event, EventKind, Finished, Profile, ProfileError, Prompt,
    PromptShapeError, Reporting, RequestId, RequestSpec, SimTime, SubmitError,
};

use crate::arm::Arm;
use crate::envoy::{self, Envoy, RouteError, Sent, Truth};
use crate::text::{self, mix};
use crate::workload::{Arrival, Request, Workload};

/// How often VMs renew their leases.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What the fleet is made of.
#[derive(Clone, Debug)]
pub struct FleetSpec {
    /// Every engine's speed and memory.
    pub profile: Profile,
    /// How many engines.
    pub backends: usize,
    /// How many of them, the first ones, take twice as long for every step.
    pub slow_backends: usize,
    /// Tokens of KV memory that the core is told an engine has; `None` tells it nothing.
    pub told_kv_tokens: Option<u32>,
    /// How many Envoys; requests are spread over them at random.
    pub envoys: usize,
    /// How often Envoys tell each other what they do; `None` if never.
    pub told_every: Option<Duration>,
    /// Worker VMs in each.
    pub workers: usize,
    /// How requests are routed.
    pub arm: Arm,
    /// Seed of engines and Envoys.
    pub seed: u64,
}

/// One request's account.
#[derive(Clone, Debug)]
pub struct Record {
    /// Who asked.
    pub user: u32,
    /// The engine that served it.
    pub backend: usize,
    /// Why it went there.
    pub reason: Reason,
    /// Tokens that the core believed to be cached.
    pub predicted_cached_tokens: u32,
    /// Whether the residency estimate changed the pick.
    pub downgraded: bool,
    /// The engine's account.
    pub finished: Finished,
    /// When its last token came.
    pub finished_at: SimTime,
}

/// What happened.
#[derive(Debug)]
pub struct Run {
    /// How it was routed.
    pub arm: Arm,
    /// Requests in the order in which they ended.
    pub records: Vec<Record>,
    /// Requests that no engine could ever serve, for their length.
    pub refused: u64,
    /// Each engine's counters at the end.
    pub engines: Vec<EngineStats>,
}

/// Why a simulation stopped.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The profile cannot be run.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The core refused the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The core picked no backend.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A workload made an empty prompt.
    #[error(transparent)]
    Prompt(#[from] PromptShapeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An Envoy did not understand another.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// An engine refused a request for another reason than its length.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

struct InFlight {
    request: Request,
    envoy: usize,
    sent: Sent,
    answer: Vec<u32>,
}

/// A request in an engine's queue, as the oracle needs it: its blocks will be there.
struct Queued {
    id: u64,
    hashes: Vec<BlockHash>,
}

struct Fleet<'a> {
    spec: &'a FleetSpec,
    config: Arc<Config>,
    block_size_tokens: NonZeroU32,
    engines: Vec<Engine>,
    queued: Vec<Vec<Queued>>,
    envoys: Vec<Envoy>,
    workload: &'a mut dyn Workload,
    arrivals: BinaryHeap<Reverse<(SimTime, u64)>>,
    requests: AHashMap<u64, Request>,
    in_flight: AHashMap<u64, InFlight>,
    next_id: u64,
    run: Run,
}

/// Runs a workload to its end.
///
/// # Errors
/// [`FleetError`] when the fleet cannot be built or a request cannot be routed.
pub fn run(spec: &FleetSpec, workload: &mut dyn Workload) -> Result<Run, FleetError> {
    let mut fleet = Fleet::new(spec, workload)?;
    for arrival in fleet.workload.start() {
        fleet.expect(arrival);
    }
    let mut heartbeat_at = SimTime::ZERO;
    let mut events = Vec::new();
    loop {
        let next_engine = fleet
            .engines
            .iter()
            .enumerate()
            .filter_map(|(index, engine)| engine.next_event_at().map(|at| (at, index)))
            .min();
        let next_arrival = fleet.arrivals.peek().map(|Reverse((at, _))| *at);
        let now = match (next_engine, next_arrival) {
            (None, None) => break,
            (Some((at, _)), None) => at,
            (None, Some(at)) => at,
            (Some((engine_at, _)), Some(arrival_at)) => engine_at.min(arrival_at),
        };
        while heartbeat_at <= now {
            for envoy in &mut fleet.envoys {
                envoy.heartbeat(heartbeat_at)?;
            }
            heartbeat_at = heartbeat_at + HEARTBEAT;
        }
        while let Some((due, teller)) = fleet.next_telling().filter(|(due, _)| *due <= now) {
            fleet.tell(due, teller)?;
        }
        // What arrives when a step ends takes part in the next one.
        if next_arrival == Some(now) {
            if let Some(Reverse((_, id))) = fleet.arrivals.pop() {
                fleet.arrive(now, id)?;
            }
        } else if let Some((_, index)) = next_engine {
            fleet.engines[index].advance_to(now, &mut events);
            for event in events.drain(..) {
                fleet.happened(index, event)?;
            }
        }
    }
    let mut run = fleet.run;
    run.engines = fleet.engines.iter().map(Engine::stats).collect();
    Ok(run)
}

impl<'a> Fleet<'a> {
    fn new(spec: &'a FleetSpec, workload: &'a mut dyn Workload) -> Result<Self, FleetError> {
        let config = Arc::new(envoy::config(spec)?);
        let reporting = Reporting { tokens: workload.reads_answers(), cache_events: false };
        let engines = (0..spec.backends)
            .map(|index| {
                let mut engine = Engine::new(spec.profile.clone(), spec.seed)?;
                engine.set_slow_factor(if index < spec.slow_backends { 2.0 } else { 1.0 });
                engine.set_reporting(reporting);
                Ok(engine)
            })
            .collect::<Result<Vec<_>, ProfileError>>()?;
        let envoys = (0..spec.envoys as u64)
            .map(|index| {
                let seed = mix(spec.seed ^ mix(index));
                let mut envoy = Envoy::new(spec.arm, Arc::clone(&config), spec.workers, seed);
                if let Some(every) = spec.told_every {
                    envoy.open_to_peers(every);
                }
                envoy
            })
            .collect();
        Ok(Self {
            spec,
            block_size_tokens: envoy::block_size_tokens(&config),
            config,
            queued: engines.iter().map(|_| Vec::new()).collect(),
            engines,
            envoys,
            workload,
            arrivals: BinaryHeap::new(),
            requests: AHashMap::new(),
            in_flight: AHashMap::new(),
            next_id: 0,
            run: Run { arm: spec.arm, records: Vec::new(), refused: 0, engines: Vec::new() },
        })
    }

    /// When and which Envoy next tells the others something.
    fn next_telling(&self) -> Option<(SimTime, usize)> {
        let due = |(index, envoy): (usize, &Envoy)| envoy.tells_at().map(|due| (due, index));
        self.envoys.iter().enumerate().filter_map(due).min()
    }

    /// An Envoy tells all others what it did since the last time.
    fn tell(&mut self, at: SimTime, teller: usize) -> Result<(), FleetError> {
        for message in self.envoys[teller].messages(at)? {
            for hearer in (0..self.envoys.len()).filter(|hearer| *hearer != teller) {
                self.envoys[hearer].hear(at, &message)?;
            }
        }
        Ok(())
    }

    fn expect(&mut self, arrival: Arrival) {
        let id = self.next_id;
        self.next_id += 1;
        self.arrivals.push(Reverse((arrival.at, id)));
        self.requests.insert(id, arrival.request);
    }

    fn arrive(&mut self, now: SimTime, id: u64) -> Result<(), FleetError> {
        let Some(request) = self.requests.remove(&id) else { return Ok(()) };
        let tokens = text::tokens(&request.pieces);
        let context = tokens.len() as u64 + u64::from(request.output_tokens);
        if context > u64::from(self.spec.profile.context_tokens_max()) {
            // An engine would answer 400; the user goes on.
            self.run.refused += 1;
            if let Some(next) = self.workload.answered(now, &request, &[]) {
                self.expect(next);
            }
            return Ok(());
        }
        let hashes = text::router_hashes(&tokens, self.block_size_tokens);
        let prompt_tokens = tokens.len();
        let engine_prompt = text::engine_prompt(
            tokens,
            &hashes,
            self.block_size_tokens,
            self.workload.reads_answers(),
        )?;
        let prompt = TokenizedPrompt {
            model_index: 0,
            prompt_tokens,
            hashes: hashes.clone(),
            output_tokens_max: request.output_tokens_max,
            session: Some(BlockHash(mix(u64::from(request.user)))),
            cache_read_tokens_max: None,
        };
        // Which connection, and so which Envoy and worker, depends on the request alone.
        let draw = mix(self.spec.seed ^ mix(id));
        let envoy = (draw % self.envoys.len() as u64) as usize;
        let worker = ((draw >> 32) % self.envoys[envoy].workers() as u64) as usize;
        let (engines, queued, config) = (&self.engines, &self.queued, &self.config);
        let truth = || truth(engines, queued, config, &engine_prompt, &hashes);
        let sent = self.envoys[envoy].send(worker, now, prompt, truth)?;
        let backend = sent.backend.0;
        let spec = RequestSpec {
            id: RequestId(id),
            prompt: engine_prompt,
            output_tokens: request.output_tokens,
        };
        self.engines[backend].submit(now, spec)?;
        self.queued[backend].push(Queued { id, hashes });
        self.in_flight.insert(id, InFlight { request, envoy, sent, answer: Vec::new() });
        Ok(())
    }

    fn happened(&mut self, backend: usize, event: Event) -> Result<(), FleetError> {
        let id = event.id.0;
        match event.kind {
            EventKind::Admitted { .. } => self.queued[backend].retain(|queued| queued.id != id),
            EventKind::FirstToken { token } => {
                if let Some(flight) = self.in_flight.get_mut(&id) {
                    self.envoys[flight.envoy].first_byte(event.at, &mut flight.sent);
                    flight.answer.push(token);
                }
            }
            EventKind::Token { token } => {
                if let Some(flight) = self.in_flight.get_mut(&id) {
                    flight.answer.push(token);
                }
            }
            EventKind::Preempted => {}
            EventKind::Finished(finished) => self.finished(backend, id, event.at, finished),
        }
        Ok(())
    }

    fn finished(&mut self, backend: usize, id: u64, at: SimTime, finished: Finished) {
        let Some(flight) = self.in_flight.remove(&id) else { return };
        let usage = Usage {
            prompt_tokens: finished.prompt_tokens,
            cached_tokens: Some(finished.cached_tokens),
            completion_tokens: finished.output_tokens,
        };
        self.run.records.push(Record {
            user: flight.request.user,
            backend,
            reason: flight.sent.reason,
            predicted_cached_tokens: flight.sent.predicted_cached_tokens,
            downgraded: flight.sent.downgraded,
            finished,
            finished_at: at,
        });
        self.envoys[flight.envoy].finish(at, flight.sent, usage);
        if let Some(next) = self.workload.answered(at, &flight.request, &flight.answer) {
            self.expect(next);
        }
    }
}

/// What every cache holds of a prompt, or will hold once the requests in its queue are admitted.
fn truth(
    engines: &[Engine],
    queued: &[Vec<Queued>],
    config: &Config,
    prompt: &Prompt,
    hashes: &[BlockHash],
) -> Truth {
    let block = engines.first().map_or(1, |engine| engine.profile().block_size_tokens);
    let mut truth = Truth::new();
    for ((engine, queued), backend) in engines.iter().zip(queued).zip(&config.backends) {
        let resident = (engine.resident_tokens(prompt) / block) as usize;
        let coming = queued
            .iter()
            .map(|other| other.hashes.iter().zip(hashes).take_while(|(a, b)| a == b).count())
            .max()
            .unwrap_or(0);
        let blocks = resident.max(coming);
        if blocks > 0 {
            let found = Match {
                sent_blocks: blocks,
                common_blocks: blocks,
                held_blocks: blocks,
                resident_blocks: blocks as f64,
                predicted_blocks: blocks as f64,
                epochs: Vec::new(),
            };
            truth.insert(backend.id, found);
        }
    }
    truth
}
