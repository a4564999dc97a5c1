//! Backends that come, go and are known by what they say: the read path over a live configuration.

use std::num::NonZeroU32;

use warmpath_core::answer::Usage;
use warmpath_core::config::Config;
use warmpath_core::dispatch::{Dispatched, Outcome, Writer};
use warmpath_core::endpoints::{self, observed_backend};
use warmpath_core::explain::Explanation;
use warmpath_core::explore::Explorer;
use warmpath_core::health;
use warmpath_core::ids::{BackendId, NowMs};
use warmpath_core::live::Live;
use warmpath_core::load::{BackendLoad, Ledger};
use warmpath_core::metrics::Reason;
use warmpath_core::reported;
use warmpath_core::route::{Decision, Router};
use warmpath_core::signals::{EngineReport, LoadReport};
use warmpath_core::standing::Rank;
use warmpath_core::store::MemoryStore;

const PATH: &str = "/v1/completions";

fn config(json: &str) -> Config {
    Config::parse(json.as_bytes()).unwrap()
}

/// Four backends, of which one serves another model.
fn four() -> Config {
    config(
        r#"{"name":"n","push":true,"kv_capacity_tokens":100000,"backends":[
            {"name":"a","cluster":"a","models":["m"]},{"name":"b","cluster":"b","models":["m"]},
            {"name":"c","cluster":"c","models":["m","x"],"draining":true},
            {"name":"d","cluster":"d","models":["x"]}],
        "models":[{"name":"m","bundle":{"cluster":"c","path":"/m"}},
                  {"name":"x","bundle":{"cluster":"c","path":"/x"}}]}"#,
    )
}

struct Vm<'a> {
    configured: Config,
    live: Live,
    store: &'a MemoryStore,
    ledger: Ledger,
    explorer: Explorer,
    now: NowMs,
}

impl<'a> Vm<'a> {
    fn new(configured: Config, store: &'a MemoryStore, nonce: u64) -> Self {
        let live = Live::configured(&configured);
        let (ledger, now) = (Ledger::new(nonce), NowMs(1_000_000));
        Self { configured, live, store, ledger, explorer: Explorer::default(), now }
    }

    fn refresh(&mut self) {
        self.live = self.live.refresh(self.store, &self.configured).unwrap();
    }

    fn router(&self) -> Router<'_, MemoryStore> {
        Router {
            config: &self.live.config,
            models: &[None, None],
            store: self.store,
            ledger: &self.ledger,
            reported: &self.live.reported,
            explorer: self.live.config.observe.then_some(&self.explorer),
            now: self.now,
            random: 1,
            turn: 1,
        }
    }

    fn writer(&mut self) -> Writer<'_, MemoryStore> {
        let (config, store) = (&*self.live.config, self.store);
        Writer { config, store, ledger: &mut self.ledger, now: self.now }
    }

    fn push(&mut self, body: &str) {
        let backends = self.configured.parse_push(body.as_bytes(), self.now).unwrap();
        endpoints::push(self.store, &self.configured, &backends).unwrap();
        self.refresh();
    }

    fn explain(&self, body: &str) -> Explanation {
        self.router().explain(PATH, body.as_bytes(), None)
    }

    fn send(&mut self, body: &str) -> (Option<String>, Reason, Dispatched) {
        let decision = self.router().route(PATH, body.as_bytes());
        let reason = decision.reason();
        let (dispatched, _) = self.writer().dispatch(decision);
        let picked = dispatched.picked().map(|backend| backend.name.clone());
        (picked, reason, dispatched)
    }

    /// A whole request; who served it.
    fn serve(&mut self, body: &str) -> Option<String> {
        let (picked, _, mut dispatched) = self.send(body);
        let usage = Usage { prompt_tokens: 1, cached_tokens: None, completion_tokens: 1 };
        self.writer().first_byte(&mut dispatched, true);
        self.writer().finish(dispatched, Outcome::Answered, Some(usage));
        self.writer().settle();
        picked
    }
}

fn body(model: &str, seed: u32, tokens: u32) -> String {
    let tokens: Vec<u32> = (0..tokens).map(|token| seed * 10_000 + token).collect();
    format!(r#"{{"model":"{model}","prompt":{tokens:?}}}"#)
}

fn report(name: &str, waiting: u32, running: u32) -> (BackendId, EngineReport) {
    let report = EngineReport {
        waiting: Some(waiting),
        running: Some(running),
        kv_usage: Some(0.0),
        block_size_tokens: NonZeroU32::new(16),
        kv_blocks: NonZeroU32::new(5_000),
        ..EngineReport::default()
    };
    (BackendId::from_name(name), report)
}

#[test]
fn a_model_goes_to_its_backends_and_a_draining_one_takes_nothing_new() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(four(), &store, 1);
    for seed in 0..30 {
        let served = vm.serve(&body("m", seed, 300)).unwrap();
        assert!(["a", "b"].contains(&served.as_str()), "{served}");
        assert_eq!(vm.serve(&body("x", seed, 300)).as_deref(), Some("d"));
    }
}

