//! One scheduling pass: which requests compute how many tokens in the step that begins.
//!
//! First come, first served, in the order of vLLM v1's scheduler:
//!
//! 1. Running requests, oldest admission first, take what they still have to compute (one token
//!    when they decode) out of the step's token budget. One that gets no block preempts the
//!    request admitted last, until it gets one or is itself that request.
//! 2. Unless somebody was preempted, waiting requests are admitted while budget, sequence slots
//!    and blocks last. A request is admitted only if the blocks for its whole context are free,
//!    even when the budget lets it compute only a part; the first that does not fit stops the
//!    pass, so that nobody overtakes it.

use super::request::Request;
use super::{Engine, Scheduled, Slot, Step};
use crate::model::event::{Event, EventKind};
use crate::model::kv_cache::Hits;

/// What a scheduling pass has handed out.
struct Pass {
    scheduled: Vec<Scheduled>,
    budget_tokens: u32,
    prefill_tokens: u32,
    preempted: bool,
}

impl Engine {
    /// Begins the next step at the current time, unless there is nothing to run.
    pub(super) fn begin_step(&mut self, events: &mut Vec<Event>) {
        let mut pass = Pass {
            scheduled: std::mem::take(&mut self.spare),
            budget_tokens: self.profile.max_num_batched_tokens,
            prefill_tokens: 0,
            preempted: false,
        };
        self.schedule_running(&mut pass, events);
        if !pass.preempted {
            self.schedule_waiting(&mut pass, events);
        }
        if pass.scheduled.is_empty() {
            // Either there is no request, or the only one preempted itself; then the caller's loop
            // comes back here with an empty engine, which has room for any request it took.
            self.spare = pass.scheduled;
            return;
        }
        let sequences = pass.scheduled.len() as u32;
        let duration = self.profile.step_duration(sequences, pass.prefill_tokens, self.slow_factor);
        self.counters.steps += 1;
        self.step = Some(Step { ends_at: self.now + duration, scheduled: pass.scheduled });
    }

    fn schedule_running(&mut self, pass: &mut Pass, events: &mut Vec<Event>) {
        let mut at = 0;
        while at < self.running.len() && pass.budget_tokens > 0 {
            let slot = self.running[at];
            let request = self.request(slot);
            let new_tokens =
                (request.num_tokens() - request.computed_tokens).min(pass.budget_tokens);
            if !self.allocate_or_preempt(slot, new_tokens, pass, events) {
                break;
            }
            self.commit(slot, new_tokens, pass);
            at += 1;
        }
    }

    /// Gets a running request the blocks for `new_tokens` more tokens, at the cost of requests
    /// admitted later. Returns false when the request itself had to give way.
    fn allocate_or_preempt(
        &mut self,
        slot: Slot,
        new_tokens: u32,
        pass: &mut Pass,
        events: &mut Vec<Event>,
    ) -> bool {
        let none = Hits::default();
        loop {
            let request = self.requests[slot].as_mut().expect("running slots are occupied");
            let num_tokens = request.computed_tokens + new_tokens;
            if self.kv.allocate(&mut request.table, &none, num_tokens).is_ok() {
                return true;
            }
            let victim = self.running.pop().expect("the request itself is running");
            pass.preempted = true;
            self.preempt(victim, events);
            if victim == slot {
                return false;
            }
        }
    }

    /// Puts a request that left the running list back to the front of the queue, without blocks.
    fn preempt(&mut self, slot: Slot, events: &mut Vec<Event>) {
        let request = self.requests[slot].as_mut().expect("running slots are occupied");
        self.kv.release(&mut request.table);
        request.computed_tokens = 0;
        request.preemptions += 1;
        events.push(Event { at: self.now, id: request.id, kind: EventKind::Preempted });
        self.counters.preemptions += 1;
        self.waiting.push_front(slot);
    }

    fn schedule_waiting(&mut self, pass: &mut Pass, events: &mut Vec<Event>) {
        while pass.budget_tokens > 0 && self.running.len() < self.profile.max_num_seqs as usize {
            let Some(&slot) = self.waiting.front() else {
                break;
            };
            let Some(new_tokens) = self.admit(slot, pass.budget_tokens, events) else {
                break;
            };
            self.waiting.pop_front();
            self.running.push(slot);
            self.commit(slot, new_tokens, pass);
        }
    }

    /// Gives the head of the queue its cached blocks and the blocks for its first chunk. Returns
    /// the tokens to compute, or `None` when it has to wait.
    fn admit(&mut self, slot: Slot, budget_tokens: u32, events: &mut Vec<Event>) -> Option<u32> {
        let now = self.now;
        let request = self.requests[slot].as_mut().expect("waiting slots are occupied");
        if request.arrived_at > now {
            return None;
        }
        let num_tokens = request.num_tokens();
        self.kv.find(&request.hashes, num_tokens, &mut self.hits);
        self.kv.check_fit(&request.table, &self.hits, num_tokens).ok()?;
        let cached_tokens = self.hits.len() * self.profile.block_size_tokens;
        let new_tokens = (num_tokens - cached_tokens).min(budget_tokens);
        self.kv.allocate(&mut request.table, &self.hits, cached_tokens + new_tokens).ok()?;
        request.computed_tokens = cached_tokens;
        let resumed = request.preemptions > 0;
        if !resumed {
            request.cached_tokens = cached_tokens;
            request.admitted_at = Some(now);
            self.counters.prefix_cache_queries += u64::from(num_tokens);
            self.counters.prefix_cache_hits += u64::from(cached_tokens);
        }
        events.push(Event {
            at: now,
            id: request.id,
            kind: EventKind::Admitted { cached_tokens, resumed },
        });
        Some(new_tokens)
    }

    /// Counts a request's tokens as computed, registers the blocks they fill and charges the step.
    fn commit(&mut self, slot: Slot, new_tokens: u32, pass: &mut Pass) {
        let request = self.requests[slot].as_mut().expect("running slots are occupied");
        // A decoding request computes exactly its newest output token.
        let decodes = new_tokens == 1
            && request.output_tokens() > 0
            && request.computed_tokens + 1 == request.num_tokens();
        if !decodes {
            pass.prefill_tokens += new_tokens;
        }
        request.computed_tokens += new_tokens;
        let (id, computed_tokens) = (request.id, request.computed_tokens);
        let (table, hashes, prompt_ids, outputs) = request.cache_parts();
        self.kv.cache_full_blocks(table, hashes, computed_tokens, |positions| {
            Request::tokens(prompt_ids, outputs, positions)
        });
        pass.budget_tokens -= new_tokens;
        pass.scheduled.push(Scheduled { slot, id });
    }
}
