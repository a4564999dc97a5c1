//! Many blocks, many requests, many threads: what the shared state keeps and what it takes.

mod support {
    pub mod worker;
}

use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::index::Segment;
use warmpath_core::load::Ledger;
use warmpath_core::store::MemoryStore;

use support::worker::{BLOCK_SIZE_TOKENS, Worker, config, prompt};

const MIB: usize = 1 << 20;

/// Bytes that Envoy's map takes for a key beside its value: the key, the version, a hash-table slot.
const KEY_BYTES: usize = 128;

fn bytes(store: &MemoryStore) -> usize {
    let (keys, values) = store.size();
    values + keys * KEY_BYTES
}

#[test]
fn a_million_blocks_take_less_than_128_mib_and_are_found() {
    let (config, store) = (config(100, Some(200_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let prompts = 1_000_000 / 500;
    let text = |seed| prompt(seed, 500 * BLOCK_SIZE_TOKENS.get(), (0, 0));
    for seed in 0..prompts {
        worker.serve(text(seed), |_| 0, |_| 10);
    }
    assert!(bytes(&store) < 128 * MIB, "{} bytes", bytes(&store));
    let known: usize =
        (0..prompts).map(|seed| worker.decide(text(seed)).prompt.path.known_blocks).sum();
    assert!(known >= 990_000, "{known} blocks of a million");
}

#[test]
fn memory_is_flat_under_churn_that_never_repeats() {
    // A small tree, so that what would take a day to fill is full in a moment.
    let (mut config, store) = (config(8, Some(100_000)), MemoryStore::default());
    config.index_buckets = 256.try_into().unwrap();
    let mut worker = Worker::new(&config, &store, 1);
    let mut after_an_hour = 0;
    for request in 0..86_400 {
        worker.now = NowMs(worker.now.0 + 1_000);
        worker.serve(prompt(request, 20 * BLOCK_SIZE_TOKENS.get(), (0, 0)), |_| 0, |_| 10);
        if request == 3_600 * 4 {
            after_an_hour = bytes(&store);
        }
    }
    let (full, after_a_day) = (after_an_hour as f64, bytes(&store) as f64);
    assert!((after_a_day / full - 1.0).abs() < 0.02, "{full} bytes, then {after_a_day}");
    assert!(worker.ledger.own().is_empty());
}

/// What must hold whatever the threads do: no update is lost, every load is given back, and every
/// prompt is known on each backend that it was sent to. Keys exist before: the store has no
/// put-if-absent, so the first write of a key may be lost to another's.
#[test]
fn four_workers_on_one_store_lose_nothing() {
    const SEEDS: u32 = 50;
    let text = |seed| prompt(seed, 40 * BLOCK_SIZE_TOKENS.get(), (0, 0));
    let (mut config, store) = (config(4, Some(4_000_000)), MemoryStore::default());
    // Few buckets: the threads meet.
    config.index_buckets = 64.try_into().unwrap();
    let mut workers: Vec<_> = (1..=4).map(|nonce| Worker::new(&config, &store, nonce)).collect();
    for worker in &mut workers {
        (0..SEEDS).for_each(|seed| drop(worker.serve(text(seed), |_| 0, |_| 10)));
    }
    let served = std::thread::scope(|scope| {
        let threads = workers.iter_mut().map(|worker| {
            scope.spawn(move || {
                let requests = (0..400).map(|request| request % SEEDS);
                let serve = |seed| (seed, worker.serve(text(seed), |_| 0, |_| 10).0.order[0]);
                requests.map(serve).collect::<Vec<(u32, BackendIndex)>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(served.len(), 1_600);
    assert_eq!(workers.iter().map(|worker| worker.lost_updates).sum::<u64>(), 0);
    let loads = Ledger::new(9).totals(&store, NowMs(1_000_000)).unwrap();
    assert!(loads.loads.values().all(|load| load.running == 0), "{loads:?}");
    for (seed, backend) in served {
        let path = workers[0].decide(text(seed)).prompt.path;
        let id = config.backends[backend.0].id;
        let is_held = |segment: &Segment| segment.holders.iter().any(|it| it.backend == id);
        assert_eq!(path.known_blocks, 40);
        assert!(path.segments.iter().all(is_held), "{seed} on {id}");
    }
}
