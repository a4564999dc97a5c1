//! Simulated engines and their own record of what they served.
//!
//! In: how many engines, of which speed and memory, with which tokenizer. Out: their addresses, and what
//! each of them says that it was asked, found in its cache and answered.
//!
//! Each engine runs on a runtime of its own. Killing one ends its listener and its connections at once, as
//! the death of a process does, and leaves the others alone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
pub use warmpath_engine_sim::model::Profile;
pub use warmpath_engine_sim::server::fault::{FailMode, Fault, MetricsFault, UsageFault};
pub use warmpath_engine_sim::server::record::body_hash;
use warmpath_engine_sim::server::{
    self, BytesTokenizer, PromptTokenizer, RunningServer, ServeError, ServerConfig,
};

use crate::HarnessError;
use crate::http::{HttpAnswer, HttpClient};
use crate::load::histogram_us;
use crate::tokenizer::BundleTokenizer;

/// Which engines to run.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// How many.
    pub engines: usize,
    /// What each can do.
    pub profile: Profile,
    /// How many times faster than the profile everything runs.
    pub speed: f64,
    /// The model's bundle: tokenizer and chat template. With `None` a token is a byte, which suits tests
    /// that do not look at tokens.
    pub bundle: Option<PathBuf>,
    /// The model's name, as requests ask for it.
    pub model: String,
}

impl FleetOptions {
    /// `engines` engines of the named profile, serving the demo model.
    pub fn named(engines: usize, profile: &str, speed: f64) -> Result<Self, HarnessError> {
        let profile = Profile::named(profile)
            .map_err(|error| HarnessError::Engine { engine: 0, why: error.to_string() })?;
        let bundle = Some(crate::paths::demo_bundle()?);
        Ok(Self { engines, profile, speed, bundle, model: "demo".to_owned() })
    }
}

/// One request, as the engine that served it tells it. Times are in milliseconds of engine time.
#[derive(Debug, Clone, Deserialize)]
pub struct Served {
    /// The engine's index in the fleet.
    #[serde(skip)]
    pub engine: usize,
    /// The request's `x-request-id`.
    pub x_request_id: Option<String>,
    /// Its path.
    pub path: String,
    /// `waiting`, `running`, `finished`, `aborted`, `rejected` or `failed`.
    pub state: String,
    /// The status of the answer.
    pub status: u16,
    /// Tokens in the prompt; 0 when the request never got that far.
    pub prompt_tokens: u64,
    /// Tokens of these that were in the prefix cache; `None` when it was not looked up.
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: u64,
    /// When the request reached the engine's queue.
    pub arrived_ms: Option<f64>,
    /// From there to the first token.
    pub ttft_ms: Option<f64>,
    /// From there to the end.
    pub e2e_ms: Option<f64>,
    /// Bytes of the answer's body that went out.
    pub sent_bytes: u64,
    /// Their hash, as [`body_hash`] writes it; `None` when none went out.
    pub sent_hash: Option<String>,
    /// The body's first bytes.
    pub body_head: String,
    /// The request's headers.
    pub headers: Vec<(String, String)>,
}

impl Served {
    /// Whether the answer is complete.
    pub fn finished(&self) -> bool {
        self.state == "finished"
    }

