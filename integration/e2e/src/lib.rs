//! Tests in a real Envoy.
//!
//! The tests are in `tests/`, one file a subject. What they share is here:
//!
//! - [`bed`]: engines and an Envoy with the filter in front of them.
//! - [`fleet`]: simulated engines that can die and come back, and their own record of what they served.
//! - [`scripted`]: an engine whose every byte the test decides, and when it leaves.
//! - [`client`]: HTTP/1.1 and HTTP/2 connections that the test holds, and requests as raw bytes.
//! - [`steady`]: steady traffic, and what its clients saw.
//! - [`scene`]: engines as processes, steady traffic, and something that happens.
//! - [`gateways`]: the Envoys of the examples, as the control planes they are for configure them.
//! - [`prompts`]: prompts as token ids.
//! - [`promtool`]: Prometheus' own check of a page of metrics.
//! - [`browser`]: headless Chromium, driven by its own driver.
//! - [`poll`]: waiting for what must happen soon.
//!
//! A test's verdict rests on what the engines say they served. The filter's own statistics are checked
//! against that, never believed instead.
//!
//! Helpers panic when they cannot do what was asked: to a test that is a failure like any other. No
//! process outlives a test: Envoy ends with the value that holds it, and engines are threads.

#![deny(missing_docs)]

pub mod bed;
pub mod browser;
pub mod client;
pub mod fleet;
pub mod gateways;
pub mod poll;
pub mod prompts;
pub mod promtool;
pub mod scene;
pub mod scripted;
pub mod steady;
