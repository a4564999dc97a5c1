//! What engines say of themselves -> one report in one vocabulary.
//!
//! Two sources, both outside bytes: the text of an engine's metrics endpoint ([`exposition`] reads
//! the format, [`names`] knows each engine's names, [`report`] is what comes out), and the load
//! report in an answer's `endpoint-load-metrics` header ([`orca`]).
//!
//! Everything in a report is optional: engines differ in what they say, and versions in how. Reading
//! is linear in the text and keeps nothing of it.

pub mod exposition;
pub mod names;
pub mod orca;
pub mod report;

#[cfg(test)]
mod tests;

pub use self::names::{MetricsError, parse_metrics};
pub use self::orca::{LoadReport, parse_orca};
pub use self::report::{EngineKind, EngineReport};
