//! Warmpath against a real vLLM.
//!
//! The tests are in `tests/`: `tokens` compares token ids with those that a vLLM gave once, and
//! needs none; `e2e` sends requests through Envoy and the filter to a vLLM that runs. What they
//! share is here:
//!
//! - [`family`]: the tiny models, one for each family of tokenizers and templates.
//! - [`engine`]: a vLLM that serves one of them.
//! - [`workload`]: the requests.
//! - [`recorded`]: token ids that an engine gave once.
//! - [`compare`]: our numbers for each request beside the engine's.
//!
//! The scripts beside this crate install vLLM and make the models; README.md says how.

#![deny(missing_docs)]

pub mod compare;
pub mod engine;
pub mod family;
pub mod recorded;
pub mod workload;
