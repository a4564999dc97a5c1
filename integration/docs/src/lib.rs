//! The documents that are made from the code, so that they cannot say otherwise.
//!
//! In: the filter's metrics, the schema of its configuration, the bootstraps. Out: `docs/metrics.md`,
//! `docs/configuration.md` and `docs/configuration.schema.json`. `make docs` writes them; a test compares
//! them with what is committed.

#![deny(missing_docs)]

use std::path::{Path, PathBuf};

pub mod configuration;
pub mod markdown;
pub mod metrics;

/// A configuration that sets most fields: the one that the documents show.
pub const EXAMPLE: &str = include_str!("example.json");

/// One document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its path within the repository.
    pub path: &'static str,
    /// Its text.
    pub text: String,
}

/// Makes all documents.
///
/// # Errors
/// The bootstraps cannot be read.
pub fn documents() -> anyhow::Result<Vec<Document>> {
    let bootstrap = std::fs::read_to_string(repository().join("envoy/cluster-header.yaml"))?;
    let schema = warmpath_core::config::schema::configuration();
    let push = warmpath_core::config::schema::push();
    Ok(vec![
        Document { path: "docs/metrics.md", text: metrics::page(&bootstrap) },
        Document {
            path: "docs/configuration.md",
            text: configuration::page(&schema, &push, EXAMPLE),
        },
        Document { path: "docs/configuration.schema.json", text: format!("{schema:#}\n") },
    ])
}

/// The repository that this crate is part of.
#[must_use]
pub fn repository() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_path_buf()
}
