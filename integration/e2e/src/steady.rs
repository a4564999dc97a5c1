//! Steady traffic while things happen to the engines or to Envoy.
//!
//! In: a rate and a number of prefixes. Out: one [`Shot`] a request, with what the client saw. Open loop:
//! requests go out at their times whatever becomes of earlier ones. Each has a connection of its own, so
//! that both of Envoy's workers serve, and nothing is retried here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use warmpath_harness::fleet::body_hash;

use crate::bed::unique_id;
use crate::client::whole;
use crate::fleet::ID_HEADER;
use crate::prompts::{MODEL, full_blocks, prompt};

/// What to send.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// Requests a second.
    pub rate: f64,
    /// Prefixes, used in turn at random.
    pub prefixes: u32,
    /// One in so many requests has a prefix that no other one has; 0 for none.
    pub fresh_of: u64,
    /// Blocks of a prefix.
    pub blocks: usize,
    /// Tokens of an answer.
    pub output_tokens: u32,
    /// One in so many requests is a stream; 0 for none.
    pub streams_of: u64,
    /// One in so many streams is left by its client after the first bytes; 0 for none.
    pub leaves_of: u64,
    /// A request without an end by then has failed.
    pub timeout: Duration,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            rate: 50.0,
            prefixes: 40,
            fresh_of: 10,
            blocks: 100,
            output_tokens: 20,
            streams_of: 2,
            leaves_of: 0,
            timeout: Duration::from_secs(60),
        }
    }
}

/// How a request ended, as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With a whole answer.
    Whole,
    /// The client left on purpose.
    Left,
    /// Otherwise: no connection, a reset, the end of patience.
    Broken(String),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Shot {
    /// By which engines know it.
    pub id: String,
    /// Its prefix.
    pub prefix: u32,
    /// When it was sent, since the start of the traffic.
    pub sent: Duration,
    /// When it ended.
    pub ended: Duration,
    /// From sending to the first byte of the body, which for a stream is the first token.
    pub first_byte: Option<Duration>,
    /// Whether it is a stream.
    pub is_stream: bool,
    /// The status; 0 without an answer.
    pub status: u16,
    /// How it ended.
    pub end: End,
    /// What `x-warmpath-decision` said.
    pub decision: String,
    /// The answer's bytes, and their hash.
    pub bytes: u64,
    /// See [`body_hash`].
    pub hash: String,
    /// Cached tokens as the engine reported, where it did.
    pub cached_tokens: Option<u64>,
    /// Answer's first bytes, for a message.
    pub head: String,
}

impl Shot {
    /// Whether the client got what it asked for.
    pub fn is_good(&self) -> bool {
        self.status == 200 && !matches!(self.end, End::Broken(_))
    }

    /// The backend that the decision named; empty where it named none.
    pub fn picked(&self) -> &str {
        self.parameter("backend")
    }

    /// The backend that served, as far as the decision's header says.
    pub fn served(&self) -> &str {
        let served = self.parameter("served");
        if served.is_empty() { self.picked() } else { served }
    }

    /// Cached tokens as predicted for the pick; 0 where another served.
    pub fn predicted_tokens(&self) -> u64 {
        let elsewhere = !self.parameter("served").is_empty();
        if elsewhere { 0 } else { self.parameter("cached").parse().unwrap_or(0) }
    }

    fn parameter(&self, name: &str) -> &str {
        let parts = self.decision.split(';');
        let mut values = parts.filter_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        values.next().unwrap_or("").trim_matches('"')
    }
}

/// Traffic under way.
pub struct Steady {
    started: Instant,
    ends: Arc<AtomicBool>,
    task: JoinHandle<Vec<Shot>>,
}

impl Steady {
    /// Starts it.
    pub fn start(target: SocketAddr, traffic: Traffic, seed: u64) -> Self {
        let started = Instant::now();
        let ends = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(run(target, traffic, seed, started, Arc::clone(&ends)));
        Self { started, ends, task }
    }

