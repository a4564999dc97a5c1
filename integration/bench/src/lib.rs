//! Latency and throughput of the filter in Envoy.
