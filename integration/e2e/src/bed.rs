//! Engines and an Envoy with the filter in front of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use warmpath_harness::envoy::Stats;
use warmpath_harness::fleet::{Fleet, FleetOptions, Served};
use warmpath_harness::http::HttpClient;
use warmpath_harness::{
    Bootstrap, EnvoyOptions, EnvoyProcess, FilterOptions, HarnessError, Variant, paths,
};

use crate::client::{Answer, Body, Connection, Version, whole};
use crate::fleet::{self, ID_HEADER};
use crate::poll;
use crate::prompts::{MODEL, completion};

/// How to run Envoy and the filter.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// How the filter names the upstream.
    pub variant: Variant,
    /// The routing policy.
    pub policy: &'static str,
    /// Envoy's workers.
    pub concurrency: u32,
    /// What the internal listener serves as the model's bundle.
    pub bundle: Option<PathBuf>,
    /// Merged into the filter's configuration.
    pub config_patch: Value,
    /// Whether listeners and engines may change while Envoy runs.
    pub is_dynamic: bool,
    /// The last edit of Envoy's configuration.
    pub edit: fn(&mut Bootstrap) -> Result<(), HarnessError>,
}

impl FrontOptions {
    /// The product's policy, two workers, no bundle: prompts are token ids.
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            policy: "kv_cost",
            concurrency: 2,
            bundle: None,
            // More than the engines of the tests hold: nothing is taken for evicted. Engines that count what
            // they are asked are not asked for metrics.
            config_patch: json!({"kv_capacity_tokens": 1 << 23, "scrape": {"enabled": false}}),
            is_dynamic: false,
            edit: |_| Ok(()),
        }
    }

    /// Starts Envoy in front of `engines`.
    pub async fn start(&self, engines: &[SocketAddr]) -> Front {
        let filter = FilterOptions {
            wasm: paths::wasm().expect("the filter"),
            bundle: self.bundle.clone(),
            policy: self.policy.to_owned(),
            config_patch: self.config_patch.clone(),
        };
        let mut options = EnvoyOptions::with_filter(self.variant, engines, filter);
        options.concurrency = self.concurrency;
        options.is_dynamic = self.is_dynamic;
        options.edit = self.edit;
        Front { envoy: EnvoyProcess::start(&options).await.expect("Envoy") }
    }
}

/// Envoy with the filter.
#[derive(Debug)]
pub struct Front {
    /// The process.
    pub envoy: EnvoyProcess,
}

/// The counters of decisions by reason; reasons that never occurred are left out.
pub type Decisions = BTreeMap<String, u64>;

/// The filter's metrics start with this in Envoy's statistics.
const PREFIX: &str = "wasmcustom.warmpath_";

