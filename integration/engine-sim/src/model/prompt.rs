//! From tokens to chained block hashes.
//!
//! What comes in: a namespace (model, adapter, cache salt), token ids and the block size. What
//! goes out: a [`Prompt`] with one 64-bit hash a full block, each chained to the one before it, so
//! that equal hashes mean equal prefixes.
//!
//! The hash is this engine's own, as a real engine's is: routers must not rely on it. Hashing
//! costs about 10 ns a block of 16 tokens.

use std::num::NonZeroU64;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The chained hash of one full block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(NonZeroU64);

impl BlockHash {
    /// The hash with this value. Zero becomes one: the type has no zero, which keeps an optional
    /// hash at 8 bytes.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self(NonZeroU64::new(value).unwrap_or(NonZeroU64::MIN))
    }

    /// The hash's value.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Hashes blocks; keeps the byte buffer between blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockHasher {
    bytes: Vec<u8>,
}

impl BlockHasher {
    /// The hash of a block whose chain value is `parent` (the previous block's hash, or the
    /// namespace's).
    pub(crate) fn hash(&mut self, parent: u64, tokens: &[u32]) -> BlockHash {
        self.bytes.clear();
        self.bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        BlockHash::new(xxh3_64_with_seed(&self.bytes, parent))
    }
}

/// Why block hashes given by the caller do not describe a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptShapeError {
    /// The number of hashes is not the number of full blocks of the prompt.
    #[error("{hashes} block hashes for a prompt of {full_blocks} full blocks")]
    HashCount {
        /// Hashes given.
        hashes: usize,
        /// Full blocks in the prompt.
        full_blocks: u32,
    },
    /// A prompt has at least one token and a block at least one too.
    #[error("a prompt and its blocks have at least one token")]
    Empty,
}

/// A prompt as the engine needs it: its length and the hashes of its full blocks.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) token_count: u32,
    pub(crate) block_size_tokens: u32,
    /// Where the chain starts: the namespace's hash.
    pub(crate) root: u64,
    pub(crate) block_hashes: Vec<BlockHash>,
    /// Absent when the caller knows only hashes.
    pub(crate) tokens: Option<Arc<[u32]>>,
}

impl Prompt {
    /// The prompt with these tokens. `namespace` separates caches that must not share blocks:
    /// another model, adapter or cache salt is another namespace.
    ///
    /// # Errors
    /// [`PromptShapeError::Empty`].
    pub fn from_tokens(
        namespace: &str,
        tokens: impl Into<Arc<[u32]>>,
        block_size_tokens: u32,
    ) -> Result<Self, PromptShapeError> {
        let tokens: Arc<[u32]> = tokens.into();
        let token_count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if token_count == 0 || block_size_tokens == 0 {
            return Err(PromptShapeError::Empty);
        }
        let root = xxh3_64(namespace.as_bytes());
        let mut hasher = BlockHasher::default();
        let mut parent = root;
        let block_hashes = tokens
            .chunks_exact(block_size_tokens as usize)
            .map(|block| {
                let hash = hasher.hash(parent, block);
                parent = hash.get();
                hash
            })
            .collect();
        Ok(Self { token_count, block_size_tokens, root, block_hashes, tokens: Some(tokens) })
    }

    /// The prompt of which only the hashes of its full blocks are known. What follows its last
    /// full block, and what it generates, is shared with no other request.
    ///
    /// # Errors
    /// When the number of hashes does not fit the length.
    pub fn from_block_hashes(
        block_hashes: Vec<BlockHash>,
        token_count: u32,
        block_size_tokens: u32,
    ) -> Result<Self, PromptShapeError> {
        if token_count == 0 || block_size_tokens == 0 {
            return Err(PromptShapeError::Empty);
        }
        let full_blocks = token_count / block_size_tokens;
        if block_hashes.len() != full_blocks as usize {
            return Err(PromptShapeError::HashCount { hashes: block_hashes.len(), full_blocks });
        }
        Ok(Self { token_count, block_size_tokens, root: 0, block_hashes, tokens: None })
    }

    /// Tokens in the prompt.
    #[must_use]
    pub fn token_count(&self) -> u32 {
        self.token_count
    }

    /// The hashes of the full blocks, in order.
    #[must_use]
    pub fn block_hashes(&self) -> &[BlockHash] {
        &self.block_hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(namespace: &str, tokens: &[u32]) -> Vec<BlockHash> {
        Prompt::from_tokens(namespace, tokens, 4).unwrap().block_hashes
    }

    #[test]
    fn only_full_blocks_are_hashed_and_the_chain_separates_prefixes() {
        let a = hashes("m", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(a.len(), 2);
        assert_eq!(a[0], hashes("m", &[1, 2, 3, 4])[0]);
        // The same second block after another first block is another block.
        let b = hashes("m", &[1, 2, 3, 0, 5, 6, 7, 8]);
        assert_ne!(a[1], b[1]);
        assert_ne!(hashes("m", &[1, 2, 3, 4]), hashes("other", &[1, 2, 3, 4]));
    }

    #[test]
    fn shapes_are_checked() {
        assert_eq!(Prompt::from_tokens("m", Vec::new(), 4).unwrap_err(), PromptShapeError::Empty);
        let hash = BlockHash::new(0);
        assert_eq!(hash.get(), 1);
        assert!(Prompt::from_block_hashes(vec![hash], 7, 4).is_ok());
        assert!(matches!(
            Prompt::from_block_hashes(vec![hash], 8, 4),
            Err(PromptShapeError::HashCount { .. })
        ));
    }
}
