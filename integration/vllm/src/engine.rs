//! A vLLM that serves one of the tiny models.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use warmpath_harness::envoy::free_port;
use warmpath_harness::http::HttpClient;
use warmpath_harness::process::ChildProcess;

use crate::family::repository_file;

/// vLLM imports a lot before it listens, more so on a machine that is busy.
const START_TIMEOUT: Duration = Duration::from_secs(900);

/// Its workers end when it is asked to, not when it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running vLLM; it ends with the value.
#[derive(Debug)]
pub struct Engine {
    process: ChildProcess,
    address: SocketAddr,
}

/// Where vLLM is installed: `WARMPATH_VLLM`, else `.cache/vllm`, within the repository unless
/// absolute.
#[must_use]
pub fn installation() -> PathBuf {
    let dir = std::env::var("WARMPATH_VLLM").unwrap_or_else(|_| ".cache/vllm".to_owned());
    repository_file(&dir)
}

impl Engine {
    /// Serves the model of `family`, made beforehand, and waits until it answers; `log` gets what
    /// vLLM prints.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(family: &str, log: &Path) -> Self {
        Self::start_with(family, log, &[]).await
    }

    /// As [`Engine::start`], with further flags for vLLM.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_with(family: &str, log: &Path, flags: &[&str]) -> Self {
        let port = free_port().expect("a loopback port");
        let script = repository_file("integration/vllm/serve.sh");
        let dir = installation();
        let mut arguments = vec![dir.display().to_string(), family.to_owned(), port.to_string()];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut process = ChildProcess::start(&script, &arguments, log).expect("starts");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        until_healthy(&mut process, address, START_TIMEOUT).await;
        Self { process, address }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Waits until an engine that was just started answers on `/health`.
///
/// # Panics
/// When it ends before, or takes longer than `timeout`.
pub async fn until_healthy(process: &mut ChildProcess, address: SocketAddr, timeout: Duration) {
    let client = HttpClient::new();
    let started = Instant::now();
    while !client.get(address, "/health").await.is_ok_and(|answer| answer.status == 200) {
        let ended = process.ended();
        let is_late = started.elapsed() > timeout;
        assert!(ended.is_none() && !is_late, "the engine: {ended:?}\n{}", process.log_tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let pid = self.process.pid().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let asked = Instant::now();
        while self.process.ended().is_none() && asked.elapsed() < STOP_TIMEOUT {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
