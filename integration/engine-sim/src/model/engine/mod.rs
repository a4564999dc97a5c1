//! Continuous batching with chunked prefill, in virtual time.
//!
//! What comes in: requests with their arrival times, and the time up to which to run. What goes
//! out: [`Event`]s. An engine runs in steps, as vLLM does: at the start of a step it schedules up
//! to `max_num_batched_tokens` tokens, first for running requests, then for waiting ones; at its
//! end every request whose context is wholly computed gains a token, and the next step begins at
//! once. A request that arrives during a step waits for the next one.
//!
//! Use: `advance_to(t)` up to the time of each arrival before submitting it, and to
//! [`Engine::next_event_at`] when nothing arrives. Several requests submitted at the same time
//! share a step.
//!
//! A step costs O(running requests) plus O(blocks) of the requests admitted in it.

#[cfg(test)]
mod golden;
mod request;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use ahash::AHashMap;

use self::request::Request;
pub use self::request::RequestSpec;
use super::event::{CacheEvent, Event, EventKind, RequestId};
use super::kv_cache::{Hits, KvCache};
use super::output::OutputVocabulary;
use super::profile::{Profile, ProfileError};
use super::prompt::BlockHasher;
use super::time::SimTime;
use crate::limits::REQUESTS_IN_ENGINE_MAX;

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Prompt and output are longer than a context may be.
    #[error(
        "{prompt_tokens} prompt tokens and {output_tokens} output tokens exceed the maximum context length of {context_tokens_max} tokens"
    )]
    TooLong {
        /// Tokens in the prompt.
        prompt_tokens: u32,
        /// Output tokens asked for.
        output_tokens: u32,
        /// The longest context.
        context_tokens_max: u32,
    },
    /// No output was asked for.
    #[error("at least one output token must be generated")]
    NoOutput,
    /// A living request has this id.
    #[error("request {0:?} is in the engine already")]
    DuplicateId(RequestId),
    /// The prompt was hashed with another block size.
    #[error("the prompt is cut into blocks of {prompt} tokens, the engine's are {engine}")]
    BlockSize {
        /// The prompt's block size in tokens.
        prompt: u32,
        /// The engine's.
        engine: u32,
    },
    /// The queue is full.
    #[error("{REQUESTS_IN_ENGINE_MAX} requests are in the engine already")]
    Full,
}

/// What an engine reports beyond its counters. Turning off what nobody reads makes long
/// simulations faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reporting {
    /// Report every token after the first ([`EventKind::Token`]).
    pub tokens: bool,
    /// Record the prefix cache's changes for [`Engine::take_cache_events`].
    pub cache_events: bool,
}

impl Default for Reporting {
    fn default() -> Self {
        Self { tokens: true, cache_events: false }
    }
}

/// An engine's gauges and cumulative counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Requests that hold blocks.
    pub running: u32,
    /// Requests that wait for their first or next admission.
    pub waiting: u32,
    /// The share of KV memory that running requests hold, 0 to 1. Cached blocks that nobody uses
    /// do not count.
    pub kv_usage: f64,
    /// Blocks that running requests hold.
    pub kv_used_blocks: u32,
    /// Blocks that requests can use.
    pub kv_usable_blocks: u32,
    /// Blocks that can be hit, in use or not.
    pub kv_hashed_blocks: u32,
    /// Prompt tokens of requests that reached their first token.
    pub prompt_tokens: u64,
    /// Tokens looked up in the prefix cache by requests admitted for the first time.
    pub prefix_cache_queries: u64,
    /// Tokens of these that were found.
    pub prefix_cache_hits: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks that lost their cached content to an allocation.
    pub evictions: u64,
    /// Requests that were submitted.
    pub submitted: u64,
    /// Requests that ran to their end.
    pub finished: u64,
    /// Requests that were aborted.
    pub aborted: u64,
    /// Steps begun.
    pub steps: u64,
}

/// A request's place in the slab.
type Slot = usize;

/// A step in progress.
#[derive(Debug)]
struct Step {
    ends_at: SimTime,
    /// Requests that take part, with the tokens computed for each.
    scheduled: Vec<Scheduled>,
}