    /// The value of the request's header `name`.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// What engines say of all they served.
#[derive(Debug, Clone)]
pub struct ServedFigures {
    /// Requests answered in full.
    pub finished: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Of these, tokens found in an engine's cache.
    pub cached_tokens: u64,
    /// Times to first token, in microseconds of engine time.
    pub ttft_us: Histogram<u64>,
}

impl ServedFigures {
    /// The figures of these requests.
    pub fn of(served: &[Served]) -> Self {
        let mut ttft_us = histogram_us();
        for ttft_ms in served.iter().filter_map(|request| request.ttft_ms) {
            ttft_us.saturating_record((ttft_ms * 1e3) as u64);
        }
        Self {
            finished: served.iter().filter(|request| request.finished()).count(),
            prompt_tokens: served.iter().map(|request| request.prompt_tokens).sum(),
            cached_tokens: served.iter().filter_map(|request| request.cached_tokens).sum(),
            ttft_us,
        }
    }
}

/// Running engines; they end when the value is dropped.
pub struct Fleet {
    engines: Vec<Engine>,
    addresses: Vec<SocketAddr>,
    options: FleetOptions,
    tokenizer: Arc<dyn PromptTokenizer>,
    client: HttpClient,
}

impl Fleet {
    /// Starts the engines.
    pub async fn start(options: &FleetOptions) -> Result<Self, HarnessError> {
        let tokenizer: Arc<dyn PromptTokenizer> = match &options.bundle {
            Some(bundle) => Arc::new(BundleTokenizer::load(bundle)?),
            None => Arc::new(BytesTokenizer),
        };
        let mut fleet = Self {
            engines: Vec::new(),
            addresses: Vec::new(),
            options: options.clone(),
            tokenizer,
            client: HttpClient::new(),
        };
        for index in 0..options.engines {
            let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
            let engine = fleet.start_engine(index, any_port).await?;
            fleet.addresses.push(engine.address);
            fleet.engines.push(engine);
        }
        Ok(fleet)
    }

    /// Where the engines listen, or listened before they were killed.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends engine `index` as the death of its process would: connections break, its port refuses.
    pub fn kill(&mut self, index: usize) {
        if let Some(engine) = self.engines.get_mut(index) {
            engine.stop();
        }
    }

    /// Starts engine `index` again on its port, with an empty cache.
    pub async fn restart(&mut self, index: usize) -> Result<(), HarnessError> {
        self.kill(index);
        let address = self.address(index)?;
        let engine = self.start_engine(index, address).await?;
        self.engines[index] = engine;
        Ok(())
    }

    /// Empties every engine's cache, counters and records.
    pub async fn reset(&self) -> Result<(), HarnessError> {
        for index in self.living() {
            self.command(index, "/sim/reset", &json!({})).await?;
        }
        Ok(())
    }

    /// Makes engine `index` fail its requests, and mends all else: `http_500`, `http_503`, `reset_before_headers`,
    /// `reset_mid_stream`, `hang`, or `ok` to stop.
    pub async fn fail(&self, index: usize, mode: &str) -> Result<(), HarnessError> {
        self.command(index, "/sim/fail", &json!({"mode": mode})).await
    }

    /// Makes engine `index` slower by `factor`, and mends all else.
    pub async fn slow_down(&self, index: usize, factor: f64) -> Result<(), HarnessError> {
        self.command(index, "/sim/fail", &json!({"slow_factor": factor})).await
    }

    /// Changes what is broken in engine `index` and leaves its other faults as they are. A paused engine
    /// still takes this.
    pub async fn change_fault(
        &self,
        index: usize,
        change: impl FnOnce(&mut Fault),
    ) -> Result<(), HarnessError> {
        let mut fault: Fault = serde_json::from_value(self.stats(index).await?["fault"].take())
            .map_err(|error| wrong_answer(index, error.to_string()))?;
        change(&mut fault);
        self.command(index, "/sim/fail", &json!(fault)).await
    }

    /// Breaks the metrics of engine `index`, or mends them.
    pub async fn fail_metrics(&self, index: usize, how: MetricsFault) -> Result<(), HarnessError> {
        self.change_fault(index, |fault| fault.metrics = how).await
    }

    /// Breaks the usage in the answers of engine `index`, or mends it.
    pub async fn fail_usage(&self, index: usize, how: UsageFault) -> Result<(), HarnessError> {
        self.change_fault(index, |fault| fault.usage = how).await
    }

    /// Stops engine `index` in its tracks, as SIGSTOP does: connections stay open and nothing moves.
    pub async fn pause(&self, index: usize) -> Result<(), HarnessError> {
        self.change_fault(index, |fault| fault.pause = true).await
    }

    /// Lets a paused engine go on where it was.
    pub async fn resume(&self, index: usize) -> Result<(), HarnessError> {
        self.change_fault(index, |fault| fault.pause = false).await
    }

