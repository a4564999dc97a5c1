//! Where the repository keeps Envoy, the filter and the demo's bundle.
//!
//! Each can be replaced by an environment variable, for a run with another Envoy or another build of the
//! filter: `WARMPATH_ENVOY`, `WARMPATH_WASM`, `WARMPATH_BUNDLE`.

use std::path::{Path, PathBuf};

use crate::HarnessError;

/// The repository's root.
pub fn repository() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_path_buf()
}

/// The Envoy binary.
pub fn envoy() -> Result<PathBuf, HarnessError> {
    find("Envoy", "WARMPATH_ENVOY", ".cache/envoy/bin/envoy", "fetch")
}

/// The filter's Wasm module.
pub fn wasm() -> Result<PathBuf, HarnessError> {
    find("the filter", "WARMPATH_WASM", ".cache/warmpath.wasm", "filter")
}

/// The demo model's bundle: tokenizer and chat template.
pub fn demo_bundle() -> Result<PathBuf, HarnessError> {
    find("the demo model's bundle", "WARMPATH_BUNDLE", ".cache/demo.wpb", "bundle")
}

/// The engine simulator's program, which is built beside this one.
pub fn engine_sim() -> Result<PathBuf, HarnessError> {
    let own = std::env::current_exe().unwrap_or_default();
    let built = own.ancestors().skip(1).find(|dir| !dir.ends_with("deps"));
    let path = built.unwrap_or(Path::new("")).join("warmpath-engine-sim");
    let what = "the engine simulator";
    if path.exists() {
        Ok(path)
    } else {
        Err(HarnessError::Missing { what, path, target: "native" })
    }
}

fn find(
    what: &'static str,
    variable: &str,
    default: &str,
    target: &'static str,
) -> Result<PathBuf, HarnessError> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => repository().join(default),
    };
    if path.exists() { Ok(path) } else { Err(HarnessError::Missing { what, path, target }) }
}
