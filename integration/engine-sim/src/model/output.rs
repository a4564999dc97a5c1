//! Which tokens the engine "generates".
//!
//! What comes in: the seed, the prompt's last hash and tail, and the index of the output token.
//! What goes out: a token id out of a small vocabulary.
//!
//! Generation is a pure function of prompt and seed, as greedy decoding on equal weights is: every
//! engine with the same seed gives the same answer to the same prompt, and a client that sends the
//! answer back in its next turn hits the blocks that decoding filled, provided that the text of
//! the vocabulary's tokens encodes to these very tokens again.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::prompt::BlockHash;

/// The token ids that an engine picks its output from; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputVocabulary(Arc<[u32]>);

impl OutputVocabulary {
    /// The vocabulary of these ids; `None` when there are none.
    #[must_use]
    pub fn new(ids: impl Into<Arc<[u32]>>) -> Option<Self> {
        let ids: Arc<[u32]> = ids.into();
        (!ids.is_empty()).then_some(Self(ids))
    }

    /// The token at a position of an output stream.
    pub(crate) fn pick(&self, stream: OutputStream, index: u32) -> u32 {
        let draw = mix(stream.0 ^ (u64::from(index) << 1 | 1));
        // The high half of a 64 x 64 product spreads the draw over the vocabulary without bias
        // that matters at this size.
        let at = (u128::from(draw) * self.0.len() as u128) >> 64;
        self.0[at as usize]
    }
}

impl Default for OutputVocabulary {
    /// The lower-case letters as bytes, which is what a tokenizer of bytes reads back.
    fn default() -> Self {
        Self((u32::from(b'a')..=u32::from(b'z')).collect())
    }
}

/// Identifies what a request generates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputStream(u64);

impl OutputStream {
    /// The stream of the prompt that ends in block `last` (or has no full block) and in `tail`.
    pub(crate) fn new(seed: u64, root: u64, last: Option<BlockHash>, tail: &[u32]) -> Self {
        let mut bytes = Vec::with_capacity(tail.len() * 4 + 8);
        bytes.extend(last.map_or(root, BlockHash::get).to_le_bytes());
        bytes.extend(tail.iter().flat_map(|token| token.to_le_bytes()));
        Self(xxh3_64_with_seed(&bytes, seed))
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that spreads
/// neighbouring inputs over all 64 bits.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_depends_on_seed_and_prompt_only() {
        let vocabulary = OutputVocabulary::default();
        let text = |seed, tail: &[u32]| -> Vec<u32> {
            let stream = OutputStream::new(seed, 7, None, tail);
            (0..32).map(|index| vocabulary.pick(stream, index)).collect()
        };
        assert_eq!(text(1, &[1, 2]), text(1, &[1, 2]));
        assert_ne!(text(1, &[1, 2]), text(2, &[1, 2]));
        assert_ne!(text(1, &[1, 2]), text(1, &[1, 3]));
        assert!(text(1, &[1]).iter().all(|id| (97..=122).contains(id)));
        assert!(OutputVocabulary::new(Vec::new()).is_none());
    }
}
