//! Model bundles: one compact file that carries a model's tokenizer, chat templates and metadata.
//!
//! In: the bytes of a bundle, as they arrived. Out: a [`Bundle`], whose [`Tokenizer`] turns text
//! into the token ids that the engine will see.
//!
//! A filter VM loads bundles into linear memory that never shrinks, so what counts is the peak
//! while loading, not what is left afterwards. The format is therefore made to be used in place:
//! sections are checked once and then read where they lie.
//!
//! Every reader in here takes bytes from outside: sizes are bounded by [`limits`], and damage is
//! an error of [`BundleError`], never a panic.
//!
//! With the feature `write`, native programs make bundles from a model's `tokenizer.json`.

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::panic,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unreachable
    )
)]

mod bpe;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
mod fuzz;
pub mod harmony;
pub mod limits;
mod memo;
mod meta;
mod mistral;
mod phf;
mod read;
mod tokenizer;
#[cfg(feature = "write")]
mod write;

pub use error::{BundleError, TokenizeError};
pub use format::FORMAT_VERSION;
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_bundle;
pub use memo::{MemoStats, SegmentMemo};
pub use meta::{BundleMeta, ENCODING, SpecialTokens, VERBATIM_ENCODING};
pub use mistral::{MistralEfforts, MistralFormat, MistralVersion};
pub use read::Bundle;
pub use tokenizer::{Segment, Tokenizer};
#[cfg(feature = "write")]
pub use write::{BundleSource, WriteError, write};