#[derive(Clone, Copy, Debug)]
struct Scheduled {
    slot: Slot,
    /// Slots are reused; the id tells whether the request is still the same.
    id: RequestId,
}

/// An engine.
#[derive(Debug)]
pub struct Engine {
    profile: Profile,
    seed: u64,
    reporting: Reporting,
    vocabulary: OutputVocabulary,
    slow_factor: f64,
    kv: KvCache,
    requests: Vec<Option<Request>>,
    vacant: Vec<Slot>,
    by_id: AHashMap<RequestId, Slot>,
    waiting: VecDeque<Slot>,
    running: Vec<Slot>,
    now: SimTime,
    step: Option<Step>,
    /// The list of a past step, kept for its memory.
    spare: Vec<Scheduled>,
    hits: Hits,
    hasher: BlockHasher,
    counters: EngineStats,
    /// Changes of the cache up to the last finished step.
    published: Vec<CacheEvent>,
}

impl Engine {
    /// An idle engine. `seed` decides what it generates.
    ///
    /// # Errors
    /// When the profile cannot be run.
    pub fn new(profile: Profile, seed: u64) -> Result<Self, ProfileError> {
        profile.check()?;
        let kv = KvCache::new(profile.num_gpu_blocks(), profile.block_size_tokens);
        Ok(Self {
            profile,
            seed,
            reporting: Reporting::default(),
            vocabulary: OutputVocabulary::default(),
            slow_factor: 1.0,
            kv,
            requests: Vec::new(),
            vacant: Vec::new(),
            by_id: AHashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            now: SimTime::ZERO,
            step: None,
            spare: Vec::new(),
            hits: Hits::default(),
            hasher: BlockHasher::default(),
            counters: EngineStats::default(),
            published: Vec::new(),
        })
    }

    /// The engine's profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Chooses what is reported.
    pub fn set_reporting(&mut self, reporting: Reporting) {
        self.reporting = reporting;
        if reporting.cache_events != self.kv.records_events() {
            self.kv.record_events(reporting.cache_events);
            self.published.clear();
        }
    }

    /// Chooses the tokens that output is made of.
    pub fn set_output_vocabulary(&mut self, vocabulary: OutputVocabulary) {
        self.vocabulary = vocabulary;
    }

