//! A prompt goes back to the engine that holds its blocks, whichever worker takes it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, difference, post};
use warmpath_e2e::client::{Connection, Version};
use warmpath_e2e::fleet::{self, served_once, totals};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{BLOCK_TOKENS, MODEL, completion, full_blocks, prompt};
use warmpath_harness::Variant;

const ENGINES: usize = 4;
const BLOCKS: usize = 24;
/// Tokens of a whole prompt that a cache can hold.
const CACHED: Option<u64> = Some((BLOCKS * BLOCK_TOKENS) as u64);

#[tokio::test(flavor = "multi_thread")]
async fn repeated_prompts_return_to_their_engines_and_new_ones_use_all() {
    for variant in Variant::ALL {
        let bed = Bed::start(&FrontOptions::new(variant), ENGINES).await;
        let mut engines = BTreeMap::new();
        for number in 0..40 {
            let served = bed.complete(&prompt(number, BLOCKS)).await;
            assert_eq!(served.cached_tokens, Some(0), "{variant:?}: prompt {number} is new");
            engines.insert(number, served.engine);
        }
        let used: BTreeSet<usize> = engines.values().copied().collect();
        assert_eq!(used.len(), ENGINES, "{variant:?}: {engines:?}");
        for round in 1..=2 {
            for number in (0..40).rev() {
                let served = bed.complete(&prompt(number, BLOCKS)).await;
                let expected = (engines[&number], CACHED);
                let seen = (served.engine, served.cached_tokens);
                assert_eq!(seen, expected, "{variant:?}: round {round}, prompt {number}");
            }
        }
        let decisions = bed.front.decisions().await;
        let expected = BTreeMap::from([("prefix_hit", 80), ("prefix_miss", 40)]);
        assert!(decisions.iter().map(|(r, n)| (r.as_str(), *n)).eq(expected), "{decisions:?}");
        bed.front.assert_no_crash().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_differ_in_their_first_token_share_nothing() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), ENGINES).await;
    let mut parted = 0;
    for number in 0..20 {
        let mut other = prompt(number, BLOCKS);
        let first = bed.complete(&other).await;
        other[0] += 1_000;
        let second = bed.complete(&other).await;
        assert_eq!(second.cached_tokens, Some(0));
        parted += usize::from(first.engine != second.engine);
    }
    // By chance three of four part.
    assert!(parted >= 5, "{parted} of 20 pairs parted");
    assert_eq!(bed.front.decisions().await.get("prefix_hit"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_goes_where_the_conversation_is() {
    for variant in Variant::ALL {
        let bed = Bed::start(&FrontOptions::new(variant), ENGINES).await;
        for number in 0..12 {
            let mut conversation = prompt(number, BLOCKS);
            let opening = bed.complete(&conversation).await;
            for turn in 1..4 {
                let known = full_blocks(&conversation).len() as u64;
                // The answer and the next question: new tokens after the old ones.
                conversation.extend(prompt(1_000 + number * 10 + turn, 3));
                let served = bed.complete(&conversation).await;
                assert_eq!(served.engine, opening.engine, "{variant:?}: {number}, turn {turn}");
                assert_eq!(served.cached_tokens, Some(known), "{variant:?}: {number}, turn {turn}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_beginning_is_enough() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), ENGINES).await;
    for number in 0..8 {
        let system = prompt(number, BLOCKS);
        let system = full_blocks(&system);
        let first = bed.complete(&[system, &prompt(2_000 + number, 2)].concat()).await;
        let second = bed.complete(&[system, &prompt(3_000 + number, 2)].concat()).await;
        assert_eq!((second.engine, second.cached_tokens), (first.engine, CACHED));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn salt_and_model_keep_equal_tokens_apart() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), ENGINES).await;
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut body = completion(&prompt(1, BLOCKS));
    let mut seen = Vec::new();
    for salt in ["a", "b", "a", "b"] {
        body["cache_salt"] = json!(salt);
        let (id, _) = post(&mut connection, "/v1/completions", &body, &[]).await;
        let served = served_once(&bed.fleet, &id).await;
        seen.push((served.engine, served.cached_tokens));
    }
    assert_eq!((seen[0].1, seen[1].1), (Some(0), Some(0)));
    assert_eq!(seen[2], (seen[0].0, CACHED));
    assert_eq!(seen[3], (seen[1].0, CACHED));
    let decisions = bed.front.decisions().await;
    assert_eq!((decisions["prefix_miss"], decisions["prefix_hit"]), (2, 2));
}

/// Envoy gives each new connection to the worker with the fewest.
fn balance_exactly(
    bootstrap: &mut warmpath_harness::Bootstrap,
) -> Result<(), warmpath_harness::HarnessError> {
    bootstrap.listener_mut("public")?["connection_balance_config"] = json!({"exact_balance": {}});
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_share_one_tree() {
    for variant in Variant::ALL {
        let mut options = FrontOptions::new(variant);
        options.edit = balance_exactly;
        let bed = Bed::start(&options, ENGINES).await;
        let mut one = bed.front.connect(Version::Http1).await;
        let mut other = bed.front.connect(Version::Http1).await;
        poll::until_equal("a connection on each worker", vec![1, 1], async || {
            let stats = bed.front.stats().await;
            let internal = bed.front.envoy.internal().port().to_string();
            let per_worker = stats.iter().filter(|(name, _)| {
                name.starts_with("listener.127.0.0.1")
                    && !name.contains(&internal)
                    && name.contains(".worker_")
                    && name.ends_with(".downstream_cx_active")
            });
            per_worker.map(|(_, active)| *active).collect()
        })
        .await;
        for number in 0..20 {
            let tokens = prompt(number, BLOCKS);
            let (learns, asks) = match number % 2 {
                0 => (&mut one, &mut other),
                _ => (&mut other, &mut one),
            };
            let first = bed.complete_on(learns, &tokens).await;
            let second = bed.complete_on(asks, &tokens).await;
            assert_eq!(
                (second.engine, second.cached_tokens),
                (first.engine, CACHED),
                "{variant:?}: prompt {number}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_siblings_follows_the_first_before_it_is_answered() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), ENGINES).await;
    let shared = prompt(1, 400);
    let shared = full_blocks(&shared);
    // Nothing answers: only what the filter entered when it sent the first can guide the others.
    for engine in 0..ENGINES {
        bed.fleet.fail(engine, "hang").await.unwrap();
    }
    let mut open = Vec::new();
    for number in 0..6 {
        let tokens = [shared, &prompt(100 + number, 1)].concat();
        let mut connection = bed.front.connect(Version::Http1).await;
        open.push(tokio::spawn(async move {
            let _ = post(&mut connection, "/v1/completions", &completion(&tokens), &[]).await;
        }));
        let count = number as usize + 1;
        poll::until_equal("the request at an engine", count, async || {
            bed.fleet.served().await.unwrap().len()
        })
        .await;
    }
    let engines: BTreeSet<usize> =
        bed.fleet.served().await.unwrap().iter().map(|served| served.engine).collect();
    assert_eq!(engines.len(), 1, "{engines:?}");
    open.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_holder_is_left_for_an_idle_engine() {
    let options = FrontOptions::new(Variant::OverrideHost);
    let bed = Bed::with_fleet(&options, &fleet::slow_decode(2)).await;
    let tokens = prompt(1, BLOCKS);
    let holder = bed.complete(&tokens).await.engine;
    // Streams of the same prompt, each until the test's end: their number outweighs 24 blocks at last.
    let mut streams = Vec::new();
    let mut body = completion(&tokens);
    body["max_tokens"] = json!(50_000);
    body["stream"] = json!(true);
    let mut engines = Vec::new();
    while engines.iter().all(|engine| *engine == holder) {
        assert!(engines.len() < 40, "all went to the holder");
        let mut connection = Connection::open(bed.front.address(), Version::Http1).await;
        let id = warmpath_e2e::bed::unique_id();
        let headers = [("content-type", "application/json"), (fleet::ID_HEADER, id.as_str())];
        let body = warmpath_e2e::client::whole(body.to_string());
        let request = connection.request("POST", "/v1/completions", &headers, body);
        streams.push((connection.start(request).await.unwrap(), connection));
        engines.push(served_once(&bed.fleet, &id).await.engine);
    }
    // 24 blocks are worth 384 tokens, a running request 100.
    assert!((2..=8).contains(&engines.len()), "{engines:?}");
    let decisions = bed.front.decisions().await;
    assert_eq!(decisions.get("load_over_prefix"), Some(&1), "{decisions:?}");
    drop(streams);
    poll::until_equal("the engines to be idle", 0, async || totals(&bed.fleet).await.open).await;
    // The stranger has the prompt too by now, and each of the two may serve it.
    let before = bed.front.decisions().await;
    let again = bed.complete(&tokens).await;
    assert_eq!(again.cached_tokens, CACHED);
    let after = bed.front.decisions().await;
    assert_eq!(difference(&before, &after).into_keys().collect::<Vec<_>>(), ["prefix_hit"]);
    assert_eq!(again.header("content-type"), Some("application/json"));
    assert_eq!(MODEL, "demo");
}
