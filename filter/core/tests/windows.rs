//! Models with sliding attention windows, read path and write path together: what is predicted of engines
//! that keep the cache of a window only where prompts end, and where they part once that was seen.

use serde_json::json;
use warmpath_core::answer::Usage;
use warmpath_core::config::Config;
use warmpath_core::dispatch::{Outcome, Writer};
use warmpath_core::ids::NowMs;
use warmpath_core::load::Ledger;
use warmpath_core::reported::NOTHING;
use warmpath_core::residency::{self, Clock};
use warmpath_core::route::{Decision, Router};
use warmpath_core::store::MemoryStore;

const BLOCK: usize = 16;

struct Bed {
    config: Config,
    store: MemoryStore,
    ledger: Ledger,
}

impl Bed {
    /// A backend of a model with such a window.
    fn new(sliding_window_tokens: Option<u32>) -> Self {
        let mut model = json!({"name": "m", "bundle": {"cluster": "c", "path": "/m"}});
        if let Some(tokens) = sliding_window_tokens {
            model["sliding_window_tokens"] = tokens.into();
        }
        let config = json!({"kv_capacity_tokens": 1_000_000, "models": [model],
            "backends": [{"name": "a", "cluster": "a"}]});
        let config = Config::parse(config.to_string().as_bytes()).expect("a configuration");
        Self { config, store: MemoryStore::default(), ledger: Ledger::new(1) }
    }

    /// Serves a prompt with such an outcome; gives the blocks that were predicted to be cached.
    fn send(&mut self, tokens: &[u32], outcome: Outcome) -> usize {
        let now = NowMs(1_000_000);
        let router = Router {
            config: &self.config,
            models: &[None],
            store: &self.store,
            ledger: &self.ledger,
            reported: &NOTHING,
            explorer: None,
            now,
            random: 1,
            turn: 1,
        };
        let body = json!({"model": "m", "prompt": tokens}).to_string();
        let decision = router.route("/v1/completions", body.as_bytes());
        let Decision::Pick(pick) = &decision else { panic!("{decision:?}") };
        let cached_tokens = pick.prompt.cached_tokens;
        let mut writer =
            Writer { config: &self.config, store: &self.store, ledger: &mut self.ledger, now };
        let (dispatched, _) = writer.dispatch(decision);
        let prompt_tokens = tokens.len() as u32;
        let usage =
            Usage { prompt_tokens, cached_tokens: Some(cached_tokens), completion_tokens: 1 };
        writer.finish(dispatched, outcome, Some(usage));
        cached_tokens as usize / BLOCK
    }

    fn serve(&mut self, tokens: &[u32]) -> usize {
        self.send(tokens, Outcome::Answered)
    }
}

/// So many blocks of the token `first`, then so many of `then`.
fn prompt(first: (u32, usize), then: (u32, usize)) -> Vec<u32> {
    let blocks = |(token, blocks): (u32, usize)| vec![token; blocks * BLOCK];
    [blocks(first), blocks(then)].concat()
}

#[test]
fn a_shared_beginning_is_there_from_the_third_prompt_on() {
    // Windows of four blocks, in nodes of 64.
    for shared in [10, 63, 64, 66, 130] {
        let mut bed = Bed::new(Some(64));
        let own = |token| prompt((1, shared), (token, 10));
        assert_eq!(bed.serve(&own(2)), 0);
        assert_eq!(bed.serve(&own(3)), 0, "{shared}: it was sent, but no prompt ended there");
        assert_eq!(bed.serve(&own(4)), shared);
        // Ends are retained at once; the last token is always computed.
        assert_eq!(bed.serve(&own(2)), shared + 9);
        assert_eq!(bed.serve(&[own(3), own(9)].concat()), shared + 9);
        // Where the longer one ended, all of the shorter one is known but no place where it may end.
        assert_eq!(bed.serve(&own(3)[..(shared + 5) * BLOCK + 1]), shared);
        assert_eq!(bed.serve(&own(3)[..(shared + 5) * BLOCK + 1]), shared + 5);
    }
}

#[test]
fn what_is_within_a_window_of_the_beginning_needs_no_more() {
    let mut bed = Bed::new(Some(64));
    assert_eq!(bed.serve(&prompt((1, 4), (2, 1))[..4 * BLOCK + 1]), 0);
    assert_eq!(bed.serve(&prompt((1, 3), (3, 10))), 3);
    assert_eq!(bed.serve(&prompt((1, 2), (4, 10))), 2);
}

#[test]
fn models_without_windows_keep_all() {
    for window in [None, Some(0), Some(1)] {
        let mut bed = Bed::new(window);
        assert_eq!(bed.serve(&prompt((1, 10), (2, 10))), 0);
        assert_eq!(bed.serve(&prompt((1, 10), (3, 10))), 10);
    }
}

#[test]
fn a_failure_takes_back_what_was_to_be_retained() {
    let mut bed = Bed::new(Some(64));
    assert_eq!(bed.send(&prompt((1, 10), (2, 10)), Outcome::BackendFailed), 0);
    assert_eq!(bed.serve(&prompt((1, 10), (2, 10))), 0);
    assert_eq!(bed.serve(&prompt((1, 10), (2, 10))), 19);
}

#[test]
fn a_failure_takes_back_where_prompts_were_to_part() {
    for outcome in [Outcome::BackendFailed, Outcome::Refused, Outcome::Shed, Outcome::NotSent] {
        let mut bed = Bed::new(Some(64));
        assert_eq!(bed.serve(&prompt((1, 10), (2, 10))), 0);
        assert_eq!(bed.send(&prompt((1, 10), (3, 10)), outcome), 0);
        assert_eq!(bed.serve(&prompt((1, 10), (4, 10))), 0, "{outcome:?}");
        assert_eq!(bed.serve(&prompt((1, 10), (5, 10))), 10, "{outcome:?}");
    }
}

#[test]
fn an_engine_that_was_restarted_retains_nothing() {
    let mut bed = Bed::new(Some(64));
    assert_eq!(bed.serve(&prompt((1, 10), (2, 10))), 0);
    assert_eq!(bed.serve(&prompt((1, 10), (3, 10))), 0);
    let id = bed.config.backends[0].id;
    residency::change(&bed.store, id, 0, Clock::restart).expect("a clock");
    // Again the first of its kind there, and the second.
    assert_eq!(bed.serve(&prompt((1, 10), (4, 10))), 0);
    assert_eq!(bed.serve(&prompt((1, 10), (5, 10))), 0);
    assert_eq!(bed.serve(&prompt((1, 10), (6, 10))), 10);
}