#[test]
fn a_draining_backend_still_serves_what_it_holds_until_its_time_is_over() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(four(), &store, 1);
    vm.push(r#"{"backends":[{"name":"p","address":"10.0.0.1:1"}]}"#);
    let held: Vec<u32> =
        (0..40).filter(|seed| vm.serve(&body("m", *seed, 300)).as_deref() == Some("p")).collect();
    assert!(held.len() > 3, "{held:?}");
    vm.push(r#"{"backends":[{"name":"p","address":"10.0.0.1:1","draining":true,"drain_s":30}]}"#);
    assert_eq!(vm.serve(&body("m", held[0], 300)).as_deref(), Some("p"));
    for seed in 100..130 {
        assert_ne!(vm.serve(&body("m", seed, 300)).as_deref(), Some("p"));
    }
    vm.now = NowMs(vm.now.0 + 30_000);
    assert_ne!(vm.serve(&body("m", held[0], 300)).as_deref(), Some("p"));
}

#[test]
fn a_draining_backend_serves_in_the_place_of_a_holder_that_is_down() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(four(), &store, 1);
    vm.push(r#"{"backends":[{"name":"p","address":"10.0.0.1:1"}]}"#);
    let held = (0..40).map(|seed| body("m", seed, 300));
    let held = held.into_iter().find(|body| vm.serve(body).as_deref() == Some("p")).unwrap();
    // For a moment it goes elsewhere, and is there too from then on.
    health::failed(&store, vm.now, BackendId::from_name("p")).unwrap();
    let other = vm.serve(&held).unwrap();
    health::succeeded(&store, vm.now, BackendId::from_name("p")).unwrap();
    vm.push(r#"{"backends":[{"name":"p","address":"10.0.0.1:1","draining":true}]}"#);
    assert_eq!(vm.serve(&held), Some(other.clone()));
    for _ in 0..2 {
        health::failed(&store, vm.now, BackendId::from_name(&other)).unwrap();
    }
    assert_eq!(vm.serve(&held).as_deref(), Some("p"));
}

#[test]
fn engines_of_one_server_fail_and_come_back_together() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(four(), &store, 1);
    vm.push(
        r#"{"backends":[{"name":"p","address":"10.0.0.1:1","data_parallel_size":2},
        {"name":"q","address":"10.0.0.2:1","data_parallel_size":2}]}"#,
    );
    let ranks = |vm: &Vm<'_>| -> Vec<_> {
        let explained = vm.explain(&body("x", 0, 300)).backends;
        let mut ranks: Vec<_> = explained.into_iter().map(|it| (it.name, it.rank)).collect();
        ranks.retain(|(name, _)| name.contains('/'));
        ranks.sort();
        ranks
    };
    let (mut seed, good) = (0, ranks(&vm));
    assert!(good.iter().all(|(_, rank)| *rank == Rank::Good), "{good:?}");
    let (failed, dispatched) = loop {
        let (picked, _, dispatched) = vm.send(&body("x", seed, 300));
        match picked.filter(|name| name.starts_with("p/")) {
            Some(name) => break (name, dispatched),
            None => vm.writer().finish(dispatched, Outcome::NotSent, None),
        };
        seed += 1;
    };
    vm.writer().finish(dispatched, Outcome::BackendFailed, None);
    let doubtful = ranks(&vm);
    let of_p = |(name, rank): &(String, Rank)| name.starts_with("p/") == (*rank == Rank::Doubtful);
    assert!(doubtful.iter().all(of_p), "{failed}: {doubtful:?}");
    // The next trial's answer is for both.
    vm.now = NowMs(vm.now.0 + 1_000);
    let (picked, _, dispatched) = vm.send(&body("x", seed, 300));
    assert_eq!(picked.as_deref(), Some(failed.as_str()));
    let usage = Usage { prompt_tokens: 300, cached_tokens: Some(0), completion_tokens: 1 };
    vm.writer().finish(dispatched, Outcome::Answered, Some(usage));
    assert_eq!(ranks(&vm), good);
}

