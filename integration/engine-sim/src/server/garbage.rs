//! Nonsense that an engine can be told to answer with.
//!
//! A choice depends on the engine's seed and a number, so that a run can be repeated.

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a page of garbage: more than one read of a socket gives.
const PAGE_BYTES: u64 = 100_000;

/// A usage that makes no sense.
#[must_use]
pub fn usage(seed: u64, number: u64) -> Value {
    let mut kinds = usages();
    let kind = choice(seed, number) % kinds.len() as u64;
    kinds.swap_remove(kind as usize)
}

/// All kinds of them.
fn usages() -> Vec<Value> {
    let count = |prompt: Value| json!({"prompt_tokens": prompt, "completion_tokens": 1});
    let cached = |cached: Value| {
        let details = json!({"cached_tokens": cached});
        json!({"prompt_tokens": 8, "completion_tokens": 1, "prompt_tokens_details": details})
    };
    vec![
        count(json!(u64::MAX)),
        count(json!(u32::MAX)),
        count(json!(1e300)),
        count(json!(12.5)),
        count(json!(-7)),
        count(json!("8")),
        count(json!(null)),
        count(json!({"prompt_tokens": 8})),
        cached(json!(u64::MAX)),
        cached(json!(1_000_000)),
        cached(json!(-1)),
        cached(json!("8")),
        cached(json!([8])),
        json!({"prompt_tokens": 8, "completion_tokens": -1, "prompt_tokens_details": 3}),
        json!({"usage": {"usage": {"prompt_tokens": 8}}}),
        json!([{"prompt_tokens": 8, "completion_tokens": 1}]),
        json!({}),
        json!("8"),
        json!(8),
        json!(true),
    ]
}

/// A page of bytes of all values, some of which look like metrics.
#[must_use]
pub fn page(seed: u64, number: u64) -> Vec<u8> {
    let page_seed = choice(seed, number);
    let mut bytes = Vec::with_capacity(PAGE_BYTES as usize + 64);
    for word in 0..PAGE_BYTES / 8 {
        let random = choice(page_seed, word);
        bytes.extend_from_slice(&random.to_le_bytes());
        if random.is_multiple_of(64) {
            bytes.extend_from_slice(b"\nvllm:num_requests_waiting{engine=\"0\"} ");
        }
    }
    bytes
}

fn choice(seed: u64, number: u64) -> u64 {
    xxh3_64_with_seed(&number.to_le_bytes(), seed)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kind_comes_and_comes_again() {
        let kinds = usages().len();
        let seen: HashSet<String> = (0..1_000).map(|number| usage(7, number).to_string()).collect();
        assert_eq!(seen.len(), kinds);
        assert_eq!(usage(7, 3), usage(7, 3));
        assert_eq!(page(7, 3), page(7, 3));
        assert_ne!(page(7, 3), page(7, 4));
    }
}
