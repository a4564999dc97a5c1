//! The write path: what a decision, and then its outcome, do to the shared state.
//!
//! [`Dispatched`] is one request in flight. It is made when the request leaves, told of the
//! answer's headers and of its first byte, and finished exactly once, however the request ended.

use std::sync::Arc;

use crate::answer::{AnswerKind, Usage};
use crate::config::{Backend, Config, Source};
use crate::endpoints;
use crate::health::{self, HealthTable};
use crate::ids::NowMs;
use crate::index::{Change, Holder, Index, Sent, Touch};
use crate::load::{Ledger, PrefillTime, Ticket, Work};
use crate::peers::message::name_hash;
use crate::peers::{SentId, SentTo};
use crate::residency::{self, Activity, Clock, Evidence, Mark};
use crate::route::{Decision, PlacedPrompt};
use crate::score::Match;
use crate::store::{SharedStore, StoreError};

/// The parts of a VM's state that the write path changes.
pub struct Writer<'a, S> {
    /// The configuration under which the request was routed.
    pub config: &'a Config,
    /// The state shared by all workers.
    pub store: &'a S,
    /// This VM's own load.
    pub ledger: &'a mut Ledger,
    /// The moment of the event.
    pub now: NowMs,
}

/// A request that was sent on.
#[derive(Debug)]
pub struct Dispatched {
    /// The backend that the decision named.
    picked: Option<Arc<Backend>>,
    /// The backend that has the request as far as is known: the pick, until another answers.
    credited: Option<Arc<Backend>>,
    ticket: Option<Ticket>,
    /// What the ended load taught.
    prefill: Option<PrefillTime>,
    prompt: Option<PlacedPrompt>,
    changes: Vec<Change>,
    /// What the credited backend's clock was told, and where it stood then.
    told: Option<(Activity, Mark)>,
    /// Runs of the prompt's leading blocks that were sent to the pick before: how many, and their
    /// reuse distance in blocks.
    distances: Vec<(u32, u32)>,
    first_byte_seen: bool,
    is_awaited: bool,
    answer_kind: Option<AnswerKind>,
    /// What peers are to be told of it.
    noted: Option<SentId>,
}

impl Dispatched {
    /// The backend that the decision named; `None` when it was left to Envoy.
    #[must_use]
    pub fn picked(&self) -> Option<&Arc<Backend>> {
        self.picked.as_ref()
    }

    /// The backend that has the request, as far as is known.
    #[must_use]
    pub fn credited(&self) -> Option<&Arc<Backend>> {
        self.credited.as_ref()
    }

    /// Whether the credited backend is the picked one.
    fn is_as_picked(&self) -> bool {
        let id = |backend: &Option<Arc<Backend>>| backend.as_ref().map(|backend| backend.id);
        id(&self.credited) == id(&self.picked)
    }

    /// Tokens in a block, by the prompt's model or else by the first one.
    fn block_size_tokens(&self, config: &Config) -> u32 {
        let of_first = || config.models.first().map_or(1, |model| model.block_size_tokens.get());
        self.prompt.as_ref().map_or_else(of_first, |prompt| prompt.block_size_tokens)
    }

    /// Whether others wait for the outcome: the backend was in trouble when it got the request.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Gives the load back, if it was not yet: the request is over. [`Writer::settle`] tells the others.
    pub fn release(&mut self, ledger: &mut Ledger) {
        if let Some(ticket) = self.ticket.take() {
            self.prefill = ledger.release(ticket);
        }
    }

    /// An answer of this kind has begun, of which usage is expected.
    pub fn answers_in(&mut self, kind: AnswerKind) {
        self.answer_kind = Some(kind);
    }

    /// Position in the configuration of the model whose prompt was read, so that the engine's
    /// usage can be compared; `None` when none was.
    #[must_use]
    pub fn model_index(&self) -> Option<usize> {
        self.prompt.as_ref().map(|prompt| prompt.model_index)
    }
}

/// How a request ended, as far as the backend is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The backend answered with a success.
    Answered,
    /// The backend refused the request (4xx, 500): it lives, and computed nothing.
    Refused,
    /// The backend refused it because it is full (429).
    Shed,
    /// The client left. Says nothing about the backend; before the first byte its prefill was
    /// given up.
    ClientLeft,
    /// Envoy itself answered, for reasons of its own: the backend never saw the request.
    NotSent,
    /// No connection, a reset, a timeout or an overload answer: the backend failed.
    BackendFailed,
}

