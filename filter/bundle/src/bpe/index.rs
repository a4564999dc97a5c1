//! The two tables of a BPE model: tokens by their bytes, and merges by their pair.
//!
//! Both are [`Phf`] tables inside the bundle, used in place, with slots of 64 bits, so that the
//! tables of a 128k vocabulary (1.1 MB each) stay near the CPU.
//!
//! ```text
//! token   digest 18 bits | place of its text 24 | flags 2 | id 20
//! merge   left id 20 (and 4 zero bits above) | right id 20 | rank 20
//! ```

use std::ops::Range;

use super::cache::WordKey;
use crate::error::BundleError;
use crate::format::{Kind, Layout, u32_at};
use crate::phf::Phf;

/// Bits of a token id or a merge rank in the tables. The largest vocabularies in use have 262,144
/// tokens and 514,906 merges; a million of each fits.
pub(crate) const ID_BITS: u32 = 20;
pub(crate) const ID_MASK: u32 = (1 << ID_BITS) - 1;
/// The largest id or rank, one below all ones, which mark an empty slot.
pub(crate) const ID_MAX: u32 = ID_MASK - 1;

/// A word equal to this token is encoded as this token.
pub(crate) const FLAG_WHOLE: u32 = 1 << 20;
/// A character equal to this token may enter the merges as this token rather than as its bytes.
pub(crate) const FLAG_CHAR: u32 = 1 << 21;
const TEXT_SHIFT: u32 = 22;
const TEXT_BITS: u32 = 24;
/// The largest place of a token's text, in bytes.
pub(crate) const TEXT_AT_MAX: usize = (1 << TEXT_BITS) - 1;
const DIGEST_SHIFT: u32 = TEXT_SHIFT + TEXT_BITS;
/// Bytes of the length before a token's text.
const LEN_BYTES: usize = 2;

/// Hashes the bytes of a word, eight at a time, the last ones padded with zeros.
#[inline]
pub(crate) fn hash_bytes(bytes: &[u8], seed: u64) -> u64 {
    let mut hash = hash_start(bytes.len(), seed);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        hash = hash_step(hash, chunk.try_into().map_or(0, u64::from_le_bytes));
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let mut last = 0u64;
        for (index, byte) in rest.iter().enumerate() {
            last |= u64::from(*byte) << (8 * index);
        }
        hash = hash_step(hash, last);
    }
    hash_end(hash)
}

// The multipliers are odd numbers with about as many ones as zeros; the tables verify what they
// find, so the hash only has to spread.
#[inline]
pub(crate) fn hash_start(len: usize, seed: u64) -> u64 {
    (seed ^ (len as u64)).wrapping_mul(0xA076_1D64_78BD_642F)
}

#[inline]
pub(crate) fn hash_step(hash: u64, chunk: u64) -> u64 {
    let mixed = (hash ^ chunk).wrapping_mul(0xE703_7ED1_A0B4_28DB);
    mixed ^ (mixed >> 32)
}

#[inline]
pub(crate) fn hash_end(hash: u64) -> u64 {
    let mixed = hash.wrapping_mul(0x8EBC_6AF0_9C88_C6E3);
    mixed ^ (mixed >> 29)
}

/// Hashes a merge's pair.
#[inline]
pub(crate) fn hash_pair(left: u32, right: u32, seed: u64) -> u64 {
    let key = (u64::from(left) << ID_BITS) | u64::from(right);
    hash_end(hash_step(seed, key))
}

/// What a token's slot holds. The digest is the lowest bits of the hash, which do not choose the
/// slot: most absent words are told by it alone.
#[cfg(feature = "write")]
pub(crate) fn token_slot(hash: u64, text_at: usize, id_and_flags: u32) -> u64 {
    hash << DIGEST_SHIFT | (text_at as u64) << TEXT_SHIFT | u64::from(id_and_flags)
}

/// A token found by its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: u32,
    /// See [`FLAG_WHOLE`].
    pub(crate) whole: bool,
    /// See [`FLAG_CHAR`].
    pub(crate) char_safe: bool,
}

