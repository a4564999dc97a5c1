//! One request inside the engine.

use std::ops::Range;
use std::sync::Arc;

use crate::model::event::{Finished, RequestId};
use crate::model::kv_cache::BlockTable;
use crate::model::output::{OutputStream, mix};
use crate::model::prompt::{BlockHash, BlockHasher, Prompt};
use crate::model::time::SimTime;

/// What a caller submits.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// The request's name; unique among the requests in the engine.
    pub id: RequestId,
    /// The prompt, hashed with the engine's block size.
    pub prompt: Prompt,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
}

/// A request in the engine.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) arrived_at: SimTime,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens_max: u32,
    block_size_tokens: u32,
    prompt_ids: Option<Arc<[u32]>>,
    /// Tokens generated so far.
    outputs: Vec<u32>,
    /// Hashes of all full blocks of prompt and output.
    pub(super) hashes: Vec<BlockHash>,
    root: u64,
    /// Tokens after the last full block.
    tail: Vec<u32>,
    stream: OutputStream,
    pub(super) table: BlockTable,
    /// Tokens whose KV is computed or is being computed in the current step.
    pub(super) computed_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) admitted_at: Option<SimTime>,
    pub(super) first_token_at: Option<SimTime>,
    pub(super) preemptions: u32,
}

impl Request {
    pub(super) fn new(spec: RequestSpec, now: SimTime, seed: u64) -> Self {
        let RequestSpec { id, prompt, output_tokens } = spec;
        let full_tokens = prompt.block_hashes.len() * prompt.block_size_tokens as usize;
        let tail = match &prompt.tokens {
            Some(tokens) => tokens[full_tokens..].to_vec(),
            // Unknown tokens must not look equal to another request's unknown tokens.
            None => (full_tokens..prompt.token_count as usize)
                .map(|at| mix(id.0 ^ (at as u64) << 40) as u32)
                .collect(),
        };
        let last = prompt.block_hashes.last().copied();
        Self {
            id,
            arrived_at: now,
            prompt_tokens: prompt.token_count,
            output_tokens_max: output_tokens,
            block_size_tokens: prompt.block_size_tokens,
            prompt_ids: prompt.tokens,
            outputs: Vec::with_capacity(output_tokens.min(1 << 16) as usize),
            hashes: prompt.block_hashes,
            root: prompt.root,
            stream: OutputStream::new(seed, prompt.root, last, &tail),
            tail,
            table: BlockTable::default(),
            computed_tokens: 0,
            cached_tokens: 0,
            admitted_at: None,
            first_token_at: None,
            preemptions: 0,
        }
    }

    /// Prompt and generated tokens.
    pub(super) fn num_tokens(&self) -> u32 {
        self.prompt_tokens + self.outputs.len() as u32
    }

    pub(super) fn output_tokens(&self) -> u32 {
        self.outputs.len() as u32
    }

    pub(super) fn stream(&self) -> OutputStream {
        self.stream
    }

    /// Adds a generated token; hashes the block it fills.
    pub(super) fn append(&mut self, token: u32, hasher: &mut BlockHasher) {
        self.outputs.push(token);
        self.tail.push(token);
        if self.tail.len() == self.block_size_tokens as usize {
            let parent = self.hashes.last().map_or(self.root, |hash| hash.get());
            self.hashes.push(hasher.hash(parent, &self.tail));
            self.tail.clear();
        }
    }

    /// The tokens at these positions; empty when the prompt was given by hashes.
    pub(super) fn tokens(
        prompt_ids: Option<&[u32]>,
        outputs: &[u32],
        positions: Range<u32>,
    ) -> Vec<u32> {
        let Some(prompt) = prompt_ids else {
            return Vec::new();
        };
        positions
            .filter_map(|at| {
                let at = at as usize;
                prompt.get(at).or_else(|| outputs.get(at - prompt.len()))
            })
            .copied()
            .collect()
    }

    /// The parts that caching a block needs at once: the table to change, and what to read.
    pub(super) fn cache_parts(
        &mut self,
    ) -> (&mut BlockTable, &[BlockHash], Option<&[u32]>, &[u32]) {
        (&mut self.table, &self.hashes, self.prompt_ids.as_deref(), &self.outputs)
    }

    pub(super) fn finished(&self, now: SimTime) -> Finished {
        Finished {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens(),
            preemptions: self.preemptions,
            arrived_at: self.arrived_at,
            admitted_at: self.admitted_at.unwrap_or(now),
            first_token_at: self.first_token_at.unwrap_or(now),
        }
    }
}
