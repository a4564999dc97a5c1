//! Warmpath against real llama.cpp servers.
//!
//! The test in `tests/` sends requests through Envoy and the filter to two of them; the scripts beside this
//! crate install the server and make its models; README.md says how.

#![deny(missing_docs)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warmpath_harness::envoy::free_port;
use warmpath_harness::process::ChildProcess;
use warmpath_vllm::engine::until_healthy;
use warmpath_vllm::family::repository_file;

/// It is a second on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the server and the models are: `WARMPATH_LLAMA_CPP`, else `.cache/llama-cpp`, within the repository
/// unless absolute.
#[must_use]
pub fn installation() -> PathBuf {
    let dir = std::env::var("WARMPATH_LLAMA_CPP").unwrap_or_else(|_| ".cache/llama-cpp".to_owned());
    repository_file(&dir)
}

/// A running server; it ends with the value.
#[derive(Debug)]
pub struct Engine {
    address: SocketAddr,
    _process: ChildProcess,
}

impl Engine {
    /// Serves the model of `family`, made beforehand, and waits until it answers; `flags` are llama.cpp's own,
    /// and `log` gets what it prints.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(family: &str, log: &Path, flags: &[&str]) -> Self {
        let dir = installation();
        let port = free_port().expect("a loopback port");
        let model = dir.join(format!("{family}.gguf")).display().to_string();
        let port_text = port.to_string();
        let own =
            ["--model", &model, "--alias", family, "--port", &port_text, "--metrics", "--jinja"];
        let arguments: Vec<String> = own.iter().chain(flags).map(|it| (*it).to_owned()).collect();
        let program = dir.join("bin/llama-server-vulkan");
        let mut process = ChildProcess::start(&program, &arguments, log).expect("starts");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        until_healthy(&mut process, address, START_TIMEOUT).await;
        Self { address, _process: process }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
