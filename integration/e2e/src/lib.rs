//! Tests in a real Envoy.