#[test]
fn an_explanation_is_what_the_next_request_does() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(four(), &store, 1);
    let mut running = Vec::new();
    for step in 0..60u32 {
        let body = body("m", step % 7, 200 + step * 20);
        let explained = vm.explain(&body);
        assert_eq!(vm.explain(&body), explained, "a dry run leaves no trace");
        let decision = vm.router().route(PATH, body.as_bytes());
        let Decision::Pick(pick) = &decision else { panic!("{decision:?}") };
        assert_eq!(explained.reason, pick.reason.label());
        assert_eq!(explained.predicted_cached_tokens, pick.prompt.cached_tokens);
        let prompt = explained.prompt.unwrap();
        assert_eq!(
            (prompt.tokens, prompt.blocks),
            (pick.prompt.prompt_tokens, pick.prompt.hashes.len())
        );
        let order: Vec<_> = pick
            .order
            .iter()
            .map(|index| vm.live.config.backend(*index).unwrap().name.clone())
            .collect();
        let explained_order: Vec<_> =
            explained.backends.iter().filter(|it| it.place.is_some()).map(|it| &it.name).collect();
        assert_eq!(explained_order, order.iter().collect::<Vec<_>>());
        let least = explained.backends.iter().filter(|it| it.place.is_some());
        let least = least.map(|it| it.cost.total).fold(f64::INFINITY, f64::min);
        assert!(explained.backends[0].ties && explained.backends[0].cost.total <= least + 16.0);
        let (dispatched, _) = vm.writer().dispatch(decision);
        running.push(dispatched);
        if step % 3 == 0 {
            vm.writer().finish(running.remove(0), Outcome::Refused, None);
        }
    }
    let explained = vm.explain("{");
    assert_eq!((explained.reason, explained.prompt), ("not_json", None));
    assert!(explained.because.contains("not_json"));
}

#[test]
fn requests_of_others_weigh_like_own_ones() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(four(), &store, 1);
    let (a, busy) = report("a", 20, 30);
    for now in [999_000, 1_000_000] {
        reported::record(&store, "n", a, &busy, BackendLoad::default(), NowMs(now)).unwrap();
    }
    vm.refresh();
    for seed in 0..10 {
        assert_eq!(vm.serve(&body("m", seed, 300)).as_deref(), Some("b"));
    }
    // A report that nothing follows is forgotten.
    vm.now = NowMs(1_000_000 + reported::STALE_MS);
    assert!((10..40).any(|seed| vm.serve(&body("m", seed, 300)).as_deref() == Some("a")));
    // What came with an answer counts too, in another worker as well.
    let mut other = Vm::new(four(), &store, 2);
    other.now = vm.now;
    let full = LoadReport { waiting: Some(50), running: None, kv_usage: Some(0.9) };
    for _ in 0..2 {
        vm.now = NowMs(vm.now.0 + 300);
        vm.ledger.hear(&store, vm.now, a, full, 80_000).unwrap();
    }
    vm.ledger.heartbeat(&store, vm.now).unwrap();
    other.now = vm.now;
    assert!((40..60).all(|seed| other.serve(&body("m", seed, 300)).as_deref() == Some("b")));
}

#[test]
fn an_observed_fleet_grows_by_what_serves_and_loses_what_envoy_does_not_know() {
    let observing = r#"{"name":"n","observe":true,"endpoint_cluster":"c","kv_capacity_tokens":9000,
        "models":[{"name":"m","bundle":{"cluster":"c","path":"/m"}}]}"#;
    let store = MemoryStore::default();
    let mut vm = Vm::new(config(observing), &store, 1);
    let (picked, reason, mut dispatched) = vm.send(&body("m", 1, 300));
    assert_eq!((picked, reason), (None, Reason::Explore));
    let served = std::sync::Arc::new(observed_backend(&vm.configured, "10.0.0.1:1"));
    endpoints::seen(&store, "n", "10.0.0.1:1", vm.now).unwrap();
    vm.writer().served(&mut dispatched, &served, 1);
    assert_eq!(vm.ledger.own().values().map(|load| load.running).sum::<u32>(), 1);
    vm.refresh();
    vm.explorer.explored(vm.now);
    let (picked, reason, mut sibling) = vm.send(&body("m", 1, 300));
    assert_eq!((picked.as_deref(), reason), (Some("10.0.0.1:1"), Reason::PrefixHit));
    // Envoy sends it elsewhere at once: it does not know the address.
    let other = std::sync::Arc::new(observed_backend(&vm.configured, "10.0.0.2:1"));
    endpoints::seen(&store, "n", "10.0.0.2:1", vm.now).unwrap();
    vm.writer().served(&mut sibling, &other, 1);
    vm.refresh();
    let names: Vec<_> = vm.live.config.backends.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["10.0.0.2:1"]);
    for dispatched in [dispatched, sibling] {
        vm.writer().finish(dispatched, Outcome::Answered, None);
    }
    assert!(vm.ledger.own().is_empty());
}
