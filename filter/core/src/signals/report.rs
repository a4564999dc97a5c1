//! What one engine says of itself, whichever engine it is.

use std::num::NonZeroU32;

/// A usage up to this is 1, rounded by the engine; one beyond is not a share.
pub(super) const USAGE_MAX: f64 = 1.1;

/// An engine, told by the names of its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// vLLM, on its own or inside Triton.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM behind `trtllm-serve`.
    TrtLlm,
    /// TensorRT-LLM behind Triton.
    Triton,
    /// llama.cpp's server.
    LlamaCpp,
}

impl EngineKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] =
        [Self::Vllm, Self::Sglang, Self::TrtLlm, Self::Triton, Self::LlamaCpp];

    /// Its name as a label's value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TrtLlm => "trtllm",
            Self::Triton => "triton",
            Self::LlamaCpp => "llamacpp",
        }
    }
}

/// One reading of an engine's metrics. An engine with several data-parallel ranks or models counts as
/// one: counts and blocks are sums over them, the usage is their mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineReport {
    /// Which engine; `None` in a report that was not read from metrics.
    pub engine: Option<EngineKind>,
    /// Requests in its queue.
    pub waiting: Option<u32>,
    /// Requests that it computes.
    pub running: Option<u32>,
    /// Share of the KV memory in use, 0 to 1. vLLM and SGLang count what running requests hold, so
    /// it says how much is pinned, not how full the prefix cache is.
    pub kv_usage: Option<f32>,
    /// Tokens in one KV block; `None` also when its ranks or models differ.
    pub block_size_tokens: Option<NonZeroU32>,
    /// KV blocks that it has. Where a block is shared by several kinds of layers, blocks times their
    /// size is less than the tokens that fit.
    pub kv_blocks: Option<NonZeroU32>,
    /// Tokens of prompts since its start, cached ones included. A llama.cpp that does not count the
    /// cached ones leaves them out.
    pub prompt_tokens: Option<u64>,
    /// Tokens that it generated since its start.
    pub generation_tokens: Option<u64>,
    /// Prompt tokens since its start that were looked up in the prefix cache. Engines without such a
    /// counter look up all: their [`prompt_tokens`](Self::prompt_tokens), if they count hits.
    /// vLLM before 0.9 counted blocks, here and in the hits; their ratio is right all the same.
    pub prefix_query_tokens: Option<u64>,
    /// Of these, tokens that were found there.
    pub prefix_hit_tokens: Option<u64>,
    /// When its process started, in seconds of Unix time; the latest of several.
    pub started_at_s: Option<f64>,
}
