//! The read path and the write path together, over the in-memory store, with token ids as prompts.

use std::fmt::Write as _;

use warmpath_core::answer::Usage;
use warmpath_core::config::Config;
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict, Writer, Written};
use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::load::Ledger;
use warmpath_core::metrics::Reason;
use warmpath_core::reported::NOTHING;
use warmpath_core::residency;
use warmpath_core::route::{Decision, Refusal, Router};
use warmpath_core::store::MemoryStore;

/// One worker: its ledger, and the store it shares.
struct Worker<'a> {
    config: &'a Config,
    store: &'a MemoryStore,
    ledger: Ledger,
    turn: u64,
    now: NowMs,
}

impl<'a> Worker<'a> {
    fn new(config: &'a Config, store: &'a MemoryStore, nonce: u64) -> Self {
        Self { config, store, ledger: Ledger::new(nonce), turn: 0, now: NowMs(1_000_000) }
    }

    fn route(&mut self, path: &str, body: &str) -> Decision {
        self.turn += 1;
        let router = Router {
            config: self.config,
            models: &[None],
            store: self.store,
            ledger: &self.ledger,
            reported: &NOTHING,
            explorer: None,
            now: self.now,
            random: self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            turn: self.turn,
        };
        router.route(path, body.as_bytes())
    }

    fn writer(&mut self) -> Writer<'_, MemoryStore> {
        Writer { config: self.config, store: self.store, ledger: &mut self.ledger, now: self.now }
    }

    /// Routes and dispatches; returns where, why and the request in flight.
    fn send(&mut self, tokens: &[u32]) -> (BackendIndex, Reason, Dispatched, Written) {
        let decision = self.route("/v1/completions", &body(tokens));
        let (pick, reason) = (decision.order()[0], decision.reason());
        let (dispatched, written) = self.writer().dispatch(decision);
        (pick, reason, dispatched, written)
    }

    /// The answer comes from `backend`, at Envoy's second attempt.
    fn served(&mut self, dispatched: &mut Dispatched, backend: BackendIndex) {
        let backend = self.config.backend(backend).unwrap();
        self.writer().served(dispatched, backend, 2);
    }

    fn finish(&mut self, dispatched: Dispatched, outcome: Outcome) -> Option<Verdict> {
        let usage = Usage { prompt_tokens: 1, cached_tokens: Some(0), completion_tokens: 10 };
        let (_, verdict) = self.writer().finish(dispatched, outcome, Some(usage));
        self.writer().settle();
        verdict
    }

    /// A whole request that its pick answers.
    fn serve(&mut self, tokens: &[u32]) -> (BackendIndex, Reason) {
        let (pick, reason, mut dispatched, _) = self.send(tokens);
        self.served(&mut dispatched, pick);
        self.answer(dispatched);
        (pick, reason)
    }

    /// A good answer, which says that nothing was cached.
    fn answer(&mut self, mut dispatched: Dispatched) {
        self.writer().first_byte(&mut dispatched, true);
        self.finish(dispatched, Outcome::Answered);
    }

    fn running(&self) -> u32 {
        let totals = self.ledger.totals(self.store, self.now).unwrap();
        totals.loads.values().map(|load| load.running).sum()
    }
}

fn body(tokens: &[u32]) -> String {
    format!(r#"{{"model":"m","prompt":{tokens:?}}}"#)
}

fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|token| seed * 100_000 + token).collect()
}

fn config(policy: &str, backends: usize, capacity_tokens: u32) -> Config {
    let mut list = String::new();
    for index in 0..backends {
        let comma = if index == 0 { "" } else { "," };
        write!(list, r#"{comma}{{"name":"e{index}","cluster":"e{index}"}}"#).unwrap();
    }
    let json = format!(
        r#"{{"policy":"{policy}","kv_capacity_tokens":{capacity_tokens},"backends":[{list}],
        "models":[{{"name":"m","bundle":{{"cluster":"c","path":"/m"}}}}]}}"#
    );
    Config::parse(json.as_bytes()).unwrap()
}

