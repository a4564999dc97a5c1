//! An OpenAI-compatible LLM engine without a GPU.
//!
//! What comes in: HTTP requests as clients send them to vLLM, or, one layer below, prompts with
//! their arrival times. What goes out: tokens at the time at which a real engine would have
//! produced them, with the counts of prompt tokens that its prefix cache would have saved.
//!
//! Two layers, sharply separated:
//!
//! 1. [`model`]: the engine itself in virtual time. Pure and deterministic: no clock, no I/O, no
//!    runtime. A fleet simulator drives it directly.
//! 2. [`server`]: puts a scaled wall clock and vLLM's HTTP surface around the model.
//!
//! Modules in the order in which a request passes through them: [`server`] (parses, tokenizes,
//! submits), [`model`] (schedules, caches, times), [`server`] again (streams). [`limits`] bounds
//! everything that comes from outside.
#![deny(missing_docs)]

pub mod limits;
pub mod model;
pub mod server;
