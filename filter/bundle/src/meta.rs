//! What a bundle says about its model, next to the tokenizer and the templates.

use serde::{Deserialize, Serialize};

use crate::mistral::MistralFormat;

/// Name of a template that writes chats as an engine's own code does, in a bundle that has no other.
///
/// Such code takes less from a request than a template gets: it neither leaves the last message open nor
/// lets the tokenizer put special tokens around the prompt.
pub const ENCODING: &str = "encoding";

/// [`ENCODING`], for code that takes a request's messages before the engine tidies them for templates.
pub const VERBATIM_ENCODING: &str = "verbatim_encoding";

/// Where a bundle comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleMeta {
    /// The model's name, as the one who packed it gave it.
    pub name: String,
    /// xxh3-128 of the source tokenizer.json, in hex: two bundles with the same digest give the
    /// same token ids.
    pub source_digest: String,
    /// One more than the largest token id.
    pub vocab_size: u32,
    /// Tokens that the tokenizer never splits and never merges across.
    pub added_tokens: u32,
    /// The kind of model: `BPE` or `Unigram`.
    pub model_kind: String,
    /// Version of the program that packed the bundle.
    pub packed_by: String,
    /// How chats are written where Mistral's library does it. In texts of such models nothing is a special
    /// token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistral: Option<MistralFormat>,
}

/// The special tokens of tokenizer_config.json, for chat templates, which name them as variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// Opens a sequence.
    pub bos_token: Option<String>,
    /// Ends a sequence.
    pub eos_token: Option<String>,
    /// Stands for what the vocabulary lacks.
    pub unk_token: Option<String>,
    /// Fills up a batch.
    pub pad_token: Option<String>,
    /// Every other `*_token`, by its key: `sep_token`, `image_token` and the like.
    #[serde(default)]
    pub extra: Vec<(String, String)>,
    /// The list `additional_special_tokens`.
    #[serde(default)]
    pub additional: Vec<String>,
}
