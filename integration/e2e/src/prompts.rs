//! Prompts as token ids.
//!
//! Ids need no tokenizer, neither in the filter nor in the engines, so that both surely mean the same
//! blocks. A prompt follows from its number alone.

use serde_json::{Value, json};

/// The model's name in the filter's configuration and in the engines.
pub const MODEL: &str = "demo";

/// Tokens in a block, in the filter's configuration and in the engines.
pub const BLOCK_TOKENS: usize = 16;

/// Prompt `number` with so many full blocks and a few tokens more. Different numbers differ from the first
/// token on; the same number with fewer blocks is a prefix.
pub fn prompt(number: u32, blocks: usize) -> Vec<u32> {
    let mut state = u64::from(number).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Below the size of any vocabulary; not 0, which some reserve.
        u32::try_from(state % 30_000).unwrap_or(0) + 1
    };
    let mut tokens = vec![100_000 + number];
    tokens.extend((1..blocks * BLOCK_TOKENS).map(|_| next()));
    // An incomplete block, which no cache keeps.
    tokens.extend([1, 2, 3]);
    tokens
}

/// The tokens of `prompt`'s full blocks, without the rest.
pub fn full_blocks(prompt: &[u32]) -> &[u32] {
    &prompt[..prompt.len() / BLOCK_TOKENS * BLOCK_TOKENS]
}

/// The body of a completions request for a short answer.
pub fn completion(prompt: &[u32]) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": 2})
}
