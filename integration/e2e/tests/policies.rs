//! Every policy serves, and spreads as its name says.

use std::collections::BTreeSet;

use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, unique_id};
use warmpath_e2e::client::{Connection, Version, whole};
use warmpath_e2e::fleet::{ID_HEADER, served_once, slow_decode};
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_harness::Variant;

const ENGINES: usize = 4;

fn options(variant: Variant, policy: &'static str) -> FrontOptions {
    FrontOptions { policy, ..FrontOptions::new(variant) }
}

/// The engines that serve `numbers`, one prompt after the other over one connection.
async fn engines_of(bed: &Bed, numbers: impl Iterator<Item = u32>) -> Vec<usize> {
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut engines = Vec::new();
    for number in numbers {
        engines.push(bed.complete_on(&mut connection, &prompt(number, 20)).await.engine);
    }
    engines
}

/// Decisions are the policy's; nothing crashed.
async fn decided(bed: &Bed, count: u64) {
    assert_eq!(bed.front.decisions().await.into_iter().collect::<Vec<_>>(), [("policy".to_owned(), count)]);
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_takes_turns() {
    for variant in Variant::ALL {
        let bed = Bed::start(&options(variant, "round_robin"), ENGINES).await;
        // One prompt again and again: what the engines hold does not matter.
        let engines = engines_of(&bed, std::iter::repeat_n(1, 40)).await;
        for (turn, engine) in engines.iter().enumerate() {
            assert_eq!(*engine, (engines[0] + turn) % ENGINES, "{variant:?}: {engines:?}");
        }
        decided(&bed, 40).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_uses_all_in_no_order() {
    for variant in Variant::ALL {
        let bed = Bed::start(&options(variant, "random"), ENGINES).await;
        let engines = engines_of(&bed, std::iter::repeat_n(1, 200)).await;
        for engine in 0..ENGINES {
            // 50 expected, standard deviation 6: five of them.
            let count = engines.iter().filter(|served| **served == engine).count();
            assert!((20..=80).contains(&count), "{variant:?}: engine {engine} served {count}");
        }
        // A fixed rotation would never repeat an engine, and always after the same one.
        let repeats = engines.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!((20..=80).contains(&repeats), "{variant:?}: {repeats} repeats: {engines:?}");
        decided(&bed, 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn least_request_fills_evenly() {
    for variant in Variant::ALL {
        let options = options(variant, "least_request");
        let bed = Bed::with_fleet(&options, &slow_decode(ENGINES)).await;
        let mut streams = Vec::new();
        let mut counts = [0; ENGINES];
        for opened in 1..=3 * ENGINES {
            let mut connection = bed.front.connect(Version::Http1).await;
            let (engine, response) = open_stream(&bed, &mut connection, 1).await;
            streams.push((response, connection));
            counts[engine] += 1;
            // Over both workers, no engine ever has two more than another.
            let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(most - least <= 1, "{variant:?}: after {opened}: {counts:?}");
        }
        assert_eq!(counts, [3; ENGINES], "{variant:?}");
        decided(&bed, 3 * ENGINES as u64).await;
    }
}

async fn open_stream(
    bed: &Bed,
    connection: &mut Connection,
    number: u32,
) -> (usize, http::Response<hyper::body::Incoming>) {
    let mut body = completion(&prompt(number, 20));
    body["stream"] = json!(true);
    body["max_tokens"] = json!(100_000);
    let id = unique_id();
    let headers = [("content-type", "application/json"), (ID_HEADER, id.as_str())];
    let request = connection.request("POST", "/v1/completions", &headers, whole(body.to_string()));
    let response = connection.start(request).await.expect("an answer");
    (served_once(&bed.fleet, &id).await.engine, response)
}

#[tokio::test(flavor = "multi_thread")]
async fn consistent_hash_keeps_a_prompt_on_its_engine_within_its_bound() {
    for variant in Variant::ALL {
        let options = options(variant, "consistent_hash");
        let bed = Bed::with_fleet(&options, &slow_decode(ENGINES)).await;
        let first = engines_of(&bed, 0..24).await;
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), ENGINES, "{variant:?}: {first:?}");
        // Whichever worker takes it.
        for (number, engine) in first.iter().enumerate() {
            let served = bed.complete(&prompt(number as u32, 20)).await;
            assert_eq!(served.engine, *engine, "{variant:?}: prompt {number}");
        }
        // Twelve streams of one prompt are too many for its engine: at most a quarter above the mean each.
        let mut streams = Vec::new();
        let mut counts = [0; ENGINES];
        for _ in 0..12 {
            let mut connection = bed.front.connect(Version::Http1).await;
            let (engine, response) = open_stream(&bed, &mut connection, 0).await;
            streams.push((response, connection));
            counts[engine] += 1;
        }
        assert!(counts.iter().all(|count| (1..=4).contains(count)), "{variant:?}: {counts:?}");
        assert_eq!(counts[first[0]], 4, "{variant:?}: {counts:?}");
        decided(&bed, 24 + 24 + 12).await;
    }
}
