//! The simulated prefix cache against a real vLLM's: the same requests, one after the other, through
//! both, with a KV memory that holds about half of what is asked for, so that blocks are evicted all
//! the time. Cached tokens must be equal for every request.
//!
//! Needs vLLM, so it runs only when asked for: `make e2e-vllm`.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use warmpath_engine_sim::model::{
    Engine as SimEngine, EventKind, Profile, Prompt, RequestId, RequestSpec, SimTime,
};
use warmpath_harness::http::HttpClient;
use warmpath_vllm::engine::Engine;
use warmpath_vllm::family::repository_file;

const FAMILY: &str = "qwen3";
const SEED: u64 = 20_250_702;
const REQUESTS: usize = 600;
const BLOCK_SIZE_TOKENS: u32 = 32;

/// KV blocks, the null block included: about half of what the documents fill.
const KV_BLOCKS: u32 = 241;

/// One request of the sequence.
struct Ask {
    prompt: Vec<u32>,
    output_tokens: u32,
}

/// Documents of 6 to 30 blocks, asked about whole or in part, with endings of their own.
fn asks() -> Vec<Ask> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut tokens = |count: usize| (0..count).map(|_| rng.random_range(1_000..100_000)).collect();
    let documents: Vec<Vec<u32>> = (0..26).map(|index| tokens(200 + 30 * index)).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(SEED + 1);
    (0..REQUESTS)
        .map(|_| {
            let document = documents.choose(&mut rng).expect("documents");
            let part = if rng.random_bool(0.7) {
                document.len()
            } else {
                rng.random_range(1..=document.len())
            };
            let mut prompt = document[..part].to_vec();
            // Sometimes none: the last block then is full, and yet one token must be computed.
            let own = rng.random_range(0..80_u32).saturating_sub(20);
            prompt.extend((0..own).map(|_| rng.random_range(1_000..100_000_u32)));
            Ask { prompt, output_tokens: rng.random_range(1..40) }
        })
        .collect()
}

async fn real(asks: &[Ask]) -> Vec<u32> {
    let dir = repository_file(".cache/vllm-e2e");
    std::fs::create_dir_all(&dir).expect("a folder for logs");
    let blocks = KV_BLOCKS.to_string();
    // A context must fit into the memory.
    let flags = ["--num-gpu-blocks-override", &blocks, "--max-model-len", "4096"];
    let engine = Engine::start_with(FAMILY, &dir.join("cache.log"), &flags).await;
    let client = HttpClient::new();
    let mut cached = Vec::new();
    for ask in asks {
        let body = json!({
            "model": FAMILY, "prompt": ask.prompt, "max_tokens": ask.output_tokens,
            "ignore_eos": true,
        });
        let path = "/v1/completions";
        let answer = client.post_json(engine.address(), path, &body).await.expect("an answer");
        let usage = answer.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens"], ask.prompt.len(), "{usage}");
        assert_eq!(usage["completion_tokens"], ask.output_tokens, "{usage}");
        let tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        cached.push(u32::try_from(tokens).expect("a count"));
    }
    cached
}

/// What the simulated engine had cached, and how many blocks it evicted.
fn simulated(asks: &[Ask]) -> (Vec<u32>, u64) {
    let profile = Profile {
        kv_tokens: KV_BLOCKS * BLOCK_SIZE_TOKENS,
        block_size_tokens: BLOCK_SIZE_TOKENS,
        ..Profile::named("a100-8b").expect("a profile")
    };
    let mut engine = SimEngine::new(profile, SEED).expect("an engine");
    let mut events = Vec::new();
    let mut now = SimTime::from_millis_f64(0.0);
    for (number, ask) in asks.iter().enumerate() {
        let prompt = Prompt::from_tokens("", ask.prompt.clone(), BLOCK_SIZE_TOKENS);
        let prompt = prompt.expect("a prompt");
        let spec =
            RequestSpec { id: RequestId(number as u64), prompt, output_tokens: ask.output_tokens };
        engine.submit(now, spec).expect("fits");
        while let Some(at) = engine.next_event_at() {
            now = at;
            engine.advance_to(at, &mut events);
        }
    }
    let cached = events.iter().filter_map(|event| match event.kind {
        EventKind::Finished(finished) => Some(finished.cached_tokens),
        _ => None,
    });
    (cached.collect(), engine.stats().evictions)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real vLLM: make e2e-vllm"]
async fn cached_tokens_are_the_simulated_engines() {
    let asks = asks();
    let (ours, evictions) = simulated(&asks);
    let theirs = real(&asks).await;
    let differing: Vec<_> = (0..REQUESTS).filter(|at| ours[*at] != theirs[*at]).collect();
    let hits = theirs.iter().filter(|cached| **cached > 0).count();
    println!(
        "{REQUESTS} requests, {hits} of them with cached tokens, {evictions} evictions; \
         {} differ",
        differing.len()
    );
    for at in &differing {
        println!("request {at}: simulated {}, real {}", ours[*at], theirs[*at]);
    }
    assert!(differing.is_empty());
    // Else nothing was proven.
    assert!(evictions > 5_000 && hits * 4 > REQUESTS);
}