#[test]
fn a_repeated_prefix_returns_and_a_follow_up_turn_goes_along() {
    let (config, store) = (config("kv_cost", 8, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    for seed in 0..50 {
        let (first, reason) = worker.serve(&prompt(seed, 1_000));
        assert_eq!(reason, Reason::PrefixMiss);
        assert_eq!(worker.serve(&prompt(seed, 1_000)), (first, Reason::PrefixHit));
        assert_eq!(worker.serve(&prompt(seed, 1_500)), (first, Reason::PrefixHit));
    }
    assert_eq!(worker.running(), 0);
}

#[test]
fn cold_prompts_spread_over_all_backends() {
    let (config, store) = (config("kv_cost", 8, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let mut counts = [0; 8];
    for seed in 0..400 {
        counts[worker.serve(&prompt(seed, 100)).0.0] += 1;
    }
    assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
}

#[test]
fn siblings_see_the_first_requests_blocks_before_its_answer() {
    let (config, store) = (config("kv_cost", 8, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let burst = prompt(1, 4_000);
    assert_eq!(worker.send(&burst).1, Reason::PrefixMiss);
    for _ in 0..20 {
        assert_ne!(worker.send(&burst).1, Reason::PrefixMiss);
    }
}

#[test]
fn a_loaded_holder_is_left_for_an_idle_stranger() {
    let (config, store) = (config("kv_cost", 2, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let hot = prompt(1, 2_000);
    let (holder, _) = worker.serve(&hot);
    let mut reasons = Vec::new();
    for _ in 0..40 {
        let (pick, reason, mut dispatched, _) = worker.send(&hot);
        worker.writer().first_byte(&mut dispatched, true);
        reasons.push((pick == holder, reason));
    }
    assert_eq!(reasons[0], (true, Reason::PrefixHit));
    assert!(reasons.contains(&(false, Reason::LoadOverPrefix)));
    // The stranger is a holder from then on.
    assert!(reasons.contains(&(false, Reason::PrefixHit)));
}

#[test]
fn workers_share_one_tree_and_one_load() {
    let (config, store) = (config("kv_cost", 8, 100_000), MemoryStore::default());
    let (mut a, mut b) = (Worker::new(&config, &store, 1), Worker::new(&config, &store, 2));
    for seed in 0..20 {
        let (first, _) = a.serve(&prompt(seed, 500));
        assert_eq!(b.serve(&prompt(seed, 500)), (first, Reason::PrefixHit));
    }
    let (_, _, in_flight, _) = a.send(&prompt(99, 500));
    assert_eq!(b.running(), 1);
    a.finish(in_flight, Outcome::ClientLeft);
    assert_eq!(b.running(), 0);
}

#[test]
fn a_failed_backend_is_passed_over_and_not_learnt_from() {
    let (config, store) = (config("kv_cost", 4, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let tokens = prompt(1, 800);
    let (dead, _, dispatched, _) = worker.send(&tokens);
    worker.finish(dispatched, Outcome::BackendFailed);
    for _ in 0..8 {
        let (pick, reason) = worker.serve(&tokens);
        assert_ne!(pick, dead);
        assert_ne!(reason, Reason::LoadOverPrefix, "the dead backend still counts as a holder");
    }
    worker.now = NowMs(worker.now.0 + 60_000);
    let tried = (10..60).any(|seed| worker.serve(&prompt(seed, 100)).0 == dead);
    assert!(tried, "a backend is tried again when its time is over");
}

#[test]
fn who_served_gets_the_credit() {
    let (config, store) = (config("kv_cost", 4, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let tokens = prompt(1, 800);
    let (pick, _, mut dispatched, _) = worker.send(&tokens);
    let other = BackendIndex((pick.0 + 1) % 4);
    worker.served(&mut dispatched, other);
    assert_eq!(worker.finish(dispatched, Outcome::Answered), None, "nothing to judge");
    assert_eq!(worker.serve(&tokens), (other, Reason::PrefixHit));
}

#[test]
fn refused_and_abandoned_prefills_are_taken_back() {
    let (config, store) = (config("kv_cost", 4, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    for (seed, outcome) in [(1, Outcome::Refused), (2, Outcome::ClientLeft)] {
        let (.., dispatched, _) = worker.send(&prompt(seed, 800));
        worker.finish(dispatched, outcome);
        assert_eq!(worker.send(&prompt(seed, 800)).1, Reason::PrefixMiss);
    }
    let (pick, _, mut dispatched, _) = worker.send(&prompt(3, 800));
    worker.served(&mut dispatched, pick);
    worker.writer().first_byte(&mut dispatched, true);
    worker.finish(dispatched, Outcome::ClientLeft);
    assert_eq!(worker.send(&prompt(3, 800)).1, Reason::PrefixHit, "its prefill was done");
}

#[test]
fn an_evicted_prefix_is_no_longer_a_reason() {
    let (config, store) = (config("kv_cost", 1, 10_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    worker.serve(&prompt(1, 1_000));
    for seed in 2..30 {
        worker.serve(&prompt(seed, 1_000));
    }
    assert_eq!(worker.serve(&prompt(1, 1_000)).1, Reason::PrefixMiss);
    assert_eq!(worker.serve(&prompt(29, 1_000)).1, Reason::PrefixHit);
}

#[test]
fn the_prediction_is_in_whole_blocks_and_leaves_one_token() {
    let (config, store) = (config("kv_cost", 1, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    worker.serve(&prompt(1, 160));
    for (tokens, cached) in [(160, 144), (161, 160), (170, 160), (400, 160), (15, 0)] {
        let (pick, _, mut dispatched, _) = worker.send(&prompt(1, tokens));
        worker.served(&mut dispatched, pick);
        let verdict = worker.finish(dispatched, Outcome::Answered).unwrap();
        assert_eq!(verdict.prompt_tokens, tokens);
        assert_eq!(verdict.predicted_cached_tokens, cached, "{tokens}");
        if tokens == 400 {
            break;
        }
    }
}

#[test]
fn what_is_not_read_goes_by_load_under_its_name() {
    let (mut config, store) = (config("kv_cost", 3, 100_000), MemoryStore::default());
    config.body_bytes_max = 200;
    let long = body(&prompt(1, 100));
    let mut worker = Worker::new(&config, &store, 1);
    for (path, body, reason) in [
        ("/v1/models", "", Reason::OtherPath),
        ("/v1/completions", &long, Reason::BodyTooLarge),
        ("/v1/completions", "", Reason::EmptyBody),
        ("/v1/completions", "{", Reason::NotJson),
        ("/v1/completions", "[]", Reason::WrongShape),
        ("/v1/completions", r#"{"model":"x","prompt":"a"}"#, Reason::UnknownModel),
        ("/v1/completions", r#"{"model":"m","prompt":"a"}"#, Reason::NoTokenizer),
        ("/v1/chat/completions", r#"{"messages":[]}"#, Reason::NoTokenizer),
        ("/v1/chat/completions", r#"{"messages":[],"chat_template":""}"#, Reason::OwnTemplate),
    ] {
        let decision = worker.route(path, body);
        assert_eq!(decision.reason(), reason, "{body}");
        assert_eq!(decision.order().len(), 3);
    }
    // Load-only picks count as load too.
    let decision = worker.route("/v1/models", "");
    let busy = decision.order()[0];
    let (_in_flight, _) = worker.writer().dispatch(decision);
    for _ in 0..10 {
        assert_ne!(worker.route("/v1/models", "").order()[0], busy);
    }
}

#[test]
fn with_every_backend_down_requests_are_refused_until_the_next_trial() {
    let (config, store) = (config("kv_cost", 2, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    // One failure each leaves both in doubt, and better than nobody.
    for _ in 0..4 {
        let (_, _, dispatched, _) = worker.send(&prompt(1, 100));
        worker.finish(dispatched, Outcome::BackendFailed);
    }
    for (path, body) in [("/v1/completions", body(&prompt(1, 100))), ("/x", String::new())] {
        let decision = worker.route(path, &body);
        let expected = Refusal { reason: Reason::AllDown, retry_after_s: 2 };
        assert_eq!(decision, Decision::Refusal(expected));
    }
    worker.now = NowMs(worker.now.0 + 2_000);
    let (_, reason, trial, _) = worker.send(&prompt(1, 100));
    assert_eq!((reason, trial.is_awaited()), (Reason::PrefixMiss, true));
    worker.finish(trial, Outcome::Answered);
    let (_, _, next, _) = worker.send(&prompt(1, 100));
    assert!(!next.is_awaited());
}

#[test]
fn a_refused_prompt_of_any_length_costs_no_one_their_cache() {
    let (config, store) = (config("kv_cost", 1, 10_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    worker.serve(&prompt(1, 1_000));
    for outcome in [Outcome::Refused, Outcome::Shed, Outcome::NotSent, Outcome::ClientLeft] {
        for seed in 2..6 {
            let (.., mut dispatched, _) = worker.send(&prompt(seed, 60_000));
            if outcome != Outcome::ClientLeft {
                // Error answers have bodies too.
                worker.writer().first_byte(&mut dispatched, false);
            }
            worker.finish(dispatched, outcome);
        }
        worker.now = NowMs(worker.now.0 + 5_000);
        assert_eq!(worker.serve(&prompt(1, 1_000)).1, Reason::PrefixHit, "{outcome:?}");
    }
}

#[test]
fn what_a_stranger_answered_teaches_nothing() {
    let (config, store) = (config("kv_cost", 2, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let (.., mut dispatched, _) = worker.send(&prompt(1, 800));
    worker.writer().served_by_stranger(&mut dispatched, 1);
    assert_eq!(worker.running(), 0);
    worker.finish(dispatched, Outcome::BackendFailed);
    assert_eq!(worker.send(&prompt(1, 800)).1, Reason::PrefixMiss);
}

#[test]
fn a_trial_that_a_stranger_answered_is_another_requests() {
    let (config, store) = (config("kv_cost", 1, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    for _ in 0..2 {
        let (.., dispatched, _) = worker.send(&prompt(1, 800));
        worker.finish(dispatched, Outcome::BackendFailed);
    }
    worker.now = NowMs(worker.now.0 + 10_000);
    let is_refused = |worker: &mut Worker<'_>| {
        matches!(worker.route("/v1/completions", &body(&prompt(1, 800))), Decision::Refusal(_))
    };
    for attempts in [1, 2] {
        assert!(!is_refused(&mut worker));
        let (.., mut dispatched, _) = worker.send(&prompt(1, 800));
        assert!(is_refused(&mut worker), "one trial at a time");
        worker.writer().served_by_stranger(&mut dispatched, attempts);
        worker.finish(dispatched, Outcome::Answered);
    }
    assert!(is_refused(&mut worker), "Envoy tried it before it went to the stranger");
}

#[test]
fn a_full_backend_is_passed_over_and_not_taken_for_dead() {
    let (config, store) = (config("kv_cost", 2, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let (holder, _) = worker.serve(&prompt(1, 800));
    let (pick, _, dispatched, _) = worker.send(&prompt(1, 800));
    assert_eq!(pick, holder);
    worker.finish(dispatched, Outcome::Shed);
    assert_ne!(worker.send(&prompt(1, 800)).0, holder);
    for _ in 0..9 {
        let (_, _, dispatched, _) = worker.send(&prompt(1, 800));
        worker.finish(dispatched, Outcome::Shed);
    }
    assert_eq!(
        worker.send(&prompt(2, 100)).1,
        Reason::PrefixMiss,
        "full ones are better than none"
    );
}

#[test]
fn the_other_policies_walk_the_same_path() {
    for policy in ["round_robin", "random", "least_request", "consistent_hash"] {
        let (config, store) = (config(policy, 4, 100_000), MemoryStore::default());
        let mut worker = Worker::new(&config, &store, 1);
        let picks: Vec<BackendIndex> = (0..40)
            .map(|_| {
                let (pick, reason) = worker.serve(&prompt(1, 800));
                assert_eq!(reason, Reason::Policy);
                pick
            })
            .collect();
        let distinct = (0..4).filter(|index| picks.contains(&BackendIndex(*index))).count();
        assert_eq!(distinct, if policy == "consistent_hash" { 1 } else { 4 }, "{policy}");
        if policy == "round_robin" {
            assert!(picks.windows(2).all(|pair| (pair[0].0 + 1) % 4 == pair[1].0));
        }
    }
}

#[test]
fn a_sum_or_another_samples_hit_says_nothing_of_the_prompt_that_was_read() {
    let (config, store) = (config("kv_cost", 1, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let backend = config.backends[0].id;
    let capacity_blocks = 100_000 / 16;
    let mut others = 9..;
    let mut reach_after = |body: &str| {
        let another = self::body(&prompt(others.next().unwrap(), 16_000));
        let mut ask = |body: &str| {
            let decision = worker.route("/v1/completions", body);
            let (dispatched, _) = worker.writer().dispatch(decision);
            worker.answer(dispatched);
        };
        // Far enough apart that the first is no twin under way.
        ask(body);
        ask(&another);
        ask(body);
        residency::load(&store, backend, capacity_blocks).unwrap().reach_blocks()
    };
    let (one, other) = (prompt(1, 1_000), prompt(2, 1_000));
    let batch = format!(r#"{{"model":"m","prompt":[{one:?},{other:?}]}}"#);
    assert_eq!(reach_after(&batch), capacity_blocks);
    let samples = format!(r#"{{"model":"m","prompt":{:?},"n":2}}"#, prompt(3, 1_000));
    assert_eq!(reach_after(&samples), capacity_blocks);
    assert!(reach_after(&body(&one)) < capacity_blocks);
}

#[test]
fn refused_prompts_beside_others_age_no_cache() {
    let (config, store) = (config("kv_cost", 1, 100_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    worker.serve(&prompt(1, 2_000));
    for seed in 2..12 {
        let (.., dispatched, _) = worker.send(&prompt(seed, 40_000));
        worker.serve(&prompt(1_000 + seed, 160));
        worker.finish(dispatched, Outcome::Refused);
    }
    assert_eq!(worker.serve(&prompt(1, 2_000)).1, Reason::PrefixHit);
}

#[test]
fn a_refused_prompt_longer_than_the_cache_brings_nothing_back() {
    let (config, store) = (config("kv_cost", 1, 10_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    for seed in 1..30 {
        worker.serve(&prompt(seed, 1_000));
    }
    let (.., dispatched, _) = worker.send(&prompt(99, 60_000));
    worker.finish(dispatched, Outcome::Refused);
    assert_eq!(worker.send(&prompt(1, 1_000)).1, Reason::PrefixMiss);
}

#[test]
fn twins_that_are_computed_side_by_side_say_nothing_of_the_cache() {
    for capacity in [100_000, 0] {
        let mut config = config("kv_cost", 1, 100_000);
        if capacity == 0 {
            config = Config::parse(
                br#"{"backends":[{"name":"e0","cluster":"e0"}],
                    "models":[{"name":"m","bundle":{"cluster":"c","path":"/m"}}]}"#,
            )
            .unwrap();
        }
        let store = MemoryStore::default();
        let mut worker = Worker::new(&config, &store, 1);
        let backend = config.backends[0].id;
        for seed in 1..=20 {
            worker.serve(&prompt(seed, 2_000));
        }
        for seed in 100..200 {
            let twins = [(); 2].map(|()| worker.send(&prompt(seed, 500)).2);
            twins.into_iter().for_each(|twin| worker.answer(twin));
        }
        let clock = residency::load(&store, backend, capacity / 16).unwrap();
        assert_eq!(clock.reach_blocks(), capacity / 16);
    }
}

#[test]
fn a_request_that_fails_leaves_its_siblings_their_prefix() {
    for outcome in [Outcome::ClientLeft, Outcome::Shed, Outcome::Refused, Outcome::NotSent] {
        let (config, store) = (config("kv_cost", 1, 100_000), MemoryStore::default());
        let mut worker = Worker::new(&config, &store, 1);
        let (.., first, _) = worker.send(&prompt(1, 3_200));
        let (.., sibling, _) = worker.send(&prompt(1, 3_200));
        worker.answer(sibling);
        let (.., longer, _) = worker.send(&prompt(1, 6_400));
        worker.finish(first, outcome);
        worker.finish(longer, outcome);
        worker.now = NowMs(worker.now.0 + 60_000);
        let Decision::Pick(pick) = worker.route("/v1/completions", &body(&prompt(1, 6_400))) else {
            panic!("{outcome:?}")
        };
        assert_eq!(
            (pick.reason, pick.prompt.cached_tokens),
            (Reason::PrefixHit, 3_200),
            "{outcome:?}"
        );
    }
}

#[test]
fn reports_of_a_former_life_teach_the_new_one_nothing() {
    let (config, store) = (config("kv_cost", 1, 400_000), MemoryStore::default());
    let mut worker = Worker::new(&config, &store, 1);
    let backend = config.backends[0].id;
    for seed in 1..=40 {
        worker.serve(&prompt(seed, 1_600));
    }
    let flying: Vec<_> = (1..=9).map(|seed| worker.send(&prompt(seed, 1_600)).2).collect();
    residency::change(&store, backend, 0, residency::Clock::restart).unwrap();
    worker.serve(&prompt(777, 1_600));
    flying.into_iter().for_each(|dispatched| worker.answer(dispatched));
    assert_eq!(worker.send(&prompt(777, 1_600)).1, Reason::PrefixHit);
    assert_eq!(residency::load(&store, backend, 0).unwrap().generation, 1);
}
