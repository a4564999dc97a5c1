//! Every policy serves, and spreads as its name says. The product's own is the subject of the other files.

use std::collections::BTreeSet;

use warmpath_e2e::bed::{Bed, FrontOptions};
use warmpath_e2e::client::Version;
use warmpath_e2e::fleet::{fast, slow_decode};
use warmpath_e2e::prompts::prompt;
use warmpath_harness::Variant;
use warmpath_harness::fleet::FleetOptions;

const ENGINES: usize = 4;

async fn bed(variant: Variant, policy: &'static str, fleet: &FleetOptions) -> Bed {
    Bed::with_fleet(&FrontOptions { policy, ..FrontOptions::new(variant) }, fleet).await
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

/// All decisions were the policy's.
async fn policy_decided(bed: &Bed, count: u64) {
    let decisions: Vec<_> = bed.front.decisions().await.into_iter().collect();
    assert_eq!(decisions, [("policy".to_owned(), count)]);
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_takes_turns() {
    let bed = bed(Variant::ClusterHeader, "round_robin", &fast(ENGINES)).await;
    // One prompt again and again: what the engines hold does not matter.
    let engines = engines_of(&bed, std::iter::repeat_n(1, 40)).await;
    for (turn, engine) in engines.iter().enumerate() {
        assert_eq!(*engine, (engines[0] + turn) % ENGINES, "{engines:?}");
    }
    policy_decided(&bed, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_uses_all_in_no_order() {
    let bed = bed(Variant::OverrideHost, "random", &fast(ENGINES)).await;
    let engines = engines_of(&bed, std::iter::repeat_n(1, 200)).await;
    for engine in 0..ENGINES {
        // 50 expected, standard deviation 6: five of them.
        let count = engines.iter().filter(|served| **served == engine).count();
        assert!((20..=80).contains(&count), "engine {engine} served {count}");
    }
    // Any fixed order has as many repeats as none or all.
    let repeats = engines.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!((20..=80).contains(&repeats), "{repeats} repeats: {engines:?}");
    policy_decided(&bed, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn least_request_fills_evenly() {
    let bed = bed(Variant::ClusterHeader, "least_request", &slow_decode(ENGINES)).await;
    let mut streams = Vec::new();
    let mut counts = [0; ENGINES];
    for _ in 0..3 * ENGINES {
        // Each over a connection of its own, and so over both workers.
        let stream = bed.open_stream(&prompt(1, 20)).await;
        counts[stream.engine] += 1;
        streams.push(stream);
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        assert!(most - least <= 1, "after {}: {counts:?}", streams.len());
    }
    policy_decided(&bed, 3 * ENGINES as u64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consistent_hash_keeps_a_prompt_on_its_engine_within_its_bound() {
    let bed = bed(Variant::OverrideHost, "consistent_hash", &slow_decode(ENGINES)).await;
    let owners = engines_of(&bed, 0..24).await;
    assert_eq!(owners.iter().collect::<BTreeSet<_>>().len(), ENGINES, "{owners:?}");
    // Whichever worker takes it.
    for (number, owner) in owners.iter().enumerate() {
        let served = bed.complete(&prompt(number as u32, 20)).await;
        assert_eq!(served.engine, *owner, "prompt {number}");
    }
    // Twelve streams of one prompt are too many for its owner: no engine takes more than a quarter above
    // the mean, rounded up, and the owner takes that.
    let mut streams = Vec::new();
    let mut counts = [0; ENGINES];
    for open in 1..=12_usize {
        let stream = bed.open_stream(&prompt(0, 20)).await;
        counts[stream.engine] += 1;
        streams.push(stream);
        let bound = (open * 5).div_ceil(4 * ENGINES);
        assert!(counts.iter().all(|count| *count <= bound), "after {open}: {counts:?}");
        assert_eq!(counts[owners[0]], bound, "after {open}: {counts:?}");
    }
    policy_decided(&bed, 24 + 24 + 12).await;
}
