//! Applying merges: the pair of lowest rank first, the leftmost of equals, until none is left.
//!
//! Short words: an array that is scanned for the lowest rank, quadratic with a small constant.
//! Long words: a linked list and a queue of its pairs, `n log n`, so that a text without spaces costs
//! no more than its length deserves. The queue has two parts: the pairs of the beginning, sorted
//! once, and a heap of those that merges make, which is small and stays near the CPU.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cache::PairCache;
use super::index::MergeIndex;

/// Words of more symbols than this take the heap.
const SHORT_SYMBOLS_MAX: usize = 32;
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    symbol: u32,
    prev: u32,
    next: u32,
    /// Rank of the pair with the next node, or [`MergeIndex::NEVER`].
    rank: u32,
}

/// Merges behind their cache.
pub(crate) struct Ranks<'a> {
    pub(crate) merges: &'a MergeIndex,
    /// The bundle.
    pub(crate) bytes: &'a [u8],
    pub(crate) cache: &'a mut PairCache,
}

impl Ranks<'_> {
    #[inline]
    fn of(&mut self, left: Option<&u32>, right: Option<&u32>) -> u32 {
        match (left, right) {
            (Some(left), Some(right)) => self.cache.rank(self.merges, self.bytes, *left, *right),
            _ => MergeIndex::NEVER,
        }
    }

    #[inline]
    fn product(&self, rank: u32) -> Option<u32> {
        self.merges.product(self.bytes, rank)
    }
}

/// Buffers that outlive a word.
#[derive(Debug, Default)]
pub(crate) struct MergeScratch {
    ranks: Vec<u32>,
    nodes: Vec<Node>,
    /// Pairs of the beginning, rank in the high half and place in the low one, in order.
    cold: Vec<u64>,
    /// Pairs that merges made.
    hot: BinaryHeap<Reverse<u64>>,
}

/// Words of more symbols than this give their buffers back: about 24 bytes a symbol.
const KEPT_SYMBOLS_MAX: usize = 1 << 16;

/// Merges `symbols` in place.
pub(crate) fn merge(ranks: &mut Ranks<'_>, symbols: &mut Vec<u32>, scratch: &mut MergeScratch) {
    if symbols.len() <= SHORT_SYMBOLS_MAX {
        merge_short(ranks, symbols, &mut scratch.ranks);
    } else {
        merge_long(ranks, symbols, scratch);
    }
}

fn merge_short(ranks: &mut Ranks<'_>, symbols: &mut Vec<u32>, pairs: &mut Vec<u32>) {
    pairs.clear();
    pairs.extend(symbols.windows(2).map(|pair| ranks.of(pair.first(), pair.get(1))));
    while let Some(&lowest) = pairs.iter().min() {
        if lowest == MergeIndex::NEVER {
            break;
        }
        let Some(at) = pairs.iter().position(|rank| *rank == lowest) else { break };
        let Some(product) = ranks.product(lowest) else { break };
        if let Some(symbol) = symbols.get_mut(at) {
            *symbol = product;
        }
        symbols.remove(at + 1);
        pairs.remove(at);
        let left = at.checked_sub(1);
        if let Some(rank) = left.and_then(|left| pairs.get_mut(left)) {
            let left = left.and_then(|left| symbols.get(left));
            *rank = ranks.of(left, Some(&product));
        }
        if let Some(rank) = pairs.get_mut(at) {
            *rank = ranks.of(Some(&product), symbols.get(at + 1));
        }
    }
}

fn merge_long(ranks: &mut Ranks<'_>, symbols: &mut Vec<u32>, scratch: &mut MergeScratch) {
    let MergeScratch { nodes, cold, hot, .. } = scratch;
    nodes.clear();
    nodes.reserve(symbols.len());
    cold.clear();
    cold.reserve(symbols.len());
    hot.clear();
    for (index, symbol) in symbols.iter().enumerate() {
        let rank = ranks.of(Some(symbol), symbols.get(index + 1));
        let index = index as u32;
        if rank != MergeIndex::NEVER {
            cold.push(entry(rank, index));
        }
        nodes.push(Node { symbol: *symbol, prev: index.wrapping_sub(1), next: index + 1, rank });
    }
    if let Some(last) = nodes.last_mut() {
        last.next = NONE;
    }
    cold.sort_unstable();
    let mut queue = cold.iter().copied().peekable();
    loop {
        let next = match (queue.peek(), hot.peek()) {
            (Some(cold), Some(Reverse(hot))) if hot < cold => None,
            (None, _) => None,
            (Some(_), _) => queue.next(),
        };
        let Some(entry) = next.or_else(|| hot.pop().map(|Reverse(entry)| entry)) else { break };
        let (rank, at) = ((entry >> 32) as u32, entry as u32);
        // A node whose pair has changed since has another rank; one that was merged away has none.
        if nodes.get(at as usize).map(|node| node.rank) == Some(rank) {
            merge_node(ranks, nodes, hot, at);
        }
    }
    symbols.clear();
    let mut at = 0;
    while let Some(node) = nodes.get(at as usize) {
        symbols.push(node.symbol);
        at = node.next;
    }
    if nodes.len() > KEPT_SYMBOLS_MAX {
        *scratch = MergeScratch::default();
    }
}

#[inline]
fn entry(rank: u32, at: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(at)
}

/// Merges the node at `at` with its next one.
fn merge_node(
    ranks: &mut Ranks<'_>,
    nodes: &mut [Node],
    hot: &mut BinaryHeap<Reverse<u64>>,
    at: u32,
) {
    let Some(&node) = nodes.get(at as usize) else { return };
    let Some(product) = ranks.product(node.rank) else { return };
    let Some(gone) = nodes.get_mut(node.next as usize) else { return };
    gone.rank = MergeIndex::NEVER;
    let next = gone.next;
    let next_symbol = nodes.get(next as usize).map(|node| node.symbol);
    if let Some(after) = nodes.get_mut(next as usize) {
        after.prev = at;
    }
    let rank = ranks.of(Some(&product), next_symbol.as_ref());
    if rank != MergeIndex::NEVER {
        hot.push(Reverse(entry(rank, at)));
    }
    if let Some(slot) = nodes.get_mut(at as usize) {
        *slot = Node { symbol: product, prev: node.prev, next, rank };
    }
    if let Some(before) = nodes.get_mut(node.prev as usize) {
        before.rank = ranks.of(Some(&before.symbol), Some(&product));
        if before.rank != MergeIndex::NEVER {
            let rank = before.rank;
            hot.push(Reverse(entry(rank, node.prev)));
        }
    }
}
