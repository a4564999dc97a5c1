//! What comes out of the read path: a pick, or a named fallback.

use std::num::NonZeroU32;

use crate::blocks;
use crate::config::Config;
use crate::ids::{BackendIndex, BlockHash};
use crate::index::Path;
use crate::metrics::Reason;
use crate::model::PromptError;
use crate::request::RequestError;
use crate::score::Match;
use crate::window::Window;

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The prompt was read, and a policy placed it.
    Pick(Pick),
    /// Something kept the filter from reading the prompt, or from placing it.
    Fallback(Fallback),
    /// No backend would answer.
    Refusal(Refusal),
}

/// A backend chosen for a prompt that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The backend, and where to retry, best first; never empty.
    pub order: Vec<BackendIndex>,
    /// Why.
    pub reason: Reason,
    /// Whether the residency estimate changed the pick.
    pub downgraded: bool,
    /// What the write path needs.
    pub prompt: PlacedPrompt,
}

/// A request placed without looking at its prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct Fallback {
    /// Backends by load, best first; empty when Envoy is to choose.
    pub order: Vec<BackendIndex>,
    /// Why.
    pub reason: Reason,
    /// The prompt, where it was read all the same: who serves it gets the credit.
    pub prompt: Option<PlacedPrompt>,
}

/// A request that is answered 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Seconds until the first backend is tried again; at least 1.
    pub retry_after_s: u64,
}

/// A prompt with the picked backend's share of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacedPrompt {
    /// Position of its model in the configuration.
    pub model_index: usize,
    /// Length in tokens.
    pub prompt_tokens: usize,
    /// Hashes of its full blocks.
    pub hashes: Vec<BlockHash>,
    /// What the tree knew of them.
    pub path: Path,
    /// Blocks that the picked backend probably holds.
    pub matched: Match,
    /// The model's attention window, if its cache is kept for one.
    pub window: Option<Window>,
    /// Tokens in a block.
    pub block_size_tokens: u32,
    /// Tokens that the picked backend is predicted to have cached.
    pub cached_tokens: u32,
    /// Tokens of output expected.
    pub output_tokens: u32,
    /// Whether the engine's tokens are expected to differ from ours, so that its count is no sign
    /// of a wrong bundle.
    pub is_approximate: bool,
    /// Whether the answer says nothing of what the engine had to do for it.
    pub is_opaque: bool,
}

impl PlacedPrompt {
    /// Blocks that can be served from a cache at best.
    #[must_use]
    pub fn cacheable_blocks(&self) -> usize {
        let size = NonZeroU32::new(self.block_size_tokens).unwrap_or(NonZeroU32::MIN);
        blocks::cacheable_blocks(self.prompt_tokens, size)
    }

    /// Whether the cached tokens in the answer are this prompt's: of a batch it gives the sum, of an image
    /// it counts tokens that are not known here, and of several samples it may tell of any one.
    #[must_use]
    pub fn says_what_was_cached(&self) -> bool {
        !self.is_approximate && !self.is_opaque
    }
}

impl Decision {
    /// The reason, for metrics.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Pick(pick) => pick.reason,
            Self::Fallback(fallback) => fallback.reason,
            Self::Refusal(refusal) => refusal.reason,
        }
    }

    /// The prompt, if it was read.
    #[must_use]
    pub fn prompt(&self) -> Option<&PlacedPrompt> {
        match self {
            Self::Pick(pick) => Some(&pick.prompt),
            Self::Fallback(fallback) => fallback.prompt.as_ref(),
            Self::Refusal(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn prompt_mut(&mut self) -> Option<&mut PlacedPrompt> {
        match self {
            Self::Pick(pick) => Some(&mut pick.prompt),
            Self::Fallback(fallback) => fallback.prompt.as_mut(),
            Self::Refusal(_) => None,
        }
    }

    /// The same, to be kept.
    #[must_use]
    pub fn into_prompt(self) -> Option<PlacedPrompt> {
        match self {
            Self::Pick(pick) => Some(pick.prompt),
            Self::Fallback(fallback) => fallback.prompt,
            Self::Refusal(_) => None,
        }
    }

    /// Backends, best first; empty when Envoy is to choose.
    #[must_use]
    pub fn order(&self) -> &[BackendIndex] {
        match self {
            Self::Pick(pick) => &pick.order,
            Self::Fallback(fallback) => &fallback.order,
            Self::Refusal(_) => &[],
        }
    }
}

impl Decision {
    /// The decision in one line, in the syntax of a structured field (RFC 8941):
    /// `prefix_hit;backend="engine-3";prompt=1200;cached=1024`.
    #[must_use]
    pub fn note(&self, config: &Config) -> String {
        let mut note = self.reason().label().to_owned();
        let first = self.order().first().and_then(|index| config.backend(*index));
        if let Some(backend) = first {
            note.push_str(";backend=");
            note.push_str(&quoted(&backend.name));
        }
        if let Some(prompt) = self.prompt() {
            let (tokens, cached) = (prompt.prompt_tokens, prompt.cached_tokens);
            note.push_str(&format!(";prompt={tokens};cached={cached}"));
        }
        note
    }
}

/// `text` as a string of a structured field: ASCII in quotes, with other characters replaced.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

impl From<RequestError> for Reason {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Empty => Self::EmptyBody,
            RequestError::NotUtf8 => Self::NotUtf8,
            RequestError::NotJson => Self::NotJson,
            RequestError::TooDeep | RequestError::TooManyValues => Self::TooManyValues,
            RequestError::LoneSurrogate => Self::LoneSurrogate,
            RequestError::Number => Self::NumberOutOfRange,
            RequestError::WrongShape(_) => Self::WrongShape,
            RequestError::OwnTemplate => Self::OwnTemplate,
            RequestError::Unsupported(_) => Self::Unsupported,
            RequestError::LoadOnly => Self::LoadOnlyApi,
        }
    }
}

impl From<PromptError> for Reason {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::NoTokenizer => Self::NoTokenizer,
            PromptError::NoTemplate => Self::NoTemplate,
            PromptError::Stored => Self::StoredHistory,
            PromptError::TokenOutOfRange => Self::TokenOutOfRange,
            PromptError::Template(_) | PromptError::Unwritable(_) | PromptError::NoMark(_) => {
                Self::TemplateFailed
            }
            PromptError::Tokenizer(_) | PromptError::TooLong(_) => Self::TokenizerFailed,
        }
    }
}
