//! An open-loop load generator.
//!
//! In: a [`Workload`] and where to send it. Out: one [`Sample`] a request. Requests go out at their times
//! whether or not earlier ones are answered, so a slow system cannot slow its own load down and so look
//! better than it is; two things delay one nevertheless, and [`Sample::late`] tells: a chat's turn waits
//! for the answer before it, which it contains, and no more than `in_flight_max` requests are open at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::http::{HttpClient, JSON, causes, request};
use crate::sse::SseReader;
use crate::workload::{Session, Turn, Workload};

/// Where and how to send a workload.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The server.
    pub target: SocketAddr,
    /// The model's name in the requests.
    pub model: String,
    /// Model time over wall time: with 4, an arrival at 8 s is sent after 2 s.
    pub speed: f64,
    /// Requests open at once.
    pub in_flight_max: usize,
    /// A request is given up after this long (wall time).
    pub timeout: Duration,
}

/// What became of one request. Times are wall times.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its session's index in the workload.
    pub session: usize,
    /// Its turn's index in the session.
    pub turn: usize,
    /// How much later than planned it was sent.
    pub late: Duration,
    /// From sending to the first event with content; `None` if none came.
    pub ttft: Option<Duration>,
    /// From sending to the end of the answer.
    pub total: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// What the engine says it counted.
    pub usage: Option<Usage>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A whole answer.
    Completed,
    /// A status other than 200.
    Refused(u16),
    /// The connection failed or the stream broke off.
    Broken(String),
    /// No end within the time allowed.
    TimedOut,
}

/// The `usage` of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens whose KV the engine had.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
}

/// What became of a workload.
#[derive(Debug, Clone, Default)]
pub struct LoadReport {
    /// One sample a request, in the order in which they ended.
    pub samples: Vec<Sample>,
    /// Wall time from the first request's time to the last answer's end.
    pub elapsed: Duration,
}

impl LoadReport {
    /// Requests with a whole answer.
    pub fn completed(&self) -> usize {
        self.samples.iter().filter(|sample| sample.outcome == Outcome::Completed).count()
    }

    /// The requests without one, counted by what happened.
    pub fn failures(&self) -> BTreeMap<String, usize> {
        let mut failures = BTreeMap::new();
        for sample in &self.samples {
            let why = match &sample.outcome {
                Outcome::Completed => continue,
                Outcome::Refused(status) => format!("status {status}"),
                Outcome::Broken(why) => why.clone(),
                Outcome::TimedOut => "timed out".to_owned(),
            };
            *failures.entry(why).or_insert(0) += 1;
        }
        failures
    }

    /// Times to first token, in microseconds.
    pub fn ttft_us(&self) -> Histogram<u64> {
        let mut histogram = histogram_us();
        for ttft in self.samples.iter().filter_map(|sample| sample.ttft) {
            histogram.saturating_record(u64::try_from(ttft.as_micros()).unwrap_or(u64::MAX));
        }
        histogram
    }
}

/// A histogram from 1 us to an hour at three digits.
pub fn histogram_us() -> Histogram<u64> {
    const HOUR_US: u64 = 3_600_000_000;
    #[expect(clippy::expect_used, reason = "the bounds are constants that the constructor accepts")]
    Histogram::new_with_bounds(1, HOUR_US, 3).expect("valid bounds")
}

/// Sends the workload; `progress` is called with each sample as it comes in.
pub async fn run(
    options: &LoadOptions,
    workload: &Workload,
    mut progress: impl FnMut(&Sample),
) -> LoadReport {
    let start = Instant::now();
    let (samples_in, mut samples_out) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        options: options.clone(),
        client: HttpClient::new(),
        slots: Semaphore::new(options.in_flight_max),
        start,
    });
    for (index, session) in workload.sessions.iter().enumerate() {
        let (shared, session, samples_in) = (shared.clone(), session.clone(), samples_in.clone());
        tokio::spawn(async move { run_session(&shared, index, &session, &samples_in).await });
    }
    drop(samples_in);
    let mut report = LoadReport::default();
    while let Some(sample) = samples_out.recv().await {
        progress(&sample);
        report.samples.push(sample);
    }
    report.elapsed = start.elapsed();
    report
}

struct Shared {
    options: LoadOptions,
    client: HttpClient,
    slots: Semaphore,
    start: Instant,
}

async fn run_session(
    shared: &Shared,
    index: usize,
    session: &Session,
    samples: &mpsc::UnboundedSender<Sample>,
) {
    let mut messages = Vec::new();
    if let Some(system) = &session.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    for (turn_index, turn) in session.turns.iter().enumerate() {
        let due = shared.start + turn.at.div_f64(shared.options.speed);
        tokio::time::sleep_until(due).await;
        let Ok(_slot) = shared.slots.acquire().await else {
            return;
        };
        messages.push(json!({"role": "user", "content": turn.user}));
        let sent = Instant::now();
        let mut answer = Answer::default();
        let exchange = exchange(shared, &messages, turn, sent, &mut answer);
        let outcome = match tokio::time::timeout(shared.options.timeout, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::TimedOut,
        };
        messages.push(json!({"role": "assistant", "content": answer.text}));
        let ended = samples.send(Sample {
            session: index,
            turn: turn_index,
            late: sent.saturating_duration_since(due),
            ttft: answer.ttft,
            total: sent.elapsed(),
            outcome,
            usage: answer.usage,
        });
        // Nobody listens any more: the run was given up.
        if ended.is_err() {
            return;
        }
    }
}

#[derive(Default)]
struct Answer {
    text: String,
    ttft: Option<Duration>,
    usage: Option<Usage>,
    done: bool,
}

async fn exchange(
    shared: &Shared,
    messages: &[Value],
    turn: &Turn,
    sent: Instant,
    answer: &mut Answer,
) -> Outcome {
    let body = json!({
        "model": shared.options.model,
        "messages": messages,
        "max_tokens": turn.max_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let body = Bytes::from(body.to_string());
    let request = request("POST", shared.options.target, "/v1/chat/completions", JSON, body);
    let response = match request {
        Ok(request) => shared.client.open(request).await,
        Err(error) => Err(error),
    };
    let response = match response {
        Ok(response) => response,
        Err(error) => return Outcome::Broken(error.to_string()),
    };
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut events = SseReader::default();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) if status == 200 => {
                if let Some(data) = frame.data_ref() {
                    events.push(data, |event| answer.read_event(event, sent));
                }
            }
            Ok(_) => {}
            Err(error) => return Outcome::Broken(causes(&error)),
        }
    }
    match status {
        200 if answer.done => Outcome::Completed,
        200 => Outcome::Broken("the stream ended without [DONE]".to_owned()),
        status => Outcome::Refused(status),
    }
}

impl Answer {
    fn read_event(&mut self, event: &[u8], sent: Instant) {
        if event == b"[DONE]" {
            self.done = true;
            return;
        }
        let Ok(event) = serde_json::from_slice::<Value>(event) else {
            return;
        };
        let content = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if !content.is_empty() {
            self.ttft.get_or_insert_with(|| sent.elapsed());
            self.text.push_str(content);
        }
        let usage = &event["usage"];
        if let Some(prompt_tokens) = usage["prompt_tokens"].as_u64() {
            self.usage = Some(Usage {
                prompt_tokens,
                cached_tokens: usage["prompt_tokens_details"]["cached_tokens"]
                    .as_u64()
                    .unwrap_or(0),
                completion_tokens: usage["completion_tokens"].as_u64().unwrap_or(0),
            });
        }
    }
}
