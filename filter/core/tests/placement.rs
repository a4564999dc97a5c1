//! Where prompts go in the end: what the score, the residency estimate and the tie rules do together,
//! over the in-memory store.

use std::num::NonZeroU32;

use warmpath_core::answer::Usage;
use warmpath_core::blocks::{self, Namespace};
use warmpath_core::config::Config;
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict, Writer};
use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::index::Path;
use warmpath_core::load::Ledger;
use warmpath_core::route::{Decision, Pick, Router, TokenizedPrompt};
use warmpath_core::score::Match;
use warmpath_core::store::MemoryStore;

const BLOCK_SIZE_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

struct Worker<'a> {
    config: &'a Config,
    store: &'a MemoryStore,
    ledger: Ledger,
    turn: u64,
    now: NowMs,
}

impl<'a> Worker<'a> {
    fn new(config: &'a Config, store: &'a MemoryStore) -> Self {
        Self { config, store, ledger: Ledger::new(1), turn: 0, now: NowMs(1_000_000) }
    }

    fn decide(&mut self, prompt: TokenizedPrompt) -> Pick {
        self.turn += 1;
        let router = Router {
            config: self.config,
            models: &[None],
            store: self.store,
            ledger: &self.ledger,
            now: self.now,
            random: self.turn,
            turn: self.turn,
        };
        match router.route_tokenized(prompt) {
            Decision::Pick(pick) => pick,
            Decision::Fallback(fallback) => panic!("{fallback:?}"),
        }
    }

    fn writer(&mut self) -> Writer<'_, MemoryStore> {
        Writer { config: self.config, store: self.store, ledger: &mut self.ledger, now: self.now }
    }

    fn send(&mut self, prompt: TokenizedPrompt) -> (Pick, Dispatched) {
        let pick = self.decide(prompt);
        let (dispatched, _) = self.writer().dispatch(Decision::Pick(pick.clone()));
        (pick, dispatched)
    }

    /// A whole request, answered after `time_ms` with this many cached tokens.
    fn serve(
        &mut self,
        prompt: TokenizedPrompt,
        cached_tokens: impl FnOnce(&Pick) -> u32,
        time_ms: impl FnOnce(BackendIndex) -> u64,
    ) -> (Pick, Verdict) {
        let prompt_tokens = prompt.prompt_tokens as u32;
        let (pick, mut dispatched) = self.send(prompt);
        let cached_tokens = Some(cached_tokens(&pick));
        self.now = NowMs(self.now.0 + time_ms(pick.order[0]));
        self.writer().served(&mut dispatched, pick.order[0]);
        self.writer().first_byte(&mut dispatched);
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: 1 };
        let verdict = self.writer().finish(dispatched, Outcome::Answered, Some(usage)).1;
        (pick, verdict.unwrap())
    }
}

fn config(backends: usize, kv_capacity_tokens: Option<u32>) -> Config {
    let list: Vec<_> = (0..backends)
        .map(|index| serde_json::json!({"name": format!("e{index}"), "cluster": "c"}))
        .collect();
    let json = serde_json::json!({
        "kv_capacity_tokens": kv_capacity_tokens,
        "backends": list,
        "models": [{"name": "m", "bundle": {"cluster": "c", "path": "/m"}}],
    });
    Config::parse(json.to_string().as_bytes()).unwrap()
}

/// `shared` tokens of text `seed`, then `own` tokens that are this prompt's alone.
fn prompt(seed: u32, shared: u32, own: (u32, u32)) -> TokenizedPrompt {
    let (own_seed, own_tokens) = own;
    let tokens: Vec<u32> = (0..shared)
        .map(|at| seed * 100_000 + at)
        .chain((0..own_tokens).map(|at| u32::MAX - own_seed * 10_000 - at))
        .collect();
    let namespace = Namespace { model: "m", adapter: "", cache_salt: "" };
    TokenizedPrompt {
        model_index: 0,
        prompt_tokens: tokens.len(),
        hashes: blocks::block_hashes(namespace.seed(), &tokens, &[], BLOCK_SIZE_TOKENS),
        output_tokens_max: Some(100),
        session: None,
    }
}

fn distinct(picks: &[BackendIndex]) -> usize {
    let mut indices: Vec<usize> = picks.iter().map(|pick| pick.0).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.len()
}

#[test]
fn a_burst_of_identical_prompts_is_computed_by_two_backends_at_most() {
    let (config, store) = (config(8, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store);
    let picks: Vec<_> = (0..100).map(|_| worker.send(prompt(1, 3_000, (0, 0)))).collect();
    let backends: Vec<_> = picks.iter().map(|(pick, _)| pick.order[0]).collect();
    assert!(distinct(&backends) <= 2, "{backends:?}");
}

#[test]
fn different_prompts_at_once_use_all_backends() {
    let (config, store) = (config(8, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store);
    let sent: Vec<_> = (0..8).map(|seed| worker.send(prompt(seed, 3_000, (0, 0)))).collect();
    let backends: Vec<_> = sent.iter().map(|(pick, _)| pick.order[0]).collect();
    assert_eq!(distinct(&backends), 8);
}

#[test]
fn new_prefixes_go_where_fewer_blocks_were_allocated() {
    let (config, store) = (config(8, Some(140_000)), MemoryStore::default());
    let mut worker = Worker::new(&config, &store);
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
    // The engine keeps 20,000 tokens; the core is told ten times as much, or nothing.
    for told in [Some(200_000), None] {
        let (config, store) = (config(1, told), MemoryStore::default());
        let mut worker = Worker::new(&config, &store);
        let (mut wrong_before, mut wrong_after) = (0, 0);
        for turn in 0..1_200u32 {
            // 16 documents of 2,000 tokens in turn: the last 10 are there, this one never is.
            let request = prompt(turn % 16, 2_000, (turn, 40));
            let (_, verdict) = worker.serve(request, |_| 0, |_| 10);
            let wrong = verdict.predicted_cached_tokens > 0;
            wrong_before += u32::from(wrong && turn < 200);
            wrong_after += u32::from(wrong && turn >= 1_000);
        }
        assert!(wrong_before > 20, "{told:?}: nothing was believed at first");
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
            now: NowMs(1),
            random: 1,
            turn: 1,
        };
        let place = |resident_blocks| {
            let found = Match {
                sent_blocks: 100,
                held_blocks: 100,
                resident_blocks,
                epochs: vec![(0, 100)],
            };
            let matches = [(holder, found)].into_iter().collect();
            match router.place(prompt(seed, 2_000, (0, 0)), Path::default(), &matches) {
                Decision::Pick(pick) => (pick.order[0], pick.downgraded),
                Decision::Fallback(fallback) => panic!("{fallback:?}"),
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
    let mut worker = Worker::new(&config, &store);
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
