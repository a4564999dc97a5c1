//! Tokens -> block hashes.
//!
//! In: the prompt's tokens, its namespace and the content hashes of its multimodal items. Out: one
//! chained hash a full block. A block's hash covers everything before it, so equal hashes mean
//! equal prefixes and two different prefixes never match further in, however alike their later
//! blocks are. Linear in the tokens; no allocation beyond the output and one block.

use std::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ids::{BlockHash, TokenId};
use crate::limits::PROMPT_BLOCKS_MAX;

/// What keeps prefixes of equal tokens apart: their KV values differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    /// The base model.
    pub model: &'a str,
    /// The LoRA adapter, empty without one.
    pub adapter: &'a str,
    /// The tenant's `cache_salt`, empty without one.
    pub cache_salt: &'a str,
}

impl Namespace<'_> {
    /// The hash that a prompt's first block is chained to.
    #[must_use]
    pub fn seed(&self) -> BlockHash {
        // The length goes in front of each part, so that no two triples concatenate alike.
        let mut bytes = Vec::with_capacity(64);
        for part in [self.model, self.adapter, self.cache_salt] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        BlockHash(xxh3_64_with_seed(&bytes, 0))
    }
}

/// A multimodal item's content, at the token where its placeholder starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaItem {
    /// Index of the placeholder's first token in the prompt.
    pub token_index: usize,
    /// Hash of the item's bytes or URL.
    pub content_hash: u64,
}

/// Hashes of the prompt's full blocks, at most [`PROMPT_BLOCKS_MAX`] of them.
///
/// `media` is in order of its token index; each item's hash enters the block it starts in. Tokens
/// of a last, partial block are left out: engines cache full blocks only.
#[must_use]
pub fn block_hashes(
    seed: BlockHash,
    tokens: &[TokenId],
    media: &[MediaItem],
    block_size_tokens: NonZeroU32,
) -> Vec<BlockHash> {
    let size = block_size_tokens.get() as usize;
    let count = (tokens.len() / size).min(PROMPT_BLOCKS_MAX);
    let mut hashes = Vec::with_capacity(count);
    let mut bytes: Vec<u8> = Vec::with_capacity(size * 4 + 8);
    let mut media = media.iter().peekable();
    let mut parent = seed;
    for (block_index, block) in tokens.chunks_exact(size).take(count).enumerate() {
        bytes.clear();
        for token in block {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        let block_end = (block_index + 1) * size;
        while let Some(item) = media.next_if(|item| item.token_index < block_end) {
            bytes.extend_from_slice(&item.content_hash.to_le_bytes());
        }
        parent = BlockHash(xxh3_64_with_seed(&bytes, parent.0));
        hashes.push(parent);
    }
    hashes
}

/// Blocks of a prompt that an engine can serve from its cache: full ones, and never all of a
/// prompt, since at least one token is computed to produce the first output.
#[must_use]
pub fn cacheable_blocks(prompt_tokens: usize, block_size_tokens: NonZeroU32) -> usize {
    prompt_tokens.saturating_sub(1) / block_size_tokens.get() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(tokens: u32) -> NonZeroU32 {
        NonZeroU32::new(tokens).unwrap()
    }

    #[test]
    fn the_hash_is_stable_across_builds() {
        let seed = Namespace { model: "m", adapter: "", cache_salt: "" }.seed();
        let tokens: Vec<u32> = (0..48).collect();
        let hashes = block_hashes(seed, &tokens, &[], size(16));
        let golden: Vec<String> = hashes.iter().map(|h| format!("{:016x}", h.0)).collect();
        assert_eq!(golden, GOLDEN);
    }

    // From Python's xxhash: xxh3_64 over the same bytes, each digest seeding the next.
    const GOLDEN: [&str; 3] = ["ea628df6088b85b6", "6fe1593adef70af9", "2b2dbdc2432e5394"];

    #[test]
    fn a_partial_block_is_left_out() {
        let seed = Namespace::default().seed();
        assert_eq!(block_hashes(seed, &[1; 31], &[], size(16)).len(), 1);
        assert_eq!(block_hashes(seed, &[1; 15], &[], size(16)).len(), 0);
        assert_eq!(block_hashes(seed, &[], &[], size(16)).len(), 0);
    }

    #[test]
    fn equal_later_blocks_after_different_first_ones_do_not_match() {
        let seed = Namespace::default().seed();
        let mut a = vec![1; 32];
        let b = a.clone();
        a[0] = 2;
        let (a, b) = (block_hashes(seed, &a, &[], size(16)), block_hashes(seed, &b, &[], size(16)));
        assert_ne!(a[0], b[0]);
        assert_ne!(a[1], b[1]);
    }

    #[test]
    fn namespaces_do_not_share_and_parts_do_not_run_together() {
        let spaces = [
            Namespace { model: "a", adapter: "", cache_salt: "" },
            Namespace { model: "a", adapter: "x", cache_salt: "" },
            Namespace { model: "a", adapter: "", cache_salt: "x" },
            Namespace { model: "ax", adapter: "", cache_salt: "" },
            Namespace { model: "", adapter: "a", cache_salt: "x" },
            Namespace { model: "", adapter: "ax", cache_salt: "" },
        ];
        let mut seeds: Vec<u64> = spaces.iter().map(|space| space.seed().0).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), spaces.len());
    }

    #[test]
    fn media_enters_the_block_where_it_starts() {
        let seed = Namespace::default().seed();
        let tokens = [7; 48];
        let plain = block_hashes(seed, &tokens, &[], size(16));
        let media = [MediaItem { token_index: 20, content_hash: 5 }];
        let with = block_hashes(seed, &tokens, &media, size(16));
        let other = [MediaItem { token_index: 20, content_hash: 6 }];
        assert_eq!(plain[0], with[0]);
        assert_ne!(plain[1], with[1]);
        assert_ne!(with[1], block_hashes(seed, &tokens, &other, size(16))[1]);
    }

    #[test]
    fn one_token_is_always_computed() {
        assert_eq!(cacheable_blocks(0, size(16)), 0);
        assert_eq!(cacheable_blocks(16, size(16)), 0);
        assert_eq!(cacheable_blocks(17, size(16)), 1);
        assert_eq!(cacheable_blocks(32, size(16)), 1);
    }
}
