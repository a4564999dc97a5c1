//! What a GPU with a model on it can do, as numbers.
//!
//! What comes in: a profile's name, or every field by hand. What goes out: a [`Profile`], and the
//! duration of an engine step.
//!
//! # The cost of a step
//!
//! ```text
//! step = decode_step + decode_per_seq x scheduled sequences + prefill tokens / prefill rate
//! ```
//!
//! A step reads the weights once (`decode_step`), the KV of each sequence (`decode_per_seq`), and
//! computes the prompt tokens scheduled in it at the rate at which the GPU does large matrix
//! products. Adding the three is pessimistic for steps that overlap memory traffic and compute,
//! and ignores that attention makes late chunks of a long prompt dearer than early ones. Both
//! errors are the same for every routing policy, which is what these profiles are compared under.
//!
//! # The named profiles
//!
//! All stand for vLLM on A100 40 GB cards, bfloat16 KV, memory utilisation 0.9 (36 GB a card),
//! chunked prefill with 2,048 tokens a step and at most 256 sequences: vLLM's defaults for that
//! card.
//!
//! | profile | KV tokens | prefill tokens/s | step | a sequence | from |
//! |---|---|---|---|---|---|
//! | `a100-1b` | 983,040 | 40,000 | 5 ms | 0.01 ms | derived, see below |
//! | `a100-8b` | 142,144 | 10,000 | 11 ms | 0.05 ms | published KV size and rates of an 8 x A100 fleet |
//! | `a100-13b` | 11,648 | 6,000 | 20 ms | 0.3 ms | the same fleet |
//! | `a100-70b` | 91,744 | 3,500 | 25 ms | 0.06 ms | published TTFT of that fleet, and arithmetic |
//!
//! The published KV sizes agree with the arithmetic: an 8B model with grouped-query attention
//! needs 128 KiB a token, so 142,144 tokens are 17.4 GiB beside 16 GB of weights; a 13B model with
//! one KV head a query head needs 800 KiB, so 11,648 tokens are 8.9 GiB beside 26 GB.
//!
//! - The per-sequence cost is the time to read the KV of a context of a few thousand tokens. It is
//!   0.3 ms for the 13B model and scales with KV bytes a token and card: 128 KiB give 0.05 ms,
//!   160 KiB (70B on two cards) 0.06 ms, 32 KiB 0.01 ms.
//! - `a100-70b` is one tensor-parallel pair. Two cards hold 72 GB: a 70B model fits only with 4-bit
//!   weights (about 37 GB), which leaves 28 GiB after activations; 320 KiB a token make 91,744
//!   tokens. Its prefill rate follows from the published TTFT of prompts of at least 4,000 tokens,
//!   1,498 ms with a prefix hit and 2,665 ms without: 4,000 tokens in 1,167 ms are 3,430 tokens/s,
//!   77% of what two cards can compute (624 TFLOP/s over 140 GFLOP a token). A step reads 18.5 GB
//!   a card at 1.1 TB/s, 17 ms, and 160 all-reduces add about 8 ms.
//! - `a100-1b` leaves 30 GiB for KV at 32 KiB a token. Models of that size are bound by kernel
//!   launches: 5 ms a step, and 40,000 tokens/s, a third of the card's peak.

use std::time::Duration;

use crate::limits::KV_BLOCKS_MAX;

/// The speed and memory of one engine. Every field may be changed after taking a named profile;
/// [`crate::model::Engine::new`] checks the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The profile's name, for logs and reports.
    pub name: String,
    /// KV memory in tokens, as vLLM logs it at start ("GPU KV cache size"). One block of it is the
    /// null block, which no request can use.
    pub kv_tokens: u32,
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_s: f64,
    /// The fixed part of a step, in milliseconds.
    pub decode_step_ms: f64,
    /// What each scheduled sequence adds to a step, in milliseconds.
    pub decode_per_seq_ms: f64,
    /// The most sequences that run at once.
    pub max_num_seqs: u32,
    /// The most tokens scheduled in one step, prompt and decode together: the chunked-prefill
    /// budget.
    pub max_num_batched_tokens: u32,
    /// Tokens in a KV block.
    pub block_size_tokens: u32,
    /// The longest context (prompt and output) of a request; `None`: as much as the KV memory
    /// holds.
    pub max_model_len_tokens: Option<u32>,
}

/// Why a profile cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// No profile has this name.
    #[error("unknown profile {name:?}; known: {}", Profile::NAMES.join(", "))]
    UnknownName {
        /// The name asked for.
        name: String,
    },
    /// A field is zero, negative or not finite where that makes no sense.
    #[error("profile field {field} must be positive and finite")]
    NotPositive {
        /// The field's name.
        field: &'static str,
    },
    /// Fewer than two blocks fit: one is the null block.
    #[error("{kv_tokens} KV tokens are less than two blocks of {block_size_tokens}")]
    TooFewBlocks {
        /// The KV memory asked for.
        kv_tokens: u32,
        /// The block size asked for.
        block_size_tokens: u32,
    },
    /// More blocks than the pool may have.
    #[error("{blocks} KV blocks are more than the limit of {KV_BLOCKS_MAX}")]
    TooManyBlocks {
        /// The number of blocks asked for.
        blocks: u32,
    },
}

