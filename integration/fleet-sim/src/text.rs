//! Prompts as pieces of text: what a workload generates and keeps.
//!
//! In: pieces, each a run of tokens named by a number, or tokens that an engine generated. Out: the
//! token ids, equal wherever the pieces are equal, and block hashes as the router and as the engine
//! see them. A piece costs a few bytes until the moment its request is sent, so that an hour of
//! traffic fits in memory.

use std::num::NonZeroU32;
use std::sync::Arc;

use warmpath_core::blocks::{self, Namespace};
use warmpath_core::ids::BlockHash;
use warmpath_engine_sim::model::{BlockHash as EngineHash, Prompt, PromptShapeError};

/// Bits of the token ids that texts are made of: about the size of a common vocabulary.
const TOKEN_BITS: u32 = 17;

/// The model that every simulated engine serves.
pub const MODEL: &str = "m";

/// A run of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The first `tokens` tokens of the endless text number `id`.
    Text {
        /// The text's number.
        id: u64,
        /// How much of it.
        tokens: u32,
    },
    /// Tokens as given: an engine's answer that is sent back.
    Given(Arc<[u32]>),
}

/// The tokens of `pieces`, in a row.
#[must_use]
pub fn tokens(pieces: &[Piece]) -> Vec<u32> {
    let mut all = Vec::with_capacity(length(pieces));
    for piece in pieces {
        match piece {
            Piece::Text { id, tokens } => {
                let seed = mix(*id);
                let token = |at: u64| (mix(seed ^ at) >> (u64::BITS - TOKEN_BITS)) as u32;
                all.extend((0..u64::from(*tokens)).map(token));
            }
            Piece::Given(given) => all.extend_from_slice(given),
        }
    }
    all
}

/// How many tokens `pieces` have.
#[must_use]
pub fn length(pieces: &[Piece]) -> usize {
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text { tokens, .. } => *tokens as usize,
            Piece::Given(given) => given.len(),
        })
        .sum()
}

/// The router's hashes of a prompt.
#[must_use]
pub fn router_hashes(tokens: &[u32], block_size_tokens: NonZeroU32) -> Vec<BlockHash> {
    let namespace = Namespace { model: MODEL, adapter: "", cache_salt: "" };
    blocks::block_hashes(namespace.seed(), tokens, &[], block_size_tokens)
}

/// The prompt as the engines take it. Where no later prompt contains an answer, the engine needs no
/// tokens, and the router's hashes serve as its own.
///
/// # Errors
/// [`PromptShapeError::Empty`] for a prompt without tokens.
pub fn engine_prompt(
    tokens: Vec<u32>,
    hashes: &[BlockHash],
    block_size_tokens: NonZeroU32,
    needs_tokens: bool,
) -> Result<Prompt, PromptShapeError> {
    let block_size_tokens = block_size_tokens.get();
    if needs_tokens {
        return Prompt::from_tokens(MODEL, tokens, block_size_tokens);
    }
    let token_count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let hashes = hashes.iter().map(|hash| EngineHash::new(hash.0)).collect();
    Prompt::from_block_hashes(hashes, token_count, block_size_tokens)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), to spread neighbouring numbers.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pieces_give_equal_tokens_and_longer_ones_go_on() {
        let short = tokens(&[Piece::Text { id: 7, tokens: 20 }]);
        let long = tokens(&[Piece::Text { id: 7, tokens: 30 }, Piece::Given([1, 2].into())]);
        assert_eq!(long[..20], short[..]);
        assert_eq!(long[30..], [1, 2]);
        assert_ne!(tokens(&[Piece::Text { id: 8, tokens: 20 }]), short);
        assert_eq!(length(&[Piece::Text { id: 7, tokens: 30 }, Piece::Given([1, 2].into())]), 32);
    }
}
