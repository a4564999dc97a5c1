//! Where prompts go in the end: what the score, the residency estimate and the tie rules do together,
//! over the in-memory store.

mod support {
    pub mod worker;
}

use warmpath_core::dispatch::Outcome;
use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::index::Path;
use warmpath_core::load::Ledger;
use warmpath_core::metrics::Reason;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Router};
use warmpath_core::score::Match;
use warmpath_core::store::MemoryStore;

use support::worker::{Worker, config, prompt};

fn distinct(picks: &[BackendIndex]) -> usize {
    let mut indices: Vec<usize> = picks.iter().map(|pick| pick.0).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.len()
}

#[test]
fn a_burst_of_identical_prompts_is_computed_by_two_backends_at_most() {
    let (config, store) = (config(8, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let picks: Vec<_> = (0..100).map(|_| worker.send(prompt(1, 3_000, (0, 0)))).collect();
    let backends: Vec<_> = picks.iter().map(|(pick, _)| pick.order[0]).collect();
    assert!(distinct(&backends) <= 2, "{backends:?}");
}

#[test]
fn different_prompts_at_once_use_all_backends() {
    let (config, store) = (config(8, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let sent: Vec<_> = (0..8).map(|seed| worker.send(prompt(seed, 3_000, (0, 0)))).collect();
    let backends: Vec<_> = sent.iter().map(|(pick, _)| pick.order[0]).collect();
    assert_eq!(distinct(&backends), 8);
}

#[test]
fn new_prefixes_go_where_fewer_blocks_were_allocated() {
    let (config, store) = (config(8, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut tokens = [0; 8];
    for seed in 0..400 {
        let length = rng.u32(500..6_000);
        let time_ms = u64::from(length) / 10;
        let (pick, _) = worker.serve(prompt(seed, length, (0, 0)), |_| 0, |_| time_ms);
        tokens[pick.order[0].0] += length;
    }
    let mean = tokens.iter().sum::<u32>() / 8;
    let balanced = |&tokens: &u32| tokens.abs_diff(mean) < mean / 10;
    assert!(tokens.iter().all(balanced), "{tokens:?}");
}

#[test]
fn a_cache_that_is_smaller_than_said_is_found_out() {
    // The engine keeps 20,000 tokens; the core is told ten times as much, or nothing, and then begins with
    // the first report that contradicts it.
    for (told, seen_at_first) in [(Some(200_000), 20), (None, 5)] {
        let (config, store) = (config(1, told), MemoryStore::default());
        let mut worker = Worker::new(&config, &store, 1);
        let (mut wrong_before, mut wrong_after) = (0, 0);
        for turn in 0..1_200u32 {
            // 16 documents of 2,000 tokens in turn: the last 10 are there, this one never is.
            let request = prompt(turn % 16, 2_000, (turn, 40));
            let (_, verdict) = worker.serve(request, |_| 0, |_| 10);
            let wrong = verdict.predicted_cached_tokens > 0;
            wrong_before += u32::from(wrong && turn < 200);
            wrong_after += u32::from(wrong && turn >= 1_000);
        }
        assert!(wrong_before > seen_at_first, "{told:?}: nothing was believed at first");
        assert_eq!(wrong_after, 0, "{told:?}: still believed");
    }
}

#[test]
fn a_pick_that_residency_changed_is_marked() {
    let (config, store) = (config(2, Some(140_000)), MemoryStore::default());
    let ledger = Ledger::new(1);
    let holder = config.backends[0].id;
    let mut elsewhere = 0;
    for seed in 0..40 {
        let router = Router {
            config: &config,
            models: &[None],
            store: &store,
            ledger: &ledger,
            reported: &NOTHING,
            explorer: None,
            now: NowMs(1),
            random: 1,
            turn: 1,
        };
        let place = |resident_blocks| {
            let found = Match {
                sent_blocks: 100,
                common_blocks: 100,
                held_blocks: 100,
                resident_blocks,
                predicted_blocks: resident_blocks,
                epochs: vec![(0, 100)],
            };
            let matches = [(holder, found)].into_iter().collect();
            match router.place(prompt(seed, 2_000, (0, 0)), Path::default(), &matches) {
                Decision::Pick(pick) => (pick.order[0], pick.downgraded),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(place(100.0), (BackendIndex(0), false));
        // All of it is gone: the prompt goes anywhere, and only elsewhere is it another pick.
        let (pick, downgraded) = place(0.0);
        assert_eq!(downgraded, pick != BackendIndex(0));
        elsewhere += u32::from(downgraded);
    }
    assert!((5..35).contains(&elsewhere), "{elsewhere}");
}

#[test]
fn a_slow_backend_gets_less() {
    let (config, store) = (config(2, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let slow = BackendIndex(0);
    for seed in 0..60 {
        let time_ms = |pick| if pick == slow { 900 } else { 300 };
        worker.serve(prompt(seed, 3_000, (0, 0)), |_| 0, time_ms);
    }
    // Both busy alike: the next ones go to the fast one until its queue is three times as long.
    let mut counts = [0; 2];
    let mut sent = Vec::new();
    for seed in 100..140 {
        let (pick, dispatched) = worker.send(prompt(seed, 2_000, (0, 0)));
        counts[pick.order[0].0] += 1;
        sent.push(dispatched);
    }
    assert!(counts[1] > 2 * counts[0] && counts[0] > 5, "{counts:?}");
}

#[test]
fn a_backend_that_keeps_failing_is_taken_to_have_lost_its_cache() {
    let (config, store) = (config(2, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let text = || prompt(1, 3_000, (0, 0));
    let holder = worker.serve(text(), |_| 0, |_| 10).0.order[0];
    let fail = |worker: &mut Worker<'_>| {
        let (pick, dispatched) = worker.send(text());
        worker.writer().finish(dispatched, Outcome::BackendFailed, None);
        pick
    };
    assert_eq!(fail(&mut worker).order[0], holder);
    for failures in 2..=3 {
        // The pause is over, and its cache is still believed in.
        worker.now = NowMs(worker.now.0 + 10_000);
        let pick = fail(&mut worker);
        assert_eq!((pick.order[0], pick.prompt.cached_tokens), (holder, 2_992), "{failures}");
    }
    worker.now = NowMs(worker.now.0 + 10_000);
    let pick = worker.decide(text());
    assert_eq!((pick.reason, pick.prompt.cached_tokens), (Reason::PrefixMiss, 0));
    // What it is sent from now on counts again.
    let back = worker.serve(text(), |_| 0, |_| 10).0.order[0];
    assert_eq!(worker.decide(text()).order[0], back);
    assert_eq!(worker.decide(text()).prompt.cached_tokens, 2_992);
}