/// Tokens by their bytes.
#[derive(Debug)]
pub(crate) struct TokenIndex {
    phf: Phf,
    text: Range<usize>,
}

impl TokenIndex {
    pub(crate) fn read(bytes: &[u8], layout: &Layout) -> Result<Self, BundleError> {
        let index = layout.range(Kind::TokenIndex)?;
        let phf = Phf::read(bytes, index, Kind::TokenIndex.name())?;
        let text = layout.range(Kind::Tokens)?;
        Ok(Self { phf, text })
    }

    /// Seed for [`hash_bytes`].
    #[inline]
    pub(crate) fn seed(&self) -> u64 {
        self.phf.seed
    }

    /// The token with exactly these bytes, which hash as `hash`.
    #[inline]
    pub(crate) fn find(&self, bytes: &[u8], word: &[u8], hash: u64) -> Option<Found> {
        let (found, text) = self.candidate(bytes, word.len(), hash)?;
        (text.get(..word.len()) == Some(word)).then_some(found)
    }

    /// [`Self::find`] for a word that has a key.
    #[inline]
    pub(crate) fn find_key(&self, bytes: &[u8], key: &WordKey, hash: u64) -> Option<Found> {
        let (found, text) = self.candidate(bytes, key.word_len(), hash)?;
        (WordKey::new(text, 0, key.word_len()) == Some(*key)).then_some(found)
    }

    /// The only token that can be the word, and what follows the place of its text, if digest and
    /// length agree.
    #[inline]
    fn candidate<'a>(&self, bytes: &'a [u8], len: usize, hash: u64) -> Option<(Found, &'a [u8])> {
        let slot = self.phf.get(bytes, hash);
        if (slot ^ (hash << DIGEST_SHIFT)) >> DIGEST_SHIFT != 0 {
            return None;
        }
        let at = self.text.start + ((slot >> TEXT_SHIFT) as usize & TEXT_AT_MAX);
        let (head, text) = bytes.get(at..)?.split_first_chunk::<LEN_BYTES>()?;
        if usize::from(u16::from_le_bytes(*head)) != len {
            return None;
        }
        let found = Found {
            id: slot as u32 & ID_MASK,
            whole: slot as u32 & FLAG_WHOLE != 0,
            char_safe: slot as u32 & FLAG_CHAR != 0,
        };
        Some((found, text))
    }
}

/// Merges by their pair.
#[derive(Debug)]
pub(crate) struct MergeIndex {
    phf: Phf,
    products_at: usize,
    count: u32,
}

impl MergeIndex {
    /// The rank that [`Self::rank`] gives for pairs that do not merge.
    pub(crate) const NEVER: u32 = u32::MAX;

    pub(crate) fn read(bytes: &[u8], layout: &Layout) -> Result<Self, BundleError> {
        let phf = Phf::read(bytes, layout.range(Kind::Merges)?, Kind::Merges.name())?;
        let products = layout.range(Kind::Products)?;
        let size = products.len();
        if size % 4 != 0 || size / 4 > ID_MAX as usize + 1 {
            return Err(BundleError::malformed(Kind::Products.name(), "bad size"));
        }
        Ok(Self { phf, products_at: products.start, count: (size / 4) as u32 })
    }

    /// The rank of a pair, lower ones merge first, or [`Self::NEVER`].
    #[inline]
    pub(crate) fn rank(&self, bytes: &[u8], left: u32, right: u32) -> u32 {
        let slot = self.phf.get(bytes, hash_pair(left, right, self.phf.seed));
        let key = (u64::from(left) << ID_BITS) | u64::from(right);
        if slot >> ID_BITS == key { slot as u32 & ID_MASK } else { Self::NEVER }
    }

    /// What the merge of this rank makes.
    #[inline]
    pub(crate) fn product(&self, bytes: &[u8], rank: u32) -> Option<u32> {
        if rank >= self.count {
            return None;
        }
        u32_at(bytes, self.products_at + 4 * rank as usize)
    }
}
