//! Chat templates, rendered as Hugging Face transformers renders them.
//!
//! In: a model's Jinja templates, once; then for each request its messages,
//! tools, documents and options as JSON. Out: the prompt, byte for byte what
//! `tokenizer.apply_chat_template(..., tokenize=False)` returns, or an error
//! where it raises. A proxy needs that exactness: one byte more or less moves
//! every token after it, and with them every block of the prefix cache.
//!
//! The engine is minijinja. It is close to Jinja2, and where Python shows
//! through, this crate puts Python's behaviour on top: its own filters, tests,
//! methods and printing (`py`), its own values for JSON (`value`), and a
//! transpiler (`transpile`) that parses the template with Jinja2's grammar and
//! writes it anew, with the operators that differ turned into function calls.
//! What would still differ is refused at compile time, with the reason.
//!
//! A request that differs from ones before only in its messages' texts is put
//! together from a remembered shape, without the engine, where that is exact
//! (`shape`).
//!
//! Bounds: source bytes, fuel (time and memory), output bytes, nesting of
//! values and of calls, shapes; see [`limits`]. No clock: the caller brings the time.

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

mod chat;
mod error;
pub mod limits;
mod py;
mod shape;
mod time;
mod transpile;
mod value;

pub use chat::{ChatRequest, ChatTemplates, ContentFormat, MessageRules, SpecialTokens};
pub use error::{ConversationError, RenderError, TemplateError};
pub use limits::RenderLimits;
pub use shape::ShapeCounts;
pub use time::CivilTime;

/// Python's `json.dumps(value, ensure_ascii=is_ascii)`, on one line. `None` for a value nested deeper than
/// [`limits::VALUE_DEPTH_MAX`] or longer than [`limits::TEXT_BYTES_MAX`].
#[must_use]
pub fn python_json(value: &serde_json::Value, is_ascii: bool) -> Option<String> {
    py::json::dumps(value, is_ascii)
}

#[cfg(feature = "fuzzing")]
mod fuzzing;
#[cfg(feature = "fuzzing")]
pub use fuzzing::fuzz_render;
