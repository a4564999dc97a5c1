//! Simulated engines as processes of their own, for what only a process can suffer: SIGKILL, SIGSTOP.
//!
//! In: how many, and the simulator's arguments. Out: their addresses and what each served, as from
//! [`crate::fleet`]. Each keeps its address over its lives.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::envoy::free_port;
use crate::fleet::{Served, parse_served};
use crate::http::{HttpAnswer, HttpClient};
use crate::process::ChildProcess;
use crate::{HarnessError, paths};

/// How long an engine may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest answer of an engine to a question of ours; a stopped one gives none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Running engines; they end when the value is dropped.
#[derive(Debug)]
pub struct EngineProcesses {
    engines: Vec<Option<ChildProcess>>,
    addresses: Vec<SocketAddr>,
    arguments: Vec<String>,
    program: PathBuf,
    client: HttpClient,
    dir: TempDir,
}

impl EngineProcesses {
    /// Starts `count` engines with the simulator's `arguments`, each on a port of its own.
    pub async fn start(count: usize, arguments: &[&str]) -> Result<Self, HarnessError> {
        let dir = tempfile::Builder::new()
            .prefix("warmpath-engines-")
            .tempdir()
            .map_err(HarnessError::file(std::env::temp_dir()))?;
        let mut engines = Self {
            engines: Vec::new(),
            addresses: Vec::new(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            program: paths::engine_sim()?,
            client: HttpClient::new(),
            dir,
        };
        for _ in 0..count {
            engines.add().await?;
        }
        Ok(engines)
    }

    /// Starts one more engine; returns its index.
    pub async fn add(&mut self) -> Result<usize, HarnessError> {
        let index = self.engines.len();
        self.addresses.push(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        self.engines.push(None);
        self.restart(index).await?;
        Ok(index)
    }

    /// Where the engines listen, or listened before they were killed.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Kills engine `index` by SIGKILL.
    pub fn kill(&mut self, index: usize) {
        self.engines[index] = None;
    }

    /// Starts engine `index` anew on its port, with an empty cache, and waits until it listens.
    pub async fn restart(&mut self, index: usize) -> Result<(), HarnessError> {
        self.kill(index);
        let mut arguments = self.arguments.clone();
        arguments.extend(["--ports".to_owned(), self.addresses[index].port().to_string()]);
        let log = self.dir.path().join(format!("engine-{index}.log"));
        let started = Instant::now();
        let mut process = ChildProcess::start(&self.program, &arguments, &log)?;
        while self.client.get(self.addresses[index], "/health").await.is_err() {
            let ended = process.ended();
            if ended.is_some() || started.elapsed() > START_TIMEOUT {
                return Err(HarnessError::NotReady {
                    program: "an engine",
                    waited: started.elapsed(),
                    why: ended.unwrap_or_else(|| "it does not listen".to_owned()),
                    log_tail: process.log_tail(),
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.engines[index] = Some(process);
        Ok(())
    }

    /// Whether engine `index` runs, or is stopped.
    pub fn lives(&self, index: usize) -> bool {
        self.engines[index].is_some()
    }

    /// Stops engine `index` by SIGSTOP: connections stay open, nothing moves.
    pub fn stop(&self, index: usize) -> Result<(), HarnessError> {
        self.signal(index, "-STOP")
    }

    /// Lets a stopped engine go on.
    pub fn go_on(&self, index: usize) -> Result<(), HarnessError> {
        self.signal(index, "-CONT")
    }

    fn signal(&self, index: usize, signal: &str) -> Result<(), HarnessError> {
        let Some(process) = &self.engines[index] else { return Ok(()) };
        let status = Command::new("kill").arg(signal).arg(process.pid().to_string()).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(wrong_answer(index, format!("{signal} could not be sent"))),
        }
    }

    /// Changes how engine `index` fails; see the simulator's `/sim/fail`.
    pub async fn fail(&self, index: usize, fault: &Value) -> Result<(), HarnessError> {
        let address = self.addresses[index];
        let answer = self.client.post_json(address, "/sim/fail", fault).await?;
        expect_ok(index, &answer)
    }

    /// What engine `index` served since it started.
    pub async fn served_by(&self, index: usize) -> Result<Vec<Served>, HarnessError> {
        let asked = self.client.get(self.addresses[index], "/sim/requests");
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        let answer = answer.map_err(|_| wrong_answer(index, "it does not answer".to_owned()))??;
        expect_ok(index, &answer)?;
        parse_served(index, answer.json())
    }

    /// What the living engines served since they started.
    pub async fn served(&self) -> Result<Vec<Served>, HarnessError> {
        let mut all = Vec::new();
        for index in 0..self.engines.len() {
            if self.lives(index) {
                all.extend(self.served_by(index).await?);
            }
        }
        Ok(all)
    }

    /// An engine's counters and gauges.
    pub async fn stats(&self, index: usize) -> Result<Value, HarnessError> {
        let answer = self.client.get(self.addresses[index], "/sim/stats").await?;
        expect_ok(index, &answer).map(|()| answer.json())
    }
}

fn expect_ok(index: usize, answer: &HttpAnswer) -> Result<(), HarnessError> {
    if answer.status == 200 {
        return Ok(());
    }
    Err(wrong_answer(index, format!("status {}: {}", answer.status, answer.text())))
}

fn wrong_answer(index: usize, why: String) -> HarnessError {
    HarnessError::Answer { from: format!("engine {index}"), why }
}
