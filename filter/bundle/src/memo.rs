//! A bounded memo from a text segment to its token ids.
//!
//! Chat prompts repeat: the next turn of a conversation is the last one plus a few segments, and
//! a system prompt comes with every request. A tokenizer always splits at its added tokens, so
//! what lies between two of them may be looked up instead of tokenized.
//!
//! A key is the 128-bit xxh3 of the segment, seeded by the tokenizer and by the caller, not the
//! text itself: what a memo costs is its ids, and an equal hash of two different texts
//! is not to be expected (one in 2^128 for a pair). Two generations of fixed capacity: new entries
//! go to the young one; when it is full, the old one is dropped and the young becomes old; a hit
//! in the old one is copied to the young. Memory is bounded by construction, and nothing is freed
//! piecemeal.

use ahash::AHashMap;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Segments shorter than this are tokenized anew: a look-up would cost about as much.
const SEGMENT_BYTES_MIN: usize = 32;

/// Bytes that an entry costs beside its ids: key, range and hash table overhead.
const ENTRY_OVERHEAD_TOKENS: usize = 12;

/// Tells the segment that opens a sequence from others: some tokenizers put a space before it.
const OPENS_SEQUENCE: u64 = 0x5851_F42D_4C95_7F2D;

/// How often a [`SegmentMemo`] knew the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoStats {
    /// Segments found.
    pub hits: u64,
    /// Segments looked up and not found.
    pub misses: u64,
    /// Text bytes that were not tokenized because their segment was found.
    pub hit_bytes: u64,
}

#[derive(Debug, Default)]
struct Generation {
    ranges: AHashMap<u128, (u32, u32)>,
    ids: Vec<u32>,
}

impl Generation {
    fn get(&self, key: u128) -> Option<&[u32]> {
        let (start, len) = *self.ranges.get(&key)?;
        let start = start as usize;
        self.ids.get(start..start + len as usize)
    }

    fn cost_tokens(&self) -> usize {
        self.ids.len() + self.ranges.len() * ENTRY_OVERHEAD_TOKENS
    }

    fn clear(&mut self) {
        self.ranges.clear();
        self.ids.clear();
    }
}

/// Remembers the token ids of text segments, within a fixed number of tokens.
///
/// One memo may serve several tokenizers: the tokenizer is part of the key.
#[derive(Debug)]
pub struct SegmentMemo {
    seed: u64,
    generation_tokens_max: usize,
    young: Generation,
    old: Generation,
    stats: MemoStats,
}

impl SegmentMemo {
    /// A memo that takes about `4 * capacity_tokens` bytes. The seed should not be known
    /// to clients, so that none of them can look for colliding texts.
    pub fn new(capacity_tokens: usize, seed: u64) -> Self {
        Self {
            seed,
            generation_tokens_max: capacity_tokens / 2,
            young: Generation::default(),
            old: Generation::default(),
            stats: MemoStats::default(),
        }
    }

    /// How often it knew the answer so far.
    pub fn stats(&self) -> MemoStats {
        self.stats
    }

    /// The key of a segment, or nothing when it is not worth remembering.
    pub(crate) fn key(&self, tokenizer: u64, opens_sequence: bool, text: &str) -> Option<u128> {
        if text.len() < SEGMENT_BYTES_MIN || self.generation_tokens_max == 0 {
            return None;
        }
        let place = if opens_sequence { OPENS_SEQUENCE } else { 0 };
        let seed = self.seed ^ tokenizer ^ place;
        Some(xxh3_128_with_seed(text.as_bytes(), seed))
    }

    /// Appends the ids of a segment to `out` if they are known.
    pub(crate) fn recall(&mut self, key: u128, text_bytes: usize, out: &mut Vec<u32>) -> bool {
        if let Some(ids) = self.young.get(key) {
            out.extend_from_slice(ids);
        } else if let Some(ids) = self.old.get(key) {
            let start = out.len();
            out.extend_from_slice(ids);
            let ids = out.get(start..).unwrap_or_default();
            Self::insert(&mut self.young, &mut self.old, self.generation_tokens_max, key, ids);
        } else {
            self.stats.misses += 1;
            return false;
        }
        self.stats.hits += 1;
        self.stats.hit_bytes += text_bytes as u64;
        true
    }

    /// Remembers the ids of a segment, unless they would fill a good part of the memo by
    /// themselves.
    pub(crate) fn remember(&mut self, key: u128, ids: &[u32]) {
        Self::insert(&mut self.young, &mut self.old, self.generation_tokens_max, key, ids);
    }

    fn insert(
        young: &mut Generation,
        old: &mut Generation,
        generation_tokens_max: usize,
        key: u128,
        ids: &[u32],
    ) {
        let cost = ids.len() + ENTRY_OVERHEAD_TOKENS;
        if cost > generation_tokens_max / 2 {
            return;
        }
        if young.cost_tokens() + cost > generation_tokens_max {
            std::mem::swap(young, old);
            young.clear();
        }
        let (Ok(start), Ok(len)) = (u32::try_from(young.ids.len()), u32::try_from(ids.len()))
        else {
            return;
        };
        // All at once, so that growth never leaves half of the memory unused.
        young.ids.reserve_exact(generation_tokens_max.saturating_sub(young.ids.len()));
        young.ids.extend_from_slice(ids);
        young.ranges.insert(key, (start, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(memo: &mut SegmentMemo, text: &str) -> Option<Vec<u32>> {
        let key = memo.key(1, false, text).expect("long enough");
        let mut out = Vec::new();
        memo.recall(key, text.len(), &mut out).then_some(out)
    }

    fn tell(memo: &mut SegmentMemo, text: &str, ids: &[u32]) {
        let key = memo.key(1, false, text).expect("long enough");
        memo.remember(key, ids);
    }

    fn text(number: usize) -> String {
        format!("{number:0>40}")
    }

    #[test]
    fn what_is_asked_for_again_stays_while_others_go() {
        let mut memo = SegmentMemo::new(2000, 0);
        tell(&mut memo, &text(0), &[7, 8, 9]);
        for number in 1..1000 {
            tell(&mut memo, &text(number), &[number as u32; 20]);
            assert_eq!(ask(&mut memo, &text(0)), Some(vec![7, 8, 9]));
        }
        assert_eq!(ask(&mut memo, &text(999)), Some(vec![999; 20]));
        assert_eq!(ask(&mut memo, &text(1)), None);
        assert_eq!(memo.stats().misses, 1);
        assert_eq!(memo.stats().hit_bytes, 1000 * 40);
    }

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let mut memo = SegmentMemo::new(1000, 0);
        for number in 0..10_000 {
            tell(&mut memo, &text(number), &vec![1; number % 300]);
            let held = memo.young.cost_tokens() + memo.old.cost_tokens();
            assert!(held <= 1000, "{held}");
            assert!(memo.young.ids.capacity() + memo.old.ids.capacity() <= 1000);
        }
    }

    #[test]
    fn a_key_tells_tokenizers_places_and_seeds_apart() {
        let memo = SegmentMemo::new(1000, 0);
        let key = |tokenizer, opens| memo.key(tokenizer, opens, &text(0));
        assert_ne!(key(1, false), key(2, false));
        assert_ne!(key(1, false), key(1, true));
        assert_ne!(key(1, false), SegmentMemo::new(1000, 1).key(1, false, &text(0)));
    }

    #[test]
    fn short_segments_and_a_memo_without_room_have_no_keys() {
        assert_eq!(SegmentMemo::new(1000, 0).key(1, false, "short"), None);
        assert_eq!(SegmentMemo::new(0, 0).key(1, false, &text(0)), None);
    }
}
