//! What vLLM made of requests, recorded, against what we make of them.
//!
//! Families whose tokenizer or template is not cached are named and skipped; with
//! `WARMPATH_REQUIRE_VECTORS=1` they are a failure.

mod deepseek;
mod mistral;
mod tokens;

use std::path::PathBuf;

use warmpath_core::model::Model;

/// The model of a bundle, where what it is made of is cached.
fn model(bundle: Result<Vec<u8>, PathBuf>) -> Option<Model> {
    Some(Model::from_bundle(cached(bundle)?, 7).expect("loads"))
}

/// A bundle, where what it is made of is cached.
fn cached(bundle: Result<Vec<u8>, PathBuf>) -> Option<Vec<u8>> {
    let required = std::env::var_os("WARMPATH_REQUIRE_VECTORS").is_some();
    bundle
        .inspect_err(|missing| {
            assert!(!required, "{} is not cached", missing.display());
            eprintln!("SKIPPED: {} is not cached", missing.display());
        })
        .ok()
}

/// The start of a SHA-256, in hex.
fn digest(bytes: &[u8], digits: usize) -> String {
    use sha2::{Digest, Sha256};
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..digits].to_owned()
}
