//! The task that owns an engine and runs it against the scaled clock.
//!
//! What comes in: commands from handlers, and the passing of time. What goes out: one
//! message a request and wake-up, with all the tokens that came due. The task sleeps until
//! the engine's next event or the next command; it never spins.
//!
//! The channel for commands is bounded. The one for a request's progress is not, but cannot hold
//! more than the request's own output, which the context length bounds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use ahash::AHashMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use super::ServeError;
use super::clock::ScaledClock;
use super::command::{Command, Progress, Submission};
use super::config::{ConfigError, ServerConfig};
use super::fault::{Fault, FaultSwitch};
use super::metrics::{EngineMetrics, MetricsView};
use super::record::{RecordState, RequestLog};
use super::response::Words;
use super::tokens::PromptTokenizer;
use crate::limits::COMMANDS_QUEUED_MAX;
use crate::model::{
    Engine, Event, EventKind, OutputVocabulary, ProfileError, RequestId, RequestSpec, SimTime,
};

/// A handler's access to an engine.
#[derive(Clone)]
pub(super) struct EngineHandle(Arc<Shared>);

struct Shared {
    config: Arc<ServerConfig>,
    tokenizer: Arc<dyn PromptTokenizer>,
    words: Words,
    commands: mpsc::Sender<Command>,
    log: Mutex<RequestLog>,
    fault: FaultSwitch,
    metrics: RwLock<MetricsView>,
    next_id: AtomicU64,
}

/// The engine's task is gone, which happens only while the server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub(super) struct EngineGone;

impl EngineHandle {
    /// An engine, and the future that runs it.
    pub(super) fn start(
        config: Arc<ServerConfig>,
        tokenizer: Arc<dyn PromptTokenizer>,
    ) -> Result<(Self, impl Future<Output = ()> + Send + 'static), ServeError> {
        let words = Words::new(tokenizer.output_words());
        let metrics = EngineMetrics::new(&config)?;
        let (commands, inbox) = mpsc::channel(COMMANDS_QUEUED_MAX);
        let shared = Arc::new(Shared {
            words,
            commands,
            log: Mutex::default(),
            fault: FaultSwitch::default(),
            metrics: RwLock::new(metrics.view()),
            next_id: AtomicU64::new(0),
            config,
            tokenizer,
        });
        let driver = Driver {
            engine: shared.new_engine().map_err(ConfigError::from)?,
            metrics,
            clock: ScaledClock::start(shared.config.speed),
            active: AHashMap::new(),
            events: Vec::new(),
            touched: Vec::new(),
            shared: Arc::clone(&shared),
        };
        Ok((Self(shared), driver.run(inbox)))
    }

    pub(super) fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    pub(super) fn tokenizer(&self) -> &dyn PromptTokenizer {
        &*self.0.tokenizer
    }

    pub(super) fn words(&self) -> &Words {
        &self.0.words
    }

    pub(super) fn fault(&self) -> &FaultSwitch {
        &self.0.fault
    }

    pub(super) fn log(&self) -> MutexGuard<'_, RequestLog> {
        self.0.log()
    }

    pub(super) fn metrics(&self) -> MetricsView {
        self.0.metrics.read().expect("no holder of the metrics panics").clone()
    }

    /// A number that no other request of this engine has.
    pub(super) fn next_id(&self) -> RequestId {
        RequestId(self.0.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends a command; waits while the queue is full.
    pub(super) async fn send(&self, command: Command) -> Result<(), EngineGone> {
        self.0.commands.send(command).await.map_err(|_| EngineGone)
    }

    /// Sends a command that carries the way back, and waits for the answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, EngineGone> {
        let (answer, answered) = oneshot::channel();
        self.send(command(answer)).await?;
        answered.await.map_err(|_| EngineGone)
    }

    /// Aborts requests from a place that cannot wait.
    pub(super) fn abort(&self, ids: Vec<RequestId>) {
        let Err(mpsc::error::TrySendError::Full(command)) =
            self.0.commands.try_send(Command::Abort(ids))
        else {
            return;
        };
        let commands = self.0.commands.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { commands.send(command).await });
        }
    }
}

impl Shared {
    fn new_engine(&self) -> Result<Engine, ProfileError> {
        let mut engine = Engine::new(self.config.profile.clone(), self.config.seed)?;
        if let Some(vocabulary) = OutputVocabulary::new(self.words.ids()) {
            engine.set_output_vocabulary(vocabulary);
        }
        Ok(engine)
    }

    fn log(&self) -> MutexGuard<'_, RequestLog> {
        self.log.lock().expect("no holder of the log panics")
    }
}

/// A request in the engine, seen from the driver.
#[derive(Debug)]
struct Active {
    index: u32,
    record: u64,
    progress: mpsc::UnboundedSender<Progress>,
    arrived_at: SimTime,
    prompt_tokens: u32,
    cached_tokens: u32,
    /// Tokens not yet sent.
    pending: Vec<u32>,
    finished: bool,
}

struct Driver {
    shared: Arc<Shared>,
    engine: Engine,
    metrics: EngineMetrics,
    clock: ScaledClock,
    active: AHashMap<RequestId, Active>,
    events: Vec<Event>,
    /// Requests with something to send.
    touched: Vec<RequestId>,
}