impl Profile {
    /// The names of the built-in profiles.
    pub const NAMES: [&'static str; 4] = ["a100-1b", "a100-8b", "a100-13b", "a100-70b"];

    /// The built-in profile of that name.
    ///
    /// # Errors
    /// [`ProfileError::UnknownName`].
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let (kv_tokens, prefill_tokens_per_s, decode_step_ms, decode_per_seq_ms) = match name {
            "a100-1b" => (983_040, 40_000.0, 5.0, 0.01),
            "a100-8b" => (142_144, 10_000.0, 11.0, 0.05),
            "a100-13b" => (11_648, 6_000.0, 20.0, 0.3),
            "a100-70b" => (91_744, 3_500.0, 25.0, 0.06),
            _ => {
                return Err(ProfileError::UnknownName { name: name.to_owned() });
            }
        };
        Ok(Self {
            name: name.to_owned(),
            kv_tokens,
            prefill_tokens_per_s,
            decode_step_ms,
            decode_per_seq_ms,
            max_num_seqs: 256,
            max_num_batched_tokens: 2_048,
            block_size_tokens: 16,
            max_model_len_tokens: None,
        })
    }

    /// Blocks in the pool, the null block included.
    #[must_use]
    pub fn num_gpu_blocks(&self) -> u32 {
        self.kv_tokens.checked_div(self.block_size_tokens).unwrap_or(0)
    }

    /// The longest context of a request, prompt and output together.
    #[must_use]
    pub fn context_tokens_max(&self) -> u32 {
        let fits = self.num_gpu_blocks().saturating_sub(1) * self.block_size_tokens;
        self.max_model_len_tokens.map_or(fits, |len| len.min(fits))
    }

    /// How long a step takes that decodes or prefills `sequences` sequences and computes
    /// `prefill_tokens` prompt tokens.
    #[must_use]
    pub fn step_duration(&self, sequences: u32, prefill_tokens: u32, slow_factor: f64) -> Duration {
        let fixed_ms = self.decode_step_ms + self.decode_per_seq_ms * f64::from(sequences);
        let prefill_ms = f64::from(prefill_tokens) * 1e3 / self.prefill_tokens_per_s;
        let nanos = (fixed_ms + prefill_ms) * slow_factor * 1e6;
        // At least a nanosecond, so that time always moves.
        Duration::from_nanos((nanos.round() as u64).max(1))
    }

    /// Whether the profile can be run.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn check(&self) -> Result<(), ProfileError> {
        let positive = [
            ("prefill_tokens_per_s", self.prefill_tokens_per_s),
            ("decode_step_ms", self.decode_step_ms),
            ("max_num_seqs", f64::from(self.max_num_seqs)),
            ("max_num_batched_tokens", f64::from(self.max_num_batched_tokens)),
            ("block_size_tokens", f64::from(self.block_size_tokens)),
            ("max_model_len_tokens", f64::from(self.max_model_len_tokens.unwrap_or(1))),
        ];
        for (field, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(ProfileError::NotPositive { field });
            }
        }
        if !(self.decode_per_seq_ms.is_finite() && self.decode_per_seq_ms >= 0.0) {
            return Err(ProfileError::NotPositive { field: "decode_per_seq_ms" });
        }
        let blocks = self.num_gpu_blocks();
        if blocks < 2 {
            return Err(ProfileError::TooFewBlocks {
                kv_tokens: self.kv_tokens,
                block_size_tokens: self.block_size_tokens,
            });
        }
        if blocks > KV_BLOCKS_MAX {
            return Err(ProfileError::TooManyBlocks { blocks });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_profile_is_runnable() {
        for name in Profile::NAMES {
            let profile = Profile::named(name).unwrap();
            profile.check().unwrap();
            assert_eq!(profile.kv_tokens % profile.block_size_tokens, 0, "{name}");
        }
        assert!(matches!(Profile::named("h100"), Err(ProfileError::UnknownName { .. })));
    }

    #[test]
    fn a_step_adds_weights_sequences_and_prefill() {
        let profile = Profile::named("a100-13b").unwrap();
        // 20 ms + 10 x 0.3 ms + 600 / 6,000 s.
        assert_eq!(profile.step_duration(10, 600, 1.0), Duration::from_millis(123));
        assert_eq!(profile.step_duration(10, 600, 2.0), Duration::from_millis(246));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Profile::named("a100-8b").unwrap();
        let bad = Profile { block_size_tokens: 0, ..good.clone() };
        assert!(matches!(bad.check(), Err(ProfileError::NotPositive { .. })));
        let bad = Profile { kv_tokens: 31, ..good.clone() };
        assert!(matches!(bad.check(), Err(ProfileError::TooFewBlocks { .. })));
        let bad = Profile { decode_step_ms: f64::NAN, ..good.clone() };
        assert!(matches!(bad.check(), Err(ProfileError::NotPositive { .. })));
        let bad = Profile { kv_tokens: u32::MAX, ..good };
        assert!(matches!(bad.check(), Err(ProfileError::TooManyBlocks { .. })));
    }
}
