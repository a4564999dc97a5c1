//! Starts Envoy and engines, drives load, reads results.
//!
//! The demo, the tests in a real Envoy and the benchmarks all stand on this crate, one module a part:
//!
//! - [`paths`]: where the repository keeps Envoy, the filter and the demo's bundle.
//! - [`bootstrap`]: the files in `envoy/`, edited as data, so that what runs here is what users read.
//! - [`process`]: child processes that never outlive this one.
//! - [`envoy`]: one running Envoy and its admin interface.
//! - [`fleet`]: simulated engines and their own record of what they served.
//! - [`engines`]: the same as processes of their own, to be killed and stopped.
//! - [`tokenizer`]: a bundle's tokenizer for those engines.
//! - [`http`]: a small HTTP client.
//! - [`sse`]: server-sent events out of arbitrary chunks.
//! - [`workload`]: reproducible traffic: shared prefixes and multi-turn chats.
//! - [`load`]: an open-loop load generator.
//! - [`origin`]: which machine and commit a figure comes from.
//!
//! Everything listens on the loopback interface, on ports that the system picks.

#![deny(missing_docs)]

pub mod bootstrap;
pub mod engines;
pub mod envoy;
mod error;
pub mod fleet;
pub mod http;
pub mod load;
pub mod origin;
pub mod paths;
pub mod process;
pub mod sse;
pub mod tokenizer;
pub mod workload;

pub use bootstrap::{Bootstrap, Peers, Variant};
pub use envoy::{EnvoyOptions, EnvoyProcess, FilterOptions};
pub use error::HarnessError;
pub use fleet::{Fleet, FleetOptions};