impl Driver {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        loop {
            let next_at = self.engine.next_event_at().filter(|_| !self.clock.is_paused());
            let wake_at = next_at.map(|at| self.clock.instant_of(at));
            let sleep = async {
                match wake_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = inbox.recv() => {
                    let Some(command) = command else { return };
                    self.advance();
                    self.handle(command);
                    // What is queued already arrived at the same time and shares the next step.
                    for _ in 0..COMMANDS_QUEUED_MAX {
                        let Ok(command) = inbox.try_recv() else { break };
                        self.handle(command);
                    }
                }
                () = sleep => {}
            }
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.engine.advance_to(self.clock.now(), &mut self.events);
        // Before anybody hears of the tokens, so that a scrape after an answer counts it.
        self.metrics.update(&self.engine.stats());
        self.dispatch();
    }

    fn handle(&mut self, command: Command) {
        // Whoever asked may be gone by the time of the answer, which then concerns nobody.
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::Abort(ids) => self.abort(&ids),
            Command::SetFault(fault, answer) => {
                self.set_fault(fault);
                let _ = answer.send(());
            }
            Command::ResetPrefixCache(answer) => {
                let _ = answer.send(self.engine.reset_prefix_cache());
            }
            Command::Stats(answer) => {
                let _ = answer.send((self.engine.stats(), self.clock.now()));
            }
            Command::Reset(answer) => {
                self.reset();
                let _ = answer.send(());
            }
        }
    }

    fn set_fault(&mut self, fault: Fault) {
        self.engine.set_slow_factor(fault.slow_factor);
        self.clock.set_paused(fault.pause);
        self.shared.fault.set(fault);
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { items, progress, taken } = submission;
        let now = self.clock.now();
        let ids: Vec<RequestId> = items.iter().map(|item| item.id).collect();
        for item in items {
            let prompt_tokens = item.prompt.token_count();
            let spec =
                RequestSpec { id: item.id, prompt: item.prompt, output_tokens: item.output_tokens };
            if let Err(error) = self.engine.submit(now, spec) {
                self.abort(&ids);
                let _ = taken.send(Err(error));
                return;
            }
            if let Some(record) = self.shared.log().get_mut(item.record) {
                record.arrived_ms = Some(now.as_millis_f64());
            }
            let active = Active {
                index: item.index,
                record: item.record,
                progress: progress.clone(),
                arrived_at: now,
                prompt_tokens,
                cached_tokens: 0,
                pending: Vec::new(),
                finished: false,
            };
            self.active.insert(item.id, active);
        }
        let _ = taken.send(Ok(()));
    }

    fn abort(&mut self, ids: &[RequestId]) {
        for id in ids {
            self.engine.abort(*id);
            let Some(active) = self.active.remove(id) else {
                continue;
            };
            if let Some(record) = self.shared.log().get_mut(active.record) {
                record.state = RecordState::Aborted;
                record.e2e_ms = Some((self.clock.now() - active.arrived_at).as_secs_f64() * 1e3);
            }
        }
    }

    fn reset(&mut self) {
        // Both were built from the same configuration before.
        let (Ok(engine), Ok(metrics)) =
            (self.shared.new_engine(), EngineMetrics::new(&self.shared.config))
        else {
            return;
        };
        self.engine = engine;
        self.engine.advance_to(self.clock.now(), &mut self.events);
        self.metrics = metrics;
        *self.shared.metrics.write().expect("no holder of the metrics panics") =
            self.metrics.view();
        self.set_fault(Fault::default());
        self.shared.log().clear();
        // Dropping their senders ends the streams.
        self.active.clear();
    }

    /// Sends what the engine's events gave.
    fn dispatch(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut log = shared.log();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.note(event, &mut log);
        }
        self.events = events;
        for id in std::mem::take(&mut self.touched) {
            let Some(active) = self.active.get_mut(&id) else {
                continue;
            };
            if let Some(record) = log.get_mut(active.record) {
                record.output_tokens += active.pending.len() as u32;
            }
            let progress = Progress {
                index: active.index,
                tokens: std::mem::take(&mut active.pending),
                prompt_tokens: active.prompt_tokens,
                cached_tokens: active.cached_tokens,
                finished: active.finished,
            };
            let finished = progress.finished;
            // Without a receiver the request is being aborted: dropping the answer does that.
            let _ = active.progress.send(progress);
            if finished {
                self.active.remove(&id);
            }
        }
    }

    /// Takes over one event.
    fn note(&mut self, event: Event, log: &mut RequestLog) {
        let Some(active) = self.active.get_mut(&event.id) else {
            return;
        };
        let since_arrival = event.at - active.arrived_at;
        let ms = since_arrival.as_secs_f64() * 1e3;
        let record = log.get_mut(active.record);
        match event.kind {
            EventKind::Admitted { cached_tokens, resumed: false } => {
                active.cached_tokens = cached_tokens;
                if let Some(record) = record {
                    record.cached_tokens = Some(cached_tokens);
                    record.state = RecordState::Running;
                }
            }
            EventKind::FirstToken { token } => {
                active.pending.push(token);
                self.touched.push(event.id);
                self.metrics.observe_first_token(since_arrival.as_secs_f64());
                if let Some(record) = record {
                    record.ttft_ms = Some(ms);
                }
            }
            EventKind::Token { token } => {
                if active.pending.is_empty() {
                    self.touched.push(event.id);
                }
                active.pending.push(token);
            }
            EventKind::Finished(account) => {
                active.finished = true;
                self.metrics.observe_finished(&account, event.at);
                if let Some(record) = record {
                    record.state = RecordState::Finished;
                    record.e2e_ms = Some(ms);
                }
            }
            EventKind::Admitted { resumed: true, .. } | EventKind::Preempted => {}
        }
    }
}
