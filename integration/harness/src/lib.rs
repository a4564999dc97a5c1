//! Starts Envoy and engines, drives load, reads results.