    /// Makes every later step take `factor` times as long; 1 is the profile's own speed. Values
    /// that are not positive and finite change nothing.
    pub fn set_slow_factor(&mut self, factor: f64) {
        if factor.is_finite() && factor > 0.0 {
            self.slow_factor = factor;
        }
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// When it could never run, or its id is taken.
    pub fn submit(&mut self, now: SimTime, spec: RequestSpec) -> Result<(), SubmitError> {
        let (prompt_tokens, output_tokens) = (spec.prompt.token_count, spec.output_tokens);
        let context_tokens_max = self.profile.context_tokens_max();
        if output_tokens == 0 {
            return Err(SubmitError::NoOutput);
        }
        if prompt_tokens.saturating_add(output_tokens) > context_tokens_max {
            return Err(SubmitError::TooLong { prompt_tokens, output_tokens, context_tokens_max });
        }
        if spec.prompt.block_size_tokens != self.profile.block_size_tokens {
            return Err(SubmitError::BlockSize {
                prompt: spec.prompt.block_size_tokens,
                engine: self.profile.block_size_tokens,
            });
        }
        if self.by_id.len() >= REQUESTS_IN_ENGINE_MAX {
            return Err(SubmitError::Full);
        }
        if self.by_id.contains_key(&spec.id) {
            return Err(SubmitError::DuplicateId(spec.id));
        }
        let id = spec.id;
        let arrived_at = now.max(self.now);
        let request = Request::new(spec, arrived_at, self.seed);
        let slot = if let Some(slot) = self.vacant.pop() {
            self.requests[slot] = Some(request);
            slot
        } else {
            self.requests.push(Some(request));
            self.requests.len() - 1
        };
        self.by_id.insert(id, slot);
        self.waiting.push_back(slot);
        self.counters.submitted += 1;
        Ok(())
    }

    /// Drops a request; its blocks are free at once, and what it computed stays cached. Returns
    /// whether it was there.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(&slot) = self.by_id.get(&id) else {
            return false;
        };
        self.running.retain(|&other| other != slot);
        self.waiting.retain(|&other| other != slot);
        self.remove(slot);
        self.counters.aborted += 1;
        true
    }

    /// Forgets all cached blocks, unless requests hold some. Returns whether it did.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.kv.clear()
    }

    /// When something next happens if nothing is submitted: the end of the current step, or the
    /// time at which a waiting request can start one. `None` when the engine is idle.
    #[must_use]
    pub fn next_event_at(&self) -> Option<SimTime> {
        if let Some(step) = &self.step {
            return Some(step.ends_at);
        }
        let head = self.waiting.front().map(|&slot| self.request(slot).arrived_at);
        if self.running.is_empty() {
            head.map(|arrived_at| arrived_at.max(self.now))
        } else {
            Some(self.now)
        }
    }

    /// Runs to `now`, adding what happens to `events`. A step that ends exactly at `now` ends, and
    /// the next one begins.
    pub fn advance_to(&mut self, now: SimTime, events: &mut Vec<Event>) {
        while let Some(at) = self.next_event_at() {
            if at > now {
                break;
            }
            self.now = at;
            if let Some(step) = self.step.take() {
                self.finish_step(step, events);
            }
            self.begin_step(events);
        }
        self.now = self.now.max(now);
    }

    /// The changes of the prefix cache since the last call. As in vLLM they come out when a step
    /// ends: a reset of an idle engine shows only after its next step.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.published)
    }

    /// Gauges and counters as of the last advance.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let usable = self.kv.usable_blocks();
        let used = usable - self.kv.free_blocks();
        EngineStats {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_usage: f64::from(used) / f64::from(usable.max(1)),
            kv_used_blocks: used,
            kv_usable_blocks: usable,
            kv_hashed_blocks: self.kv.hashed_blocks(),
            evictions: self.kv.evictions(),
            ..self.counters
        }
    }

    /// How many leading tokens of a prompt are cached right now. For oracles in simulations: it
    /// changes nothing.
    #[must_use]
    pub fn resident_tokens(&self, prompt: &super::Prompt) -> u32 {
        let mut hits = Hits::default();
        self.kv.find(&prompt.block_hashes, prompt.token_count, &mut hits);
        hits.len() * self.profile.block_size_tokens
    }

    fn request(&self, slot: Slot) -> &Request {
        self.requests[slot].as_ref().expect("queued slots are occupied")
    }

    /// Frees a request that is in no queue any more.
    fn remove(&mut self, slot: Slot) {
        if let Some(mut request) = self.requests[slot].take() {
            self.kv.release(&mut request.table);
            self.by_id.remove(&request.id);
            self.vacant.push(slot);
        }
    }

    /// Ends a step: every request whose context is wholly computed gains a token.
    fn finish_step(&mut self, mut step: Step, events: &mut Vec<Event>) {
        let at = step.ends_at;
        let mut any_finished = false;
        for Scheduled { slot, id } in step.scheduled.drain(..) {
            let Some(request) = self.requests[slot].as_mut().filter(|request| request.id == id)
            else {
                continue;
            };
            if request.computed_tokens < request.num_tokens() {
                continue;
            }
            let token = self.vocabulary.pick(request.stream(), request.output_tokens());
            request.append(token, &mut self.hasher);
            self.counters.generation_tokens += 1;
            if request.first_token_at.is_none() {
                request.first_token_at = Some(at);
                self.counters.prompt_tokens += u64::from(request.prompt_tokens);
                events.push(Event { at, id, kind: EventKind::FirstToken { token } });
            } else if self.reporting.tokens {
                events.push(Event { at, id, kind: EventKind::Token { token } });
            }
            if request.output_tokens() >= request.output_tokens_max {
                let kind = EventKind::Finished(request.finished(at));
                events.push(Event { at, id, kind });
                self.counters.finished += 1;
                self.remove(slot);
                any_finished = true;
            }
        }
        if any_finished {
            let requests = &self.requests;
            self.running.retain(|&slot| requests[slot].is_some());
        }
        self.spare = step.scheduled;
        if self.kv.records_events() {
            let mut fresh = self.kv.take_events();
            self.published.append(&mut fresh);
        }
    }
}
