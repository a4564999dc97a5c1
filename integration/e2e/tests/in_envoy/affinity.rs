//! A prompt goes back to the engine that holds its blocks, whichever worker takes it, unless that engine is
//! too busy.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use warmpath_e2e::bed::{Bed, Decisions, FrontOptions, difference, post};
use warmpath_e2e::client::Version;
use warmpath_e2e::fleet::{served_once, slow_decode, totals};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{BLOCK_TOKENS, completion, full_blocks, prompt};
use warmpath_harness::{Bootstrap, HarnessError, Variant};

const ENGINES: usize = 4;
const BLOCKS: usize = 24;
/// Tokens of a whole prompt that a cache can hold.
const CACHED: Option<u64> = Some((BLOCKS * BLOCK_TOKENS) as u64);

/// Envoy gives each new connection to the worker with the fewest.
fn balance_exactly(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    bootstrap.listener_mut("public")?["connection_balance_config"] = json!({"exact_balance": {}});
    Ok(())
}

async fn affinity(variant: Variant) {
    let options = FrontOptions { edit: balance_exactly, ..FrontOptions::new(variant) };
    let bed = Bed::start(&options, ENGINES).await;
    repeated_prompts_return_and_new_ones_use_all_engines(&bed).await;
    prompts_that_differ_in_their_first_token_share_nothing(&bed).await;
    a_follow_up_goes_where_the_conversation_is(&bed).await;
    a_shared_beginning_is_enough(&bed).await;
    a_salt_keeps_equal_tokens_apart(&bed).await;
    two_workers_share_one_tree(&bed).await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_return_by_cluster_header() {
    affinity(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_return_by_override_host() {
    affinity(Variant::OverrideHost).await;
}

/// What `action` made the filter decide.
async fn decided(bed: &Bed, action: impl Future<Output = ()>) -> Decisions {
    let before = bed.front.decisions().await;
    action.await;
    difference(&before, &bed.front.decisions().await)
}

fn counts(expected: &[(&str, u64)]) -> Decisions {
    expected.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
}

async fn repeated_prompts_return_and_new_ones_use_all_engines(bed: &Bed) {
    let decisions = decided(bed, async {
        let mut engines = BTreeMap::new();
        for number in 0..40 {
            let served = bed.complete(&prompt(number, BLOCKS)).await;
            assert_eq!(served.cached_tokens, Some(0), "prompt {number} is new");
            engines.insert(number, served.engine);
        }
        let used: BTreeSet<usize> = engines.values().copied().collect();
        assert_eq!(used.len(), ENGINES, "{engines:?}");
        for round in 1..=2 {
            for number in (0..40).rev() {
                let served = bed.complete(&prompt(number, BLOCKS)).await;
                let seen = (served.engine, served.cached_tokens);
                assert_eq!(seen, (engines[&number], CACHED), "round {round}, prompt {number}");
            }
        }
    });
    assert_eq!(decisions.await, counts(&[("prefix_miss", 40), ("prefix_hit", 80)]));
}

async fn prompts_that_differ_in_their_first_token_share_nothing(bed: &Bed) {
    let decisions = decided(bed, async {
        let mut parted = 0;
        for number in 100..120 {
            let mut tokens = prompt(number, BLOCKS);
            let first = bed.complete(&tokens).await;
            tokens[0] += 10_000;
            let second = bed.complete(&tokens).await;
            assert_eq!(second.cached_tokens, Some(0));
            parted += usize::from(first.engine != second.engine);
        }
        // By chance three of four part.
        assert!(parted >= 5, "{parted} of 20 pairs parted");
    });
    assert_eq!(decisions.await, counts(&[("prefix_miss", 40)]));
}

async fn a_follow_up_goes_where_the_conversation_is(bed: &Bed) {
    for number in 200..212 {
        let mut conversation = prompt(number, BLOCKS);
        let opening = bed.complete(&conversation).await;
        for turn in 1..4 {
            let known = full_blocks(&conversation).len() as u64;
            // The answer and the next question: new tokens after the old ones.
            conversation.extend(prompt(number * 100 + turn, 3));
            let served = bed.complete(&conversation).await;
            let seen = (served.engine, served.cached_tokens);
            assert_eq!(seen, (opening.engine, Some(known)), "{number}, turn {turn}");
        }
    }
}

async fn a_shared_beginning_is_enough(bed: &Bed) {
    for number in 300..308 {
        let system = prompt(number, BLOCKS);
        let system = full_blocks(&system);
        let first = bed.complete(&[system, &prompt(40_000 + number, 2)].concat()).await;
        let second = bed.complete(&[system, &prompt(50_000 + number, 2)].concat()).await;
        assert_eq!((second.engine, second.cached_tokens), (first.engine, CACHED));
    }
}

async fn a_salt_keeps_equal_tokens_apart(bed: &Bed) {
    let decisions = decided(bed, async {
        let mut connection = bed.front.connect(Version::Http1).await;
        let mut body = completion(&prompt(400, BLOCKS));
        let mut seen = Vec::new();
        for salt in ["a", "b", "a", "b"] {
            body["cache_salt"] = json!(salt);
            let (id, _) = post(&mut connection, "/v1/completions", &body, &[]).await;
            let served = served_once(&bed.fleet, &id).await;
            seen.push((served.engine, served.cached_tokens));
        }
        assert_eq!((seen[0].1, seen[1].1), (Some(0), Some(0)));
        assert_eq!(seen[2..], [(seen[0].0, CACHED), (seen[1].0, CACHED)]);
    });
    assert_eq!(decisions.await, counts(&[("prefix_miss", 2), ("prefix_hit", 2)]));
}

async fn two_workers_share_one_tree(bed: &Bed) {
    let internal = bed.front.envoy.internal().port().to_string();
    let active = async || {
        let stats = bed.front.stats().await;
        let per_worker = stats.iter().filter(|(name, _)| {
            name.starts_with("listener.127.0.0.1")
                && !name.contains(&internal)
                && name.contains(".worker_")
                && name.ends_with(".downstream_cx_active")
        });
        per_worker.map(|(_, active)| *active).collect::<Vec<u64>>()
    };
    poll::until_equal("earlier connections to end", vec![0, 0], &active).await;
    let mut one = bed.front.connect(Version::Http1).await;
    let mut other = bed.front.connect(Version::Http1).await;
    poll::until_equal("a connection on each worker", vec![1, 1], &active).await;
    for number in 500..520 {
        let tokens = prompt(number, BLOCKS);
        let (learns, asks) =
            if number % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        let first = bed.complete_on(learns, &tokens).await;
        let second = bed.complete_on(asks, &tokens).await;
        let seen = (second.engine, second.cached_tokens);
        assert_eq!(seen, (first.engine, CACHED), "prompt {number}");
    }
    assert_eq!(active().await, [1, 1], "the connections are the same ones");
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_follow_until_the_holder_is_too_busy() {
    let options = FrontOptions::new(Variant::OverrideHost);
    let bed = Bed::with_fleet(&options, &slow_decode(2)).await;
    a_burst_of_siblings_follows_during_the_prefill(&bed).await;
    siblings_follow_before_the_first_is_answered(&bed).await;
    a_busy_holder_is_left_for_an_idle_engine(&bed).await;
    bed.front.assert_no_crash().await;
}

/// No engine answers: only what the filter entered when it sent the first can guide the others.
async fn a_burst_of_siblings_follows_during_the_prefill(bed: &Bed) {
    let shared = prompt(3, 200);
    let shared = full_blocks(&shared);
    for engine in 0..2 {
        bed.fleet.fail(engine, "hang").await.unwrap();
    }
    let mut open = Vec::new();
    for number in 2_000..2_004 {
        let mut connection = bed.front.connect(Version::Http1).await;
        let body = completion(&[shared, &prompt(number, 1)].concat());
        open.push(tokio::spawn(async move {
            post(&mut connection, "/v1/completions", &body, &[]).await;
        }));
        let sent = async || bed.fleet.served().await.unwrap().len();
        poll::until_equal("the request at an engine", open.len(), sent).await;
    }
    let served = bed.fleet.served().await.unwrap();
    let engines: BTreeSet<usize> = served.iter().map(|served| served.engine).collect();
    assert_eq!(engines.len(), 1, "{engines:?}");
    open.iter().for_each(tokio::task::JoinHandle::abort);
    for engine in 0..2 {
        bed.fleet.fail(engine, "ok").await.unwrap();
    }
}

async fn siblings_follow_before_the_first_is_answered(bed: &Bed) {
    let shared = prompt(1, 200);
    let shared = full_blocks(&shared);
    let first = bed.open_stream(&[shared, &prompt(1_000, 1)].concat()).await;
    let mut streams = Vec::new();
    for number in 1_001..1_006 {
        let sibling = bed.open_stream(&[shared, &prompt(number, 1)].concat()).await;
        assert_eq!(sibling.engine, first.engine, "sibling {number}");
        streams.push(sibling);
    }
    assert_eq!(totals(&bed.fleet).await.finished, 0);
    drop((first, streams));
    poll::until_equal("the engines to be idle", 0, async || totals(&bed.fleet).await.open).await;
}

async fn a_busy_holder_is_left_for_an_idle_engine(bed: &Bed) {
    let tokens = prompt(2, BLOCKS);
    let holder = bed.complete(&tokens).await.engine;
    // Streams of the same prompt, each until the test's end: their number outweighs 24 blocks at last.
    let mut streams = Vec::new();
    let decisions = decided(bed, async {
        while streams.last().is_none_or(|(_, engine)| *engine == holder) {
            assert!(streams.len() < 40, "all went to the holder");
            let stream = bed.open_stream(&tokens).await;
            let engine = stream.engine;
            streams.push((stream, engine));
        }
    });
    let decisions = decisions.await;
    // 24 blocks are worth 384 tokens, a running request 100.
    assert!((2..=8).contains(&streams.len()), "{} streams", streams.len());
    let followed = streams.len() as u64 - 1;
    assert_eq!(decisions, counts(&[("load_over_prefix", 1), ("prefix_hit", followed)]));
    drop(streams);
    poll::until_equal("the engines to be idle", 0, async || totals(&bed.fleet).await.open).await;
    // The stranger has the prompt too by now: whichever of the two serves it has it cached.
    assert_eq!(bed.complete(&tokens).await.cached_tokens, CACHED);
}
