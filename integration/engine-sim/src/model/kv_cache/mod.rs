//! The KV block pool with prefix caching, with the order of allocation and eviction of vLLM v1.
//!
//! What comes in: a request's chained block hashes and the number of tokens it needs slots for.
//! What goes out: which leading blocks are already there, a [`BlockTable`] that holds the
//! request's blocks, and [`CacheEvent`]s.
//!
//! The rules, each of which shows in the cached tokens that an engine reports:
//!
//! - Only full blocks are cached, under their chained hash, at the moment at which the step that
//!   fills them is scheduled.
//! - A request always computes at least one token: at most `floor((tokens - 1) / block size)`
//!   blocks can hit.
//! - A hit takes the block out of the free queue, if it is there, and adds a reference.
//! - Allocation pops the front of the free queue. A cached block stays findable while it is in the
//!   queue and loses its hash only when it is popped: the queue is the LRU list.
//! - A request's blocks are released tail first. Those with a hash go to the back of the queue in
//!   that order, so that a prefix loses its tail before its head; those without (a partly filled
//!   block) go to the front, for nobody can hit them.
//! - Equal blocks are not merged: a hash that was computed twice is held by two blocks, and the
//!   older one is hit.
//! - One block of the pool is the null block, which no request gets.
//!
//! These are the rules of vLLM 0.32; 0.15 differs only in putting released blocks without a hash
//! at the back.
//!
//! Every operation is O(1) a block. Memory: about 40 bytes a block.

mod free_queue;
#[cfg(test)]
mod tests;

use std::ops::Range;

use ahash::AHashMap;

use self::free_queue::{BlockId, FreeQueue};
use super::event::CacheEvent;
use super::prompt::BlockHash;
use crate::limits::CACHE_EVENTS_UNDRAINED_MAX;

/// The blocks that one request holds, in the order of its tokens.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    /// How many leading blocks have their hash registered.
    cached: u32,
}

impl BlockTable {
    /// Blocks held.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether no block is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Leading blocks whose hash is registered.
    #[must_use]
    pub fn cached_blocks(&self) -> u32 {
        self.cached
    }
}

/// The leading blocks of a request that the cache holds. Valid until the cache changes.
#[derive(Debug, Default)]
pub struct Hits {
    blocks: Vec<BlockId>,
}

impl Hits {
    /// Blocks found.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// The pool has too few free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} blocks needed, {free} free")]
pub struct OutOfBlocks {
    /// Blocks that would leave the free queue.
    pub needed: u32,
    /// Blocks in it.
    pub free: u32,
}

#[derive(Clone, Debug)]
struct Slot {
    references: u32,
    hash: Option<BlockHash>,
    /// Blocks of equal hash form a ring, oldest first; a lone block is its own ring.
    ring_prev: BlockId,
    ring_next: BlockId,
}

/// The block pool.
#[derive(Debug)]
pub struct KvCache {
    block_size_tokens: u32,
    slots: Vec<Slot>,
    free: FreeQueue,
    /// From a hash to the oldest block that holds it.
    oldest: AHashMap<BlockHash, BlockId>,
    hashed_blocks: u32,
    evictions: u64,
    /// Present when events are wanted.
    events: Option<Vec<CacheEvent>>,
    events_dropped: u64,
}

impl KvCache {
    /// An empty pool of `num_gpu_blocks` blocks, the null block included.
    #[must_use]
    pub fn new(num_gpu_blocks: u32, block_size_tokens: u32) -> Self {
        let usable = num_gpu_blocks.saturating_sub(1);
        let mut free = FreeQueue::new(usable);
        let slots = (0..usable)
            .map(|block| {
                free.push_back(block);
                Slot { references: 0, hash: None, ring_prev: block, ring_next: block }
            })
            .collect();
        Self {
            block_size_tokens,
            slots,
            free,
            oldest: AHashMap::new(),
            hashed_blocks: 0,
            evictions: 0,
            events: None,
            events_dropped: 0,
        }
    }

    /// Whether changes are recorded for [`Self::take_events`].
    pub fn record_events(&mut self, on: bool) {
        self.events = on.then(Vec::new);
    }

    /// Whether changes are recorded.
    #[must_use]
    pub fn records_events(&self) -> bool {
        self.events.is_some()
    }

    /// The changes since the last call, oldest first.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Changes that were not recorded because nobody took the earlier ones.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        self.events_dropped
    }

