//! Requests through Envoy and the filter, one after another: our token count and predicted cached tokens
//! beside what the engine says in its answers.

use serde_json::Value;
use warmpath_harness::EnvoyProcess;
use warmpath_harness::envoy::Stats;
use warmpath_harness::http::{HttpAnswer, HttpClient};

use crate::workload::Ask;

/// What an engine says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Those of them that were in the cache, or are predicted to be.
    pub cached_tokens: u64,
}

/// The usage of an answer, in whichever API's form; the last one of a stream.
fn usage(answer: &HttpAnswer) -> Option<Usage> {
    let text = answer.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut values: Vec<Value> =
        events.filter_map(|data| serde_json::from_str(data).ok()).collect();
    if values.is_empty() {
        values.push(answer.json());
    }
    values.iter().rev().find_map(|value| {
        let usage = &value["usage"];
        if let Some(prompt_tokens) = usage["prompt_tokens"].as_u64() {
            let cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
            return Some(Usage { prompt_tokens, cached_tokens: cached_tokens.unwrap_or(0) });
        }
        let input_tokens = usage["input_tokens"].as_u64()?;
        if let Some(cached_tokens) = usage["input_tokens_details"]["cached_tokens"].as_u64() {
            return Some(Usage { prompt_tokens: input_tokens, cached_tokens });
        }
        // Anthropic counts apart what was read from the cache and what was written to it.
        let cached_tokens = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        let stored_tokens = usage["cache_creation_input_tokens"].as_u64().unwrap_or(0);
        let prompt_tokens = input_tokens + cached_tokens + stored_tokens;
        Some(Usage { prompt_tokens, cached_tokens })
    })
}

/// The sum of the filter's counters whose name has `part`.
#[must_use]
pub fn counted(stats: &Stats, part: &str) -> u64 {
    stats.iter().filter(|(name, _)| name.contains(part)).map(|(_, value)| value).sum()
}

/// One request's numbers, ours and the engine's.
#[derive(Debug)]
pub struct Compared {
    /// The request's path.
    pub path: &'static str,
    /// What the filter counted and predicted.
    pub ours: Usage,
    /// What the engine reports.
    pub theirs: Usage,
}

/// Sends a request; `None` for one that the model's template refuses, in the engine and here.
async fn compare(envoy: &EnvoyProcess, ask: &Ask, before: &mut Stats) -> Option<Compared> {
    let client = HttpClient::new();
    let answer = client.post_json(envoy.public(), ask.path, &ask.body).await.expect("an answer");
    let after = envoy.stats().await.expect("statistics");
    let grown = |part: &str| counted(&after, part) - counted(before, part);
    let is_refused_here = grown("reason.template_failed") == 1;
    let expected = if is_refused_here { 400 } else { 200 };
    assert_eq!(answer.status, expected, "{} {}\n{}", ask.path, ask.body, answer.text());
    if is_refused_here {
        *before = after;
        return None;
    }
    let theirs = usage(&answer).unwrap_or_else(|| panic!("no usage in {}", answer.text()));
    let ours = Usage {
        prompt_tokens: grown("warmpath_prompt_tokens_total"),
        cached_tokens: grown("warmpath_predicted_cached_tokens_total"),
    };
    *before = after;
    Some(Compared { path: ask.path, ours, theirs })
}

/// Sends so many of the `asks` that the model's template takes; how many it refused comes beside.
///
/// # Panics
/// When a request is answered otherwise than it should be, or Envoy does not answer.
pub async fn compare_all(
    envoy: &EnvoyProcess,
    mut asks: impl Iterator<Item = Ask>,
    count: usize,
) -> (Vec<Compared>, usize) {
    let mut before = envoy.stats().await.expect("statistics");
    let mut all: Vec<Compared> = Vec::new();
    let mut refused = 0;
    while all.len() < count {
        match compare(envoy, &asks.next().expect("no end"), &mut before).await {
            Some(Compared { path, ours, theirs }) => {
                if ours != theirs {
                    let number = all.len();
                    println!("request {number} {path}: ours {ours:?}, theirs {theirs:?}");
                }
                all.push(Compared { path, ours, theirs });
            }
            None => refused += 1,
        }
        assert!(refused < count, "the template refuses nearly everything");
    }
    (all, refused)
}