/// What a request changed, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Blocks that the tree did not have.
    pub added_blocks: u64,
    /// Blocks that went from the tree, to make room or taken back.
    pub evicted_blocks: u64,
    /// Updates of the store that were lost.
    pub lost_updates: u64,
}

impl Written {
    /// Counts an update that was lost.
    fn note<T>(&mut self, result: Result<T, StoreError>) {
        self.lost_updates += u64::from(result.is_err());
    }
}

/// What the answer said about the prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Position of the model in the configuration.
    pub model_index: usize,
    /// Tokens of the prompt by our count.
    pub prompt_tokens: u32,
    /// Tokens that were predicted to be cached.
    pub predicted_cached_tokens: u32,
    /// What the engine said.
    pub usage: Usage,
}

impl<S: SharedStore> Writer<'_, S> {
    /// Counts a decision's load and enters its blocks as held, so that the next request like it
    /// follows before this one is answered.
    pub fn dispatch(&mut self, decision: Decision) -> (Dispatched, Written) {
        let first = decision.order().first().copied();
        let picked = first.and_then(|index| self.config.backend(index)).cloned();
        let mut written = Written::default();
        let mut dispatched = Dispatched {
            picked: picked.clone(),
            credited: picked.clone(),
            ticket: None,
            prefill: None,
            prompt: decision.into_prompt(),
            changes: Vec::new(),
            told: None,
            distances: Vec::new(),
            first_byte_seen: false,
            is_awaited: false,
            answer_kind: None,
            noted: None,
        };
        if let Some(backend) = &picked {
            // A backend back from failures gets one trial; who loses the claim goes there anyway:
            // the order was decided, and two trials hurt less than a second decision.
            written.note(health::claim_trial(self.store, self.now, backend.id));
            let matched = dispatched.prompt.as_mut().map(|it| std::mem::take(&mut it.matched));
            self.send_to(&mut dispatched, backend, &matched.unwrap_or_default(), &mut written);
        }
        (dispatched, written)
    }

    /// The answer's headers came from `served`, after so many attempts of Envoy's. If that is not
    /// the pick, `served` gets the credit, and the pick failed or is gone.
    pub fn served(
        &mut self,
        dispatched: &mut Dispatched,
        served: &Arc<Backend>,
        attempts: u32,
    ) -> Written {
        let mut written = Written::default();
        if dispatched.credited.as_ref().is_some_and(|credited| credited.id == served.id) {
            return written;
        }
        let picked = dispatched.credited.clone();
        match picked.filter(|backend| attempts <= 1 && backend.source == Source::Observed) {
            // Envoy did not even try the pick: the address is none of its cluster's.
            Some(ghost) => {
                self.take_back(dispatched, &mut written);
                written.note(endpoints::remove(self.store, &self.config.name, ghost.id));
            }
            None => self.failed(dispatched, &mut written),
        }
        dispatched.credited = Some(Arc::clone(served));
        dispatched.release(self.ledger);
        // The pick's match says nothing about this backend's clock.
        self.send_to(dispatched, served, &Match::default(), &mut written);
        written
    }

    /// Something answered that is no backend, after so many attempts of Envoy's: nothing is learnt from it,
    /// but that the pick failed if Envoy tried more than once.
    pub fn served_by_stranger(&mut self, dispatched: &mut Dispatched, attempts: u32) -> Written {
        let mut written = Written::default();
        if attempts > 1 {
            self.failed(dispatched, &mut written);
        } else {
            self.take_back(dispatched, &mut written);
            if let Some(backend) = &dispatched.credited {
                written.note(health::give_back_trial(self.store, self.now, backend.id));
            }
        }
        dispatched.release(self.ledger);
        dispatched.credited = None;
        written
    }

    /// Enters the prompt for `backend`, which holds `matched` of it, and counts the load there.
    fn send_to(
        &mut self,
        dispatched: &mut Dispatched,
        backend: &Backend,
        matched: &Match,
        written: &mut Written,
    ) {
        if let Some(prompt) = &dispatched.prompt {
            let entered = self.enter(backend, prompt, matched, written);
            if entered.is_news {
                dispatched.noted = self.note_sent(backend, prompt);
            }
            dispatched.changes = entered.changes;
            dispatched.told = Some(entered.told);
            dispatched.distances = entered.distances;
        }
        let health = HealthTable::load(self.store).unwrap_or_default();
        dispatched.is_awaited = health.get(backend.id).is_some();
        let work = dispatched.prompt.as_ref().map_or_else(Work::default, work);
        let (ticket, result) = self.ledger.dispatch(self.store, self.now, backend.id, work);
        written.note(result);
        dispatched.ticket = Some(ticket);
    }

    /// The first byte of the answer's body passed: the prefill is done. [`Writer::settle`] tells the
    /// others.
    pub fn first_byte(&mut self, dispatched: &mut Dispatched, is_good: bool) {
        dispatched.first_byte_seen = true;
        if let (Some(noted), true) = (dispatched.noted, is_good) {
            self.ledger.outbox.answered(noted);
        }
        if let Some(ticket) = &mut dispatched.ticket {
            self.ledger.first_byte(self.now, ticket, is_good);
        }
    }

    /// Tells the other VMs which backends answer, and what ended.
    pub fn settle(&mut self) -> Written {
        let mut written = Written::default();
        for (backend, at) in self.ledger.take_answering() {
            written.note(health::answers(self.store, at, backend));
        }
        written.note(self.ledger.publish(self.store, self.now));
        written
    }

    /// The request is over. Gives the load back and judges the prediction.
    pub fn finish(
        &mut self,
        mut dispatched: Dispatched,
        outcome: Outcome,
        usage: Option<Usage>,
    ) -> (Written, Option<Verdict>) {
        let mut written = Written::default();
        dispatched.release(self.ledger);
        let usage = usage.map(|usage| believable(&dispatched, usage));
        if outcome == Outcome::Answered {
            self.learn_pace(&dispatched, usage);
        }
        let Some(backend) = dispatched.credited.clone() else { return (written, None) };
        match outcome {
            Outcome::Answered => {}
            Outcome::BackendFailed => {
                self.failed(&mut dispatched, &mut written);
                return (written, None);
            }
            Outcome::Refused => {
                self.take_back(&mut dispatched, &mut written);
                self.succeeded(&backend, &mut written);
                return (written, None);
            }
            Outcome::Shed => {
                self.take_back(&mut dispatched, &mut written);
                written.note(health::shed(self.store, self.now, backend.id));
                return (written, None);
            }
            Outcome::ClientLeft | Outcome::NotSent => {
                if outcome == Outcome::NotSent || !dispatched.first_byte_seen {
                    self.take_back(&mut dispatched, &mut written);
                }
                written.note(health::give_back_trial(self.store, self.now, backend.id));
                return (written, None);
            }
        }
        self.succeeded(&backend, &mut written);
        if let Some(noted) = dispatched.noted.take() {
            self.ledger.outbox.answered(noted);
        }
        let (Some(prompt), Some(usage)) = (&dispatched.prompt, usage) else {
            return (written, None);
        };
        self.decoded(&backend, prompt, &dispatched, usage, &mut written);
        // What another backend than the pick had cached was not predicted.
        let judged =
            dispatched.is_as_picked() && !prompt.is_approximate && usage.prompt_tokens != 0;
        let verdict = judged.then_some(Verdict {
            model_index: prompt.model_index,
            prompt_tokens: u32::try_from(prompt.prompt_tokens).unwrap_or(u32::MAX),
            predicted_cached_tokens: prompt.cached_tokens,
            usage,
        });
        (written, verdict)
    }

    /// Learns the backend's speed. Whoever else than the pick served is not the ticket's backend.
    fn learn_pace(&mut self, dispatched: &Dispatched, usage: Option<Usage>) {
        if let (Some(prompt), Some(prefill), true) =
            (&dispatched.prompt, dispatched.prefill, dispatched.is_as_picked())
            && !prompt.is_opaque
        {
            let prompt_tokens = u32::try_from(prompt.prompt_tokens).unwrap_or(u32::MAX);
            let cached = usage.and_then(|usage| usage.cached_tokens);
            let cached = cached.unwrap_or(prompt.cached_tokens);
            self.ledger.learn_pace(prefill, prompt_tokens.saturating_sub(cached));
        }
    }

    /// Takes back what was entered for the credited backend, and notes its failure.
    fn failed(&mut self, dispatched: &mut Dispatched, written: &mut Written) {
        self.take_back(dispatched, written);
        let Some(backend) = &dispatched.credited else { return };
        let block_size_tokens = dispatched.block_size_tokens(self.config);
        for engine in self.config.engines_of(backend) {
            let Ok(failures) = health::failed(self.store, self.now, engine.id) else {
                written.lost_updates += 1;
                continue;
            };
            // Once for each of its deaths; the clock's next life knows nothing of what it held.
            if failures == health::FAILURES_OF_THE_DEAD {
                self.change_clock(engine, block_size_tokens, written, Clock::restart);
                if engine.source == Source::Observed {
                    written.note(endpoints::remove(self.store, &self.config.name, engine.id));
                }
            }
        }
    }

    /// The backend answered: its server lives.
    fn succeeded(&self, backend: &Backend, written: &mut Written) {
        for engine in self.config.engines_of(backend) {
            written.note(health::succeeded(self.store, self.now, engine.id));
        }
    }

    /// Takes back what was entered for the credited backend: it has not stored it.
    fn take_back(&mut self, dispatched: &mut Dispatched, written: &mut Written) {
        let changes = std::mem::take(&mut dispatched.changes);
        if let Some(backend) = &dispatched.credited {
            if let Some(noted) = dispatched.noted.take() {
                self.ledger.outbox.taken_back(noted);
            }
            let taken_back = self.index().take_back(self.store, backend.id, &changes);
            written.evicted_blocks += taken_back.removed_blocks as u64;
            written.lost_updates += taken_back.lost_updates as u64;
            // The clock counts what is there, whoever brought it.
            let told = dispatched.told.take().filter(|_| !taken_back.is_shared);
            if let Some((activity, after)) = told {
                let result = residency::change(self.store, backend.id, 0, |clock| {
                    clock.take_back(&activity, after);
                });
                written.lost_updates += u64::from(result.is_err());
            }
        }
    }

    /// Moves the backend's clock and enters the prompt's blocks with the new date.
    pub(crate) fn enter(
        &self,
        backend: &Backend,
        prompt: &PlacedPrompt,
        matched: &Match,
        written: &mut Written,
    ) -> Entered {
        let total_blocks = prompt.hashes.len() as u32;
        let resident = matched.resident_blocks.round() as u32;
        let activity = Activity {
            allocated_blocks: total_blocks.saturating_sub(resident),
            moved: matched.epochs.clone(),
            touched_blocks: total_blocks,
        };
        let mut distances = Vec::new();
        let clock = self.change_clock(backend, prompt.block_size_tokens, written, |clock| {
            let distance = |&(epoch, blocks)| Some((blocks, clock.distance_blocks(epoch)?));
            distances = matched.epochs.iter().map_while(distance).collect();
            clock.record(&activity);
        });
        let touch = Touch { backend: backend.id, epoch: clock.epoch, generation: clock.generation };
        let staleness = |holder: &Holder| {
            if holder.backend == backend.id {
                clock.staleness(holder.generation, holder.epoch)
            } else {
                // Other clocks are not at hand; their epochs are of about the same size.
                clock.epoch.saturating_sub(holder.epoch) as f32
            }
        };
        let retained = prompt.window.map(|window| {
            window.retains(prompt.cacheable_blocks(), matched.common_blocks, matched.sent_blocks)
        });
        let retained = retained.unwrap_or_default();
        let sent = Sent { hashes: &prompt.hashes, path: &prompt.path, retained: &retained };
        let entered = self.index().enter(self.store, sent, touch, &staleness);
        written.added_blocks += entered.added_blocks as u64;
        written.evicted_blocks += entered.evicted_blocks as u64;
        written.lost_updates += entered.lost_updates as u64;
        let is_news = entered.written_nodes > 0 || activity.allocated_blocks > 0;
        let told = (activity, clock.mark());
        Entered { changes: entered.changes, told, distances, is_news }
    }

    /// Notes for the peers that a prompt was sent.
    fn note_sent(&mut self, backend: &Backend, prompt: &PlacedPrompt) -> Option<SentId> {
        if !self.ledger.outbox.is_open() {
            return None;
        }
        let sent = SentTo {
            backend: backend.id,
            model: name_hash(&self.config.models.get(prompt.model_index)?.name),
            block_size_tokens: prompt.block_size_tokens,
            prompt_tokens: u32::try_from(prompt.prompt_tokens).unwrap_or(u32::MAX),
            hashes: &prompt.hashes,
        };
        self.ledger.outbox.sent(sent, self.now)
    }

    /// The output filled blocks too, and the engine says what it had of the prompt.
    fn decoded(
        &mut self,
        backend: &Backend,
        prompt: &PlacedPrompt,
        dispatched: &Dispatched,
        usage: Usage,
        written: &mut Written,
    ) {
        let partial = prompt.prompt_tokens as u32 % prompt.block_size_tokens.max(1);
        let blocks = partial
            .saturating_add(usage.completion_tokens)
            .div_ceil(prompt.block_size_tokens.max(1));
        let activity =
            Activity { allocated_blocks: blocks, moved: Vec::new(), touched_blocks: blocks };
        self.ledger.outbox.decoded(backend.id, blocks);
        let asked = dispatched.told.as_ref().map(|(_, mark)| *mark).unwrap_or_default();
        let kind = dispatched.answer_kind.filter(|_| prompt.says_what_was_cached());
        self.change_clock(backend, prompt.block_size_tokens, written, |clock| {
            let cached_tokens = match (usage.cached_tokens, kind) {
                (None, Some(kind)) if usage.prompt_tokens != 0 => clock.meant_by_silence(kind),
                (said, _) => said,
            };
            if let (Some(said), Some(kind)) = (usage.cached_tokens, kind) {
                clock.reports_in(kind, said);
            }
            clock.learn(asked, &evidence(prompt, &dispatched.distances, cached_tokens));
            clock.record(&activity);
        });
    }

    fn index(&self) -> Index {
        Index::new(self.config.index_buckets)
    }

    fn change_clock(
        &self,
        backend: &Backend,
        block_size_tokens: u32,
        written: &mut Written,
        change: impl FnMut(&mut Clock),
    ) -> Clock {
        let capacity = backend.kv_capacity_blocks(block_size_tokens);
        let result = residency::change(self.store, backend.id, capacity, change);
        result.unwrap_or_else(|_| {
            written.lost_updates += 1;
            Clock::new(capacity)
        })
    }
}