    async fn command(&self, index: usize, path: &str, body: &Value) -> Result<(), HarnessError> {
        let answer = self.client.post_json(self.address(index)?, path, body).await?;
        expect_ok(index, answer).map(|_| ())
    }

    /// What every living engine served since it started or was reset, engine by engine, oldest first.
    pub async fn served(&self) -> Result<Vec<Served>, HarnessError> {
        let mut all = Vec::new();
        for index in self.living() {
            all.extend(self.served_by(index).await?);
        }
        Ok(all)
    }

    /// What engine `index` served.
    pub async fn served_by(&self, index: usize) -> Result<Vec<Served>, HarnessError> {
        let answer = self.client.get(self.address(index)?, "/sim/requests").await?;
        parse_served(index, expect_ok(index, answer)?)
    }

    /// The counters and gauges of engine `index`.
    pub async fn stats(&self, index: usize) -> Result<Value, HarnessError> {
        expect_ok(index, self.client.get(self.address(index)?, "/sim/stats").await?)
    }

    fn address(&self, index: usize) -> Result<SocketAddr, HarnessError> {
        let none = || HarnessError::Engine { engine: index, why: "no such engine".to_owned() };
        self.addresses.get(index).copied().ok_or_else(none)
    }

    fn living(&self) -> impl Iterator<Item = usize> {
        let engines = self.engines.iter().enumerate();
        engines.filter(|(_, engine)| engine.runtime.is_some()).map(|(index, _)| index)
    }

    async fn start_engine(
        &self,
        index: usize,
        address: SocketAddr,
    ) -> Result<Engine, HarnessError> {
        /// A killed engine's port may take a moment to come free.
        const BIND_TIMEOUT: Duration = Duration::from_secs(5);
        let fail = |why: String| HarnessError::Engine { engine: index, why };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("engine-{index}"))
            .enable_all()
            .build()
            .map_err(|error| fail(error.to_string()))?;
        let mut engine = Engine { address, runtime: Some(runtime), server: None };
        let started = Instant::now();
        loop {
            match engine.serve(self.config(address), self.tokenizer.clone()).await {
                Ok(()) => return Ok(engine),
                Err(ServeError::Bind { .. }) if started.elapsed() < BIND_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(fail(error.to_string())),
            }
        }
    }

    fn config(&self, address: SocketAddr) -> ServerConfig {
        ServerConfig {
            listen: vec![address],
            profile: self.options.profile.clone(),
            speed: self.options.speed,
            seed: 0,
            served_model_names: vec![self.options.model.clone()],
        }
    }
}

struct Engine {
    address: SocketAddr,
    runtime: Option<Runtime>,
    server: Option<RunningServer>,
}

impl Engine {
    async fn serve(
        &mut self,
        config: ServerConfig,
        tokenizer: Arc<dyn PromptTokenizer>,
    ) -> Result<(), ServeError> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        // The server's tasks belong to the runtime on which it is started.
        let server = match runtime.spawn(server::serve(config, tokenizer)).await {
            Ok(server) => server?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        self.address = server.addresses().first().copied().unwrap_or(self.address);
        self.server = Some(server);
        Ok(())
    }

    fn stop(&mut self) {
        self.server = None;
        if let Some(runtime) = self.runtime.take() {
            // Waiting for it is not allowed within another runtime.
            runtime.shutdown_background();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The records in an engine's answer.
pub(crate) fn parse_served(index: usize, mut answer: Value) -> Result<Vec<Served>, HarnessError> {
    let mut served: Vec<Served> = serde_json::from_value(answer["requests"].take())
        .map_err(|error| wrong_answer(index, error.to_string()))?;
    for request in &mut served {
        request.engine = index;
    }
    Ok(served)
}

fn expect_ok(index: usize, answer: HttpAnswer) -> Result<Value, HarnessError> {
    if answer.status == 200 {
        return Ok(answer.json());
    }
    Err(wrong_answer(index, format!("status {}: {}", answer.status, answer.text())))
}

fn wrong_answer(index: usize, why: String) -> HarnessError {
    HarnessError::Answer { from: format!("engine {index}"), why }
}
