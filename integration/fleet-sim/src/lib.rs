//! Fleets of engines behind Warmpath in virtual time.
//!
//! In: a fleet (engines of a profile, Envoys with worker VMs), a workload and an arm. Out: what
//! users would have seen, and what the engines' counters say. The engines are those of
//! `warmpath-engine-sim`, the routing is `warmpath-core` itself; only time and the network are
//! made up. Everything is deterministic by seed.
//!
//! Modules in the order of the data path: [`text`] makes prompts, [`workload`] says who sends them
//! when, [`arm`] what is compared, [`envoy`] routes, [`fleet`] runs it all, [`measure`] works out
//! the figures. [`scenario`] names what is judged, [`batch`] runs many at once, [`evaluate`] judges,
//! [`what_if`] answers for a user's own traffic.

#![deny(missing_docs)]

pub mod arm;
pub mod batch;
pub mod envoy;
pub mod evaluate;
pub mod fleet;
pub mod measure;
pub mod scenario;
pub mod text;
pub mod what_if;
pub mod workload;