    /// The time since its start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Lets it run on for a while.
    pub async fn run_for(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Stops sending, waits for the answers and returns all requests in the order of sending.
    pub async fn stop(self) -> Vec<Shot> {
        self.ends.store(true, Ordering::Relaxed);
        let mut shots = self.task.await.expect("the traffic");
        shots.sort_by_key(|shot| shot.sent);
        shots
    }
}

async fn run(
    target: SocketAddr,
    traffic: Traffic,
    seed: u64,
    started: Instant,
    ends: Arc<AtomicBool>,
) -> Vec<Shot> {
    let traffic = Arc::new(traffic);
    let mut requests = JoinSet::new();
    let mut shots = Vec::new();
    let mut number = 0u64;
    while !ends.load(Ordering::Relaxed) {
        let due = started + Duration::from_secs_f64(number as f64 / traffic.rate);
        tokio::time::sleep_until(due.into()).await;
        let random = mix(seed ^ mix(number));
        requests.spawn(shoot(target, Arc::clone(&traffic), random, number, started));
        number += 1;
        while let Some(done) = requests.try_join_next() {
            shots.push(done.expect("a request"));
        }
    }
    shots.extend(requests.join_all().await);
    shots
}

async fn shoot(
    target: SocketAddr,
    traffic: Arc<Traffic>,
    random: u64,
    number: u64,
    started: Instant,
) -> Shot {
    let one_in = |of: u64, bits: u32| of != 0 && (random >> bits).is_multiple_of(of);
    let is_stream = one_in(traffic.streams_of, 20);
    let leaves = is_stream && one_in(traffic.leaves_of, 40);
    let prefix = match one_in(traffic.fresh_of, 50) {
        true => traffic.prefixes + number as u32,
        false => (random % u64::from(traffic.prefixes)) as u32,
    };
    let mut shot = Shot {
        id: unique_id(),
        prefix,
        sent: started.elapsed(),
        ended: Duration::ZERO,
        first_byte: None,
        is_stream,
        status: 0,
        end: End::Whole,
        decision: String::new(),
        bytes: 0,
        hash: String::new(),
        cached_tokens: None,
        head: String::new(),
    };
    let mut tokens = full_blocks(&prompt(prefix, traffic.blocks)).to_vec();
    tokens.extend((0..24).map(|at| (mix(number * 64 + at) % 30_000) as u32));
    let output_tokens = if leaves { 20_000 } else { traffic.output_tokens };
    let mut body = json!({"model": MODEL, "prompt": tokens, "max_tokens": output_tokens});
    if is_stream {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    let exchange = exchange(target, &body, leaves, &mut shot);
    match tokio::time::timeout(traffic.timeout, exchange).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => shot.end = End::Broken(why),
        Err(_) => shot.end = End::Broken("no end in time".to_owned()),
    }
    shot.ended = started.elapsed();
    shot
}

async fn exchange(
    target: SocketAddr,
    body: &Value,
    leaves: bool,
    shot: &mut Shot,
) -> Result<(), String> {
    let said = |error: hyper::Error| error.to_string();
    let sent = Instant::now();
    let socket = TcpStream::connect(target).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(said)?;
    let connection = tokio::spawn(connection);
    let request = http::Request::post("/v1/completions")
        .header("host", target.to_string())
        .header("content-type", "application/json")
        .header(ID_HEADER, &shot.id)
        .body(whole(body.to_string()))
        .expect("a request");
    let response = sender.send_request(request).await.map_err(said)?;
    shot.status = response.status().as_u16();
    let decision = response.headers().get("x-warmpath-decision");
    shot.decision = decision.and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned();
    let mut answer = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = answer.frame().await {
        shot.first_byte.get_or_insert_with(|| sent.elapsed());
        if let Ok(data) = frame.map_err(said)?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if leaves && shot.status == 200 {
            shot.end = End::Left;
            connection.abort();
            return Ok(());
        }
    }
    shot.bytes = bytes.len() as u64;
    shot.hash = body_hash(&bytes);
    shot.head = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    shot.cached_tokens = cached_tokens(&bytes);
    Ok(())
}

/// The engine's own count, out of a whole answer of either kind.
fn cached_tokens(bytes: &[u8]) -> Option<u64> {
    let of = |json: &[u8]| {
        let value: Value = serde_json::from_slice(json).ok()?;
        value["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    let events = bytes.split(|byte| *byte == b'\n');
    let in_events = events.filter_map(|line| of(line.strip_prefix(b"data: ")?)).next_back();
    of(bytes).or(in_events)
}

/// A well-spread number from another one (SplitMix64).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