impl Front {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.envoy.public()
    }

    /// What `GET /_warmpath/status` says.
    pub async fn status(&self) -> Value {
        let answer = self.envoy.status().await.expect("status");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// What `POST /_warmpath/explain` says of a request with this path and body.
    pub async fn explain(&self, path: &str, body: &Value) -> Value {
        self.envoy.settled().await;
        let client = HttpClient::new();
        let path = format!("/_warmpath/explain{path}");
        let answer = client.post_json(self.envoy.internal(), &path, body).await.expect("explained");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// A new connection to the public listener.
    pub async fn connect(&self, version: Version) -> Connection {
        Connection::open(self.address(), version).await
    }

    /// All of Envoy's counters and gauges.
    pub async fn stats(&self) -> Stats {
        self.envoy.stats().await.expect("statistics")
    }

    /// A counter or gauge of the filter, such as `requests_in_flight`; of one with the label `kind`, the
    /// sum. It must exist.
    pub async fn metric(&self, name: &str) -> u64 {
        let stats = self.stats().await;
        let (name, kinds) = (format!("{PREFIX}{name}"), format!("{PREFIX}{name}.kind."));
        let is_it = |other: &str| other == name || other.starts_with(&kinds);
        let found: Vec<u64> =
            stats.iter().filter(|(other, _)| is_it(other)).map(|(_, value)| *value).collect();
        assert!(!found.is_empty(), "no metric {name}");
        found.iter().sum()
    }

    /// A counter or gauge of the model's, such as `parity_agreements_total`. It must exist.
    pub async fn model_metric(&self, name: &str) -> u64 {
        self.metric(&format!("{name}.model.{MODEL}")).await
    }

    /// How often each reason decided.
    pub async fn decisions(&self) -> Decisions {
        decisions(&self.stats().await)
    }

    /// Waits until the model's bundle is loaded in every worker and in the main thread.
    pub async fn wait_for_bundles(&self, count: u64) {
        poll::until_equal("bundles", count, async || self.metric("bundles_loaded_total").await)
            .await;
    }

    /// Fails if a VM of the filter ever crashed.
    pub async fn assert_no_crash(&self) {
        let stats = self.stats().await;
        for (name, value) in &stats {
            if name.contains("vm_reload") || name.contains("vm_failed") || name.contains("crash") {
                assert_eq!(*value, 0, "{name}\n{}", self.envoy.log());
            }
        }
        let created =
            stats.iter().filter(|(name, _)| name.contains("wasm") && name.ends_with(".created"));
        assert!(created.count() > 0, "Envoy names its VMs otherwise: {stats:?}");
        let log = self.envoy.log();
        assert!(!log.contains("Proxy-Wasm plugin in-VM backtrace"), "{log}");
    }
}

/// How often each reason decided, out of Envoy's statistics.
pub fn decisions(stats: &Stats) -> Decisions {
    let prefix = format!("{PREFIX}decisions_total.reason.");
    let found = stats.iter().filter(|(_, count)| **count > 0);
    found
        .filter_map(|(name, count)| Some((name.strip_prefix(&prefix)?.to_owned(), *count)))
        .collect()
}

/// What changed between two readings.
pub fn difference(before: &Decisions, after: &Decisions) -> Decisions {
    let grown = after.iter().map(|(reason, count)| {
        (reason.clone(), count - before.get(reason).copied().unwrap_or_default())
    });
    grown.filter(|(_, count)| *count > 0).collect()
}

/// Simulated engines behind an Envoy with the filter.
pub struct Bed {
    /// Envoy.
    pub front: Front,
    /// The engines.
    pub fleet: Fleet,
}

impl Bed {
    /// Starts fast engines and Envoy.
    pub async fn start(options: &FrontOptions, engines: usize) -> Self {
        Self::with_fleet(options, &fleet::fast(engines)).await
    }

    /// Starts engines and Envoy.
    pub async fn with_fleet(options: &FrontOptions, fleet: &FleetOptions) -> Self {
        let fleet = Fleet::start(fleet).await.expect("engines");
        let front = options.start(fleet.addresses()).await;
        Self { front, fleet }
    }

    /// Sends a prompt over a connection of its own; returns the engine's record.
    pub async fn complete(&self, prompt: &[u32]) -> Served {
        let mut connection = self.front.connect(Version::Http1).await;
        self.complete_on(&mut connection, prompt).await
    }

    /// Sends a prompt over `connection`; returns the engine's record. The answer must be a 200.
    pub async fn complete_on(&self, connection: &mut Connection, prompt: &[u32]) -> Served {
        let (id, answer) = post(connection, "/v1/completions", &completion(prompt), &[]).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        fleet::served_once(&self.fleet, &id).await
    }
}

/// A stream that stays open until it is dropped.
pub struct OpenStream {
    /// The engine that serves it.
    pub engine: usize,
    /// The rest of the answer.
    pub body: Incoming,
    // Dropping it would break the stream off.
    _connection: Connection,
}

impl Bed {
    /// Opens a stream of `prompt` over a connection of its own, and waits for its first token.
    pub async fn open_stream(&self, prompt: &[u32]) -> OpenStream {
        let mut connection = self.front.connect(Version::Http1).await;
        let (id, request) = streaming_request(&connection, prompt, 100_000);
        let response = poll::within("a head", connection.start(request)).await.expect("an answer");
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let first = poll::within("a token", body.frame()).await.expect("a token");
        assert!(first.expect("no error").is_data());
        let engine = fleet::served_once(&self.fleet, &id).await.engine;
        OpenStream { engine, body, _connection: connection }
    }
}

/// A request for a stream of so many tokens, and the id by which engines know it.
pub fn streaming_request(
    connection: &Connection,
    prompt: &[u32],
    output_tokens: u32,
) -> (String, http::Request<Body>) {
    let mut body = completion(prompt);
    body["stream"] = json!(true);
    body["max_tokens"] = json!(output_tokens);
    let id = unique_id();
    let headers = [("content-type", "application/json"), (ID_HEADER, id.as_str())];
    let request = connection.request("POST", "/v1/completions", &headers, whole(body.to_string()));
    (id, request)
}

/// A name that no other request of this process has.
pub fn unique_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("e2e-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Posts JSON; returns the id by which engines know the request, and the answer.
pub async fn post(
    connection: &mut Connection,
    path: &str,
    body: &Value,
    headers: &[(&str, &str)],
) -> (String, Answer) {
    let id = unique_id();
    let mut all = vec![("content-type", "application/json"), (ID_HEADER, id.as_str())];
    all.extend_from_slice(headers);
    let request = connection.request("POST", path, &all, whole(body.to_string()));
    let answer = poll::within("an answer", connection.send(request)).await.expect("an answer");
    (id, answer)
}
