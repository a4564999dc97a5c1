//! vLLM's metrics, by vLLM's names.
//!
//! The driver writes them after each step; scraping reads them without disturbing it. Times are
//! model times, as a real engine's are.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, TextEncoder,
};

use super::config::ServerConfig;
use crate::model::{EngineStats, Finished};

/// Upper bounds of vLLM's buckets for the time to the first token, in seconds.
const TTFT_BUCKETS_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Upper bounds of vLLM's buckets for whole requests, in seconds.
const REQUEST_BUCKETS_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Why metrics could not be set up or written.
pub type MetricsError = prometheus::Error;

/// A cumulative counter that follows one of the engine's.
#[derive(Debug)]
struct Follower {
    counter: IntCounter,
    seen: u64,
}

impl Follower {
    fn follow(&mut self, total: u64) {
        self.counter.inc_by(total.saturating_sub(self.seen));
        self.seen = total;
    }
}

/// What a scrape and an ORCA header read.
#[derive(Clone, Debug)]
pub struct MetricsView {
    registry: Registry,
    waiting: IntGauge,
    kv_usage: Gauge,
}

impl MetricsView {
    /// The metrics in Prometheus' text format.
    ///
    /// # Errors
    /// When encoding fails.
    pub fn text(&self) -> Result<String, MetricsError> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The metrics that vLLM puts into the ORCA load report.
    #[must_use]
    pub fn load_report(&self) -> [(&'static str, f64); 2] {
        [
            ("kv_cache_usage_perc", self.kv_usage.get()),
            ("num_requests_waiting", self.waiting.get() as f64),
        ]
    }
}

/// An engine's metrics; the driver's side.
#[derive(Debug)]
pub struct EngineMetrics {
    view: MetricsView,
    running: IntGauge,
    prefix_cache_queries: Follower,
    prefix_cache_hits: Follower,
    prompt_tokens: Follower,
    generation_tokens: Follower,
    preemptions: Follower,
    finished_length: Follower,
    finished_abort: Follower,
    ttft: Histogram,
    e2e: Histogram,
}

struct Builder<'a> {
    registry: Registry,
    model_name: &'a str,
}

impl Builder<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).const_label("model_name", self.model_name).const_label("engine", "0")
    }

    fn register<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, MetricsError> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> Result<Follower, MetricsError> {
        self.follow(self.opts(name, help))
    }

    fn follow(&self, opts: Opts) -> Result<Follower, MetricsError> {
        let counter = self.register(IntCounter::with_opts(opts)?)?;
        Ok(Follower { counter, seen: 0 })
    }

    fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> Result<Histogram, MetricsError> {
        let opts = HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(opts)?)
    }

    fn success(&self, reason: &str) -> Result<Follower, MetricsError> {
        let help = "Count of successfully processed requests.";
        let opts =
            self.opts("vllm:request_success_total", help).const_label("finished_reason", reason);
        self.follow(opts)
    }
}

impl EngineMetrics {
    /// Metrics at zero, of an engine that starts now.
    ///
    /// # Errors
    /// When a metric is refused, which would be a fault of this program.
    pub fn new(config: &ServerConfig) -> Result<Self, MetricsError> {
        let build = Builder { registry: Registry::new(), model_name: config.model_name() };
        let gauge =
            |name: &str, help: &str| build.register(IntGauge::with_opts(build.opts(name, help))?);
        let running =
            gauge("vllm:num_requests_running", "Number of requests in model execution batches.")?;
        let waiting =
            gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.")?;
        let kv_opts =
            build.opts("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.");
        let kv_usage = build.register(Gauge::with_opts(kv_opts)?)?;
        register_constants(&build, config)?;
        Ok(Self {
            running,
            prefix_cache_queries: build.counter(
                "vllm:prefix_cache_queries_total",
                "Prefix cache queries, in terms of number of queried tokens.",
            )?,
            prefix_cache_hits: build.counter(
                "vllm:prefix_cache_hits_total",
                "Prefix cache hits, in terms of number of cached tokens.",
            )?,
            prompt_tokens: build
                .counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.")?,
            generation_tokens: build.counter(
                "vllm:generation_tokens_total",
                "Number of generation tokens processed.",
            )?,
            preemptions: build.counter(
                "vllm:num_preemptions_total",
                "Cumulative number of preemption from the engine.",
            )?,
            finished_length: build.success("length")?,
            finished_abort: build.success("abort")?,
            ttft: build.histogram(
                "vllm:time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                &TTFT_BUCKETS_S,
            )?,
            e2e: build.histogram(
                "vllm:e2e_request_latency_seconds",
                "Histogram of e2e request latency in seconds.",
                &REQUEST_BUCKETS_S,
            )?,
            view: MetricsView { registry: build.registry, waiting, kv_usage },
        })
    }

    /// The readers' side.
    #[must_use]
    pub fn view(&self) -> MetricsView {
        self.view.clone()
    }

    /// Takes over the engine's gauges and counters.
    pub fn update(&mut self, stats: &EngineStats) {
        self.running.set(i64::from(stats.running));
        self.view.waiting.set(i64::from(stats.waiting));
        self.view.kv_usage.set(stats.kv_usage);
        self.prefix_cache_queries.follow(stats.prefix_cache_queries);
        self.prefix_cache_hits.follow(stats.prefix_cache_hits);
        self.prompt_tokens.follow(stats.prompt_tokens);
        self.generation_tokens.follow(stats.generation_tokens);
        self.preemptions.follow(stats.preemptions);
        self.finished_length.follow(stats.finished);
        self.finished_abort.follow(stats.aborted);
    }

    /// Counts a request's first token, `seconds` after its arrival.
    pub fn observe_first_token(&self, seconds: f64) {
        self.ttft.observe(seconds);
    }

    /// Counts a complete request.
    pub fn observe_finished(&self, account: &Finished, at: crate::model::SimTime) {
        self.e2e.observe((at - account.arrived_at).as_secs_f64());
    }
}

fn register_constants(build: &Builder<'_>, config: &ServerConfig) -> Result<(), MetricsError> {
    let profile = &config.profile;
    let info = Opts::new("vllm:cache_config_info", "Information of the LLMEngine CacheConfig")
        .const_label("block_size", profile.block_size_tokens.to_string())
        .const_label("cache_dtype", "auto")
        .const_label("enable_prefix_caching", "True")
        .const_label("engine", "0")
        .const_label("num_gpu_blocks", profile.num_gpu_blocks().to_string());
    build.register(IntGauge::with_opts(info)?)?.set(1);
    let started = Opts::new(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    build.register(Gauge::with_opts(started)?)?.set(now.as_secs_f64());
    Ok(())
}