    /// Blocks that requests can use.
    #[must_use]
    pub fn usable_blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Blocks that no request holds.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.free.len()
    }

    /// Blocks that can be hit.
    #[must_use]
    pub fn hashed_blocks(&self) -> u32 {
        self.hashed_blocks
    }

    /// Blocks that lost their hash to an allocation so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Whether any block has this hash.
    #[must_use]
    pub fn contains(&self, hash: BlockHash) -> bool {
        self.oldest.contains_key(&hash)
    }

    /// Finds the leading blocks of a request of `num_tokens` tokens.
    pub fn find(&self, hashes: &[BlockHash], num_tokens: u32, hits: &mut Hits) {
        let most = (num_tokens.saturating_sub(1) / self.block_size_tokens) as usize;
        hits.blocks.clear();
        hits.blocks.extend(hashes.iter().take(most).map_while(|hash| self.oldest.get(hash)));
    }

    /// Whether a request that holds `table` and would take over `hits` could get slots for
    /// `num_tokens` tokens in all.
    ///
    /// # Errors
    /// [`OutOfBlocks`] when it could not.
    pub fn check_fit(
        &self,
        table: &BlockTable,
        hits: &Hits,
        num_tokens: u32,
    ) -> Result<(), OutOfBlocks> {
        let required = num_tokens.div_ceil(self.block_size_tokens);
        let new = required.saturating_sub(table.len() + hits.len());
        // A hit that nobody uses leaves the free queue as well.
        let revived =
            hits.blocks.iter().filter(|&&block| self.slots[block as usize].references == 0).count()
                as u32;
        let (needed, free) = (new + revived, self.free.len());
        if needed > free {
            return Err(OutOfBlocks { needed, free });
        }
        Ok(())
    }

    /// Gives a request slots for `num_tokens` tokens in all: takes over `hits` (only into an empty
    /// table), then allocates.
    ///
    /// # Errors
    /// [`OutOfBlocks`]; nothing has changed then.
    pub fn allocate(
        &mut self,
        table: &mut BlockTable,
        hits: &Hits,
        num_tokens: u32,
    ) -> Result<(), OutOfBlocks> {
        debug_assert!(hits.is_empty() || table.is_empty());
        self.check_fit(table, hits, num_tokens)?;
        for &block in &hits.blocks {
            self.touch(block);
        }
        if !hits.is_empty() {
            table.blocks.extend_from_slice(&hits.blocks);
            table.cached = hits.len();
        }
        let required = num_tokens.div_ceil(self.block_size_tokens);
        for _ in table.len()..required {
            let Some(block) = self.free.pop_front() else {
                break;
            };
            self.evict(block);
            self.slots[block as usize].references = 1;
            table.blocks.push(block);
        }
        Ok(())
    }

    /// Registers the blocks that `num_tokens` tokens fill. `tokens` gives the tokens of a range of
    /// positions; it is called only when events are recorded.
    pub fn cache_full_blocks(
        &mut self,
        table: &mut BlockTable,
        hashes: &[BlockHash],
        num_tokens: u32,
        tokens: impl FnOnce(Range<u32>) -> Vec<u32>,
    ) {
        let (first, end) = (table.cached, num_tokens / self.block_size_tokens);
        if first >= end {
            return;
        }
        let fresh = first as usize..end as usize;
        for (&hash, &block) in hashes[fresh.clone()].iter().zip(&table.blocks[fresh]) {
            self.insert(hash, block);
        }
        table.cached = end;
        if self.records_events() {
            let size = self.block_size_tokens;
            self.record(CacheEvent::Stored {
                hashes: hashes[first as usize..end as usize].to_vec(),
                parent: first.checked_sub(1).map(|at| hashes[at as usize]),
                tokens: tokens(first * size..end * size),
            });
        }
    }

    /// Takes a request's blocks back, tail first.
    pub fn release(&mut self, table: &mut BlockTable) {
        for block in table.blocks.drain(..).rev() {
            let slot = &mut self.slots[block as usize];
            debug_assert!(slot.references > 0);
            slot.references -= 1;
            if slot.references == 0 {
                if slot.hash.is_some() {
                    self.free.push_back(block);
                } else {
                    self.free.push_front(block);
                }
            }
        }
        table.cached = 0;
    }

    /// Forgets every hash, unless some request holds blocks. Returns whether it did.
    pub fn clear(&mut self) -> bool {
        if self.free.len() != self.usable_blocks() {
            return false;
        }
        self.oldest.clear();
        self.hashed_blocks = 0;
        for (block, slot) in self.slots.iter_mut().enumerate() {
            slot.hash = None;
            slot.ring_prev = block as BlockId;
            slot.ring_next = block as BlockId;
        }
        self.record(CacheEvent::Cleared);
        true
    }

    fn touch(&mut self, block: BlockId) {
        let slot = &mut self.slots[block as usize];
        if slot.references == 0 {
            self.free.remove(block);
        }
        slot.references += 1;
    }

    /// Makes `block` findable, as the youngest of its hash.
    fn insert(&mut self, hash: BlockHash, block: BlockId) {
        debug_assert!(self.slots[block as usize].hash.is_none());
        let oldest = *self.oldest.entry(hash).or_insert(block);
        let youngest = self.slots[oldest as usize].ring_prev;
        let slot = &mut self.slots[block as usize];
        slot.hash = Some(hash);
        slot.ring_prev = youngest;
        slot.ring_next = oldest;
        self.slots[youngest as usize].ring_next = block;
        self.slots[oldest as usize].ring_prev = block;
        self.hashed_blocks += 1;
    }

    /// Takes a block's hash away, if it has one.
    fn evict(&mut self, block: BlockId) {
        let slot = &mut self.slots[block as usize];
        let Some(hash) = slot.hash.take() else {
            return;
        };
        let (before, after) = (slot.ring_prev, slot.ring_next);
        slot.ring_prev = block;
        slot.ring_next = block;
        if after == block {
            self.oldest.remove(&hash);
        } else {
            self.slots[before as usize].ring_next = after;
            self.slots[after as usize].ring_prev = before;
            if let Some(oldest) = self.oldest.get_mut(&hash)
                && *oldest == block
            {
                *oldest = after;
            }
        }
        self.hashed_blocks -= 1;
        self.evictions += 1;
        self.record(CacheEvent::Removed { hashes: vec![hash] });
    }

    fn record(&mut self, event: CacheEvent) {
        let Some(events) = &mut self.events else {
            return;
        };
        if events.len() < CACHE_EVENTS_UNDRAINED_MAX {
            events.push(event);
        } else {
            self.events_dropped += 1;
        }
    }
}
