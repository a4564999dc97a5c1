//! How Mistral's own library writes chats, which engines use for models that come with a tekken.json.

use serde::{Deserialize, Serialize};

/// What the library needs to know of a model beside its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MistralFormat {
    /// The version of the format.
    pub version: MistralVersion,
    /// The reasoning efforts that a prompt may name; `None` for models that are not told any.
    pub efforts: Option<MistralEfforts>,
}

/// A version of the format, as tekken.json names it. Later ones compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MistralVersion {
    /// Calls and results are JSON; the system prompt opens the last turn of the user.
    V3,
    /// The system prompt is a turn of its own.
    V7,
    /// Each call has a name, an identifier and arguments.
    V11,
    /// Calls have no identifier; tools stand before the first turn of the user; the assistant may think.
    V13,
    /// Prompts name the reasoning effort.
    V15,
}

/// The reasoning efforts that a prompt may name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MistralEfforts {
    /// All of them.
    pub values: Vec<String>,
    /// The one that is named where a request asks for none.
    pub default: String,
}
