//! Chats that an engine writes with code of its own, as templates.
//!
//! DeepSeek publishes its newer models without a chat template and with a Python program instead, which
//! engines have taken over. What vLLM 0.32 writes is written here by a template; the recorded prompts of
//! `integration/vectors/vllm/deepseek.jsonl` hold it to that.

use warmpath_bundle::{ENCODING, VERBATIM_ENCODING};

/// A way to write chats, named as vLLM's `--tokenizer-mode` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// vLLM's name.
    pub name: &'static str,
    /// The template.
    pub source: &'static str,
    /// What the bundle calls it.
    pub(crate) template: &'static str,
    /// The models that vLLM uses it for, by the architectures in their config.json.
    architectures: &'static [&'static str],
}

/// All of them.
const ENCODINGS: [Encoding; 3] = [
    Encoding {
        name: "deepseek_v32",
        source: include_str!("../encodings/deepseek_v32.jinja"),
        template: ENCODING,
        architectures: &["DeepseekV32ForCausalLM"],
    },
    Encoding {
        name: "deepseek_v4",
        source: include_str!("../encodings/deepseek_v4.jinja"),
        template: ENCODING,
        architectures: &["DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"],
    },
    Encoding {
        name: "deepseek_v41",
        source: include_str!("../encodings/deepseek_v41.jinja"),
        template: VERBATIM_ENCODING,
        architectures: &["DeepseekV41ForCausalLM"],
    },
];

impl Encoding {
    /// The names of all encodings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ENCODINGS.iter().map(|encoding| encoding.name)
    }

    /// The encoding of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ENCODINGS.into_iter().find(|encoding| encoding.name == name)
    }

    /// The encoding that vLLM uses for models of that architecture.
    pub(crate) fn of_architecture(name: &str) -> Option<Self> {
        ENCODINGS.into_iter().find(|encoding| encoding.architectures.contains(&name))
    }
}
