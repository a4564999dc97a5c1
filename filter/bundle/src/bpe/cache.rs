//! What was looked up before: words, characters and pairs.
//!
//! The bundle's tables are too large for a CPU's first caches, and text repeats itself, so small
//! tables in front of them save most of the waiting. Each is direct-mapped: a key has one place,
//! and the latest one there stays. Keys are kept whole, so a hit is exact.
//!
//! Words of more than 31 bytes or six tokens are not kept: they are rare, and a slot is one cache
//! line.

use super::index::{ID_BITS, ID_MASK, MergeIndex, hash_end, hash_start, hash_step};

/// Slots, a power of two. 8,192 words cover a long prompt's vocabulary; 512 KB per user of the
/// tokenizer at a time.
const SLOTS: usize = 8192;
const IDS_MAX: usize = 6;

/// A word of at most 31 bytes, padded with zeros, its length in the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WordKey([u64; 4]);

/// What remains of 32 loaded bytes for each length.
static MASKS: [[u64; 4]; 32] = masks();

#[allow(clippy::indexing_slicing, reason = "runs in the compiler only")]
const fn masks() -> [[u64; 4]; 32] {
    let mut table = [[0u64; 4]; 32];
    let mut len = 0;
    while len < 32 {
        let mut byte = 0;
        while byte < len {
            table[len][byte / 8] |= 0xFF << (8 * (byte % 8));
            byte += 1;
        }
        len += 1;
    }
    table
}

impl WordKey {
    /// The key of `text[start..end]`, or nothing if the word is too long. Loads 32 bytes at once
    /// where the text goes on that far, instead of copying a word of varying length.
    #[inline]
    pub(crate) fn new(text: &[u8], start: usize, end: usize) -> Option<Self> {
        let len = end.checked_sub(start)?;
        let mask = MASKS.get(len)?;
        let load = |bytes: &[u8; 32]| {
            let (parts, _) = bytes.as_chunks::<8>();
            let mut key = [0u64; 4];
            for ((word, part), mask) in key.iter_mut().zip(parts).zip(mask) {
                *word = u64::from_le_bytes(*part) & mask;
            }
            key
        };
        let mut key = match text.get(start..start + 32) {
            Some(bytes) => load(bytes.try_into().ok()?),
            None => {
                let mut padded = [0u8; 32];
                padded.get_mut(..len)?.copy_from_slice(text.get(start..end)?);
                load(&padded)
            }
        };
        key[3] |= (len as u64) << 56;
        Some(Self(key))
    }

    /// Whether a word of this many bytes has a key.
    #[inline]
    pub(crate) fn fits(len: usize) -> bool {
        len < MASKS.len()
    }

    /// Length of the word in bytes.
    #[inline]
    pub(crate) fn word_len(&self) -> usize {
        let [_, _, _, last] = self.0;
        (last >> 56) as usize
    }

    /// The same hash as [`hash_bytes`](super::index::hash_bytes) over the word.
    #[inline]
    pub(crate) fn hash(&self, seed: u64) -> u64 {
        let [first, second, third, fourth] = self.0;
        let len = self.word_len();
        let mut hash = hash_start(len, seed);
        if len > 0 {
            hash = hash_step(hash, first);
        }
        if len > 8 {
            hash = hash_step(hash, second);
            if len > 16 {
                hash = hash_step(hash, third);
            }
            if len > 24 {
                hash = hash_step(hash, fourth & 0x00FF_FFFF_FFFF_FFFF);
            }
        }
        hash_end(hash)
    }
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Slot {
    key: WordKey,
    ids: [u32; IDS_MAX],
    /// Zero in an empty slot.
    count: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct WordCache {
    slots: Box<[Slot]>,
}

impl WordCache {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); SLOTS].into_boxed_slice() }
    }

    /// Appends the ids of a word to `out` if they are known.
    #[inline]
    pub(crate) fn recall(&self, key: &WordKey, hash: u64, out: &mut Vec<u32>) -> bool {
        let slot = match self.slots.get(place(hash)) {
            Some(slot) if slot.count != 0 && slot.key == *key => slot,
            _ => return false,
        };
        if slot.count == 1 {
            out.push(slot.ids[0]);
        } else {
            out.extend_from_slice(slot.ids.get(..slot.count as usize).unwrap_or_default());
        }
        true
    }

    /// Keeps the ids of a word, if they are few enough, in place of what was there.
    #[inline]
    pub(crate) fn remember(&mut self, key: &WordKey, hash: u64, ids: &[u32]) {
        if ids.is_empty() || ids.len() > IDS_MAX {
            return;
        }
        let Some(slot) = self.slots.get_mut(place(hash)) else { return };
        slot.key = *key;
        for (to, from) in slot.ids.iter_mut().zip(ids) {
            *to = *from;
        }
        slot.count = ids.len() as u32;
    }
}

#[inline]
fn place(hash: u64) -> usize {
    // The low bits: the high ones choose the slot in the token index.
    hash as usize % SLOTS
}

/// 4,096 characters, 32 KB.
const CHARS: usize = 4096;

/// The symbol of each character seen, [`NO_SYMBOL`](super::NO_SYMBOL) for those that have none.
#[derive(Debug)]
pub(crate) struct CharCache {
    /// Character in the high half, symbol in the low one. No character is all ones.
    slots: Box<[u64]>,
}

impl CharCache {
    pub(crate) fn new() -> Self {
        Self { slots: vec![u64::MAX; CHARS].into_boxed_slice() }
    }

    /// The symbol of a character, from `find` if it is not here.
    #[inline]
    pub(crate) fn get(&mut self, char: char, find: impl FnOnce() -> u32) -> u32 {
        let key = u64::from(u32::from(char));
        let Some(slot) = self.slots.get_mut(key as usize % CHARS) else {
            return find();
        };
        if *slot >> 32 != key {
            *slot = key << 32 | u64::from(find());
        }
        *slot as u32
    }
}

/// 8,192 pairs, 64 KB.
const PAIRS: usize = 8192;
/// Stands for [`MergeIndex::NEVER`] in a slot.
const NEVER: u64 = ID_MASK as u64;

/// Ranks of the pairs seen, also of those that do not merge.
#[derive(Debug)]
pub(crate) struct PairCache {
    /// Pair in the upper bits, rank in the lower 20.
    slots: Box<[u64]>,
}

impl PairCache {
    pub(crate) fn new() -> Self {
        Self { slots: vec![u64::MAX; PAIRS].into_boxed_slice() }
    }

    /// [`MergeIndex::rank`] by way of the cache.
    #[inline]
    pub(crate) fn rank(&mut self, merges: &MergeIndex, bytes: &[u8], left: u32, right: u32) -> u32 {
        let key = u64::from(left) << ID_BITS | u64::from(right);
        let place = key.wrapping_mul(PAIR_MIX) >> (64 - PAIRS.ilog2());
        let Some(slot) = self.slots.get_mut(place as usize) else {
            return merges.rank(bytes, left, right);
        };
        if *slot >> ID_BITS != key {
            let rank = merges.rank(bytes, left, right);
            *slot = key << ID_BITS | u64::from(rank).min(NEVER);
        }
        match *slot & NEVER {
            NEVER => MergeIndex::NEVER,
            rank => rank as u32,
        }
    }
}

/// Spreads pairs over the cache: an odd number near 2^64 divided by the golden ratio.
const PAIR_MIX: u64 = 0x9E37_79B9_7F4A_7C15;