/// What entering a prompt for a backend did.
pub(crate) struct Entered {
    changes: Vec<Change>,
    told: (Activity, Mark),
    /// Distances of the matched blocks until then.
    distances: Vec<(u32, u32)>,
    /// Whether the tree or the backend's cache is not what it was before.
    is_news: bool,
}

/// `usage`, without cached tokens that are not the prompt's.
fn believable(dispatched: &Dispatched, usage: Usage) -> Usage {
    let is_meant = dispatched.prompt.as_ref().is_some_and(PlacedPrompt::says_what_was_cached);
    Usage { cached_tokens: usage.cached_tokens.filter(|_| is_meant), ..usage }
}

/// How much of each run of matched blocks the engine found in its cache; nothing when it does not
/// say.
fn evidence(
    prompt: &PlacedPrompt,
    distances: &[(u32, u32)],
    cached_tokens: Option<u32>,
) -> Vec<Evidence> {
    let Some(cached_tokens) = cached_tokens else { return Vec::new() };
    let block_size = prompt.block_size_tokens.max(1);
    let mut cached_blocks = cached_tokens / block_size;
    // The engine computes at least the last token, so a last full block is never found.
    let mut possible_blocks = prompt.cacheable_blocks() as u32;
    let mut evidence = Vec::with_capacity(distances.len());
    for &(blocks, distance_blocks) in distances {
        let blocks = blocks.min(possible_blocks);
        if blocks == 0 {
            break;
        }
        let found = blocks.min(cached_blocks);
        possible_blocks -= blocks;
        cached_blocks -= found;
        evidence.push(Evidence { distance_blocks, resident: found as f32 / blocks as f32 });
    }
    evidence
}

fn work(prompt: &PlacedPrompt) -> Work<'_> {
    let prompt_tokens = u32::try_from(prompt.prompt_tokens).unwrap_or(u32::MAX);
    Work {
        pending_prefill_tokens: prompt_tokens.saturating_sub(prompt.cached_tokens),
        context_tokens: prompt_tokens.saturating_add(prompt.output_tokens),
        hashes: &prompt.hashes,
        block_size_tokens: prompt.block_size_tokens,
    }
}
