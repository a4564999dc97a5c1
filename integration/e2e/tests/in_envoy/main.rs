//! The filter in a real Envoy, in front of engines that record what they served.
//!
//! One program, so that no core is idle while the last test of a file waits: most of the time, Envoy
//! compiles the module, once for each test.

mod admin;
mod affinity;
mod bundles;
mod configuration;
mod conformance;
mod disconnects;
mod examples;
mod failures;
mod metrics;
mod page;
mod parity;
mod peers;
mod policies;
mod ranks;
mod resilience;
mod streamed_usage;
mod streaming;
mod trust;
