//! What can go wrong while starting, driving or reading a fleet.

use std::path::PathBuf;
use std::time::Duration;

/// Why the harness could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// Something that a make target builds or fetches is not there.
    #[error("{what} is not at {path}: run `make {target}`")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
        /// The make target that puts it there.
        target: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The Envoy configuration is not YAML.
    #[error("{path}: {source}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_yaml_ng::Error,
    },
    /// The filter's configuration within the Envoy configuration is not JSON.
    #[error("{path}: the filter's configuration: {source}")]
    FilterConfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The Envoy configuration lacks a part that the harness edits.
    #[error("the Envoy configuration has no {0}")]
    NoSuchPart(String),
    /// A bundle cannot be used by the engines.
    #[error("the bundle {path}: {why}")]
    Bundle {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A simulated engine did not start.
    #[error("engine {engine}: {why}")]
    Engine {
        /// Which one.
        engine: usize,
        /// Why.
        why: String,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A program ended or stayed silent instead of becoming ready.
    #[error(
        "{program} is not ready after {waited:?}: {why}\n--- the end of its log ---\n{log_tail}"
    )]
    NotReady {
        /// The program.
        program: &'static str,
        /// How long it was waited for.
        waited: Duration,
        /// What was seen instead.
        why: String,
        /// The last lines of its log.
        log_tail: String,
    },
    /// An HTTP request got no answer.
    #[error("{method} {url}: {why}")]
    Http {
        /// The request's method.
        method: String,
        /// Its URL.
        url: String,
        /// Why it failed.
        why: String,
    },
    /// An answer is not of the expected shape.
    #[error("unexpected answer from {from}: {why}")]
    Answer {
        /// Who answered.
        from: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something did not happen in time.
    #[error("after {waited:?}, still waiting for {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
}

impl HarnessError {
    /// A file error with its path.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
