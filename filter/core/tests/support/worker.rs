//! A worker over the in-memory store, and prompts for it.

use std::num::NonZeroU32;

use warmpath_core::answer::Usage;
use warmpath_core::blocks::{self, Namespace};
use warmpath_core::config::Config;
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict, Writer};
use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::load::Ledger;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Pick, Router, TokenizedPrompt};
use warmpath_core::store::MemoryStore;

/// Tokens in a block.
pub const BLOCK_SIZE_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// One VM.
pub struct Worker<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The shared state.
    pub store: &'a MemoryStore,
    /// Its own load.
    pub ledger: Ledger,
    /// Its decisions so far.
    pub turn: u64,
    /// Its clock.
    pub now: NowMs,
    /// Updates that it lost.
    pub lost_updates: u64,
}

impl<'a> Worker<'a> {
    /// A worker that has done nothing yet; `nonce` tells it from others.
    pub fn new(config: &'a Config, store: &'a MemoryStore, nonce: u64) -> Self {
        Self {
            config,
            store,
            ledger: Ledger::new(nonce),
            turn: 0,
            now: NowMs(1_000_000),
            lost_updates: 0,
        }
    }

    /// Places a prompt, and changes nothing.
    pub fn decide(&mut self, prompt: TokenizedPrompt) -> Pick {
        self.turn += 1;
        let router = Router {
            config: self.config,
            models: &[None],
            store: self.store,
            ledger: &self.ledger,
            reported: &NOTHING,
            explorer: None,
            now: self.now,
            random: self.turn,
            turn: self.turn,
        };
        match router.route_tokenized(prompt) {
            Decision::Pick(pick) => pick,
            other => panic!("{other:?}"),
        }
    }

    /// Its write path.
    pub fn writer(&mut self) -> Writer<'_, MemoryStore> {
        Writer { config: self.config, store: self.store, ledger: &mut self.ledger, now: self.now }
    }

    /// Places a prompt and dispatches it.
    pub fn send(&mut self, prompt: TokenizedPrompt) -> (Pick, Dispatched) {
        let pick = self.decide(prompt);
        let (dispatched, written) = self.writer().dispatch(Decision::Pick(pick.clone()));
        self.lost_updates += written.lost_updates;
        (pick, dispatched)
    }

    /// A whole request, answered after `time_ms` with this many cached tokens.
    pub fn serve(
        &mut self,
        prompt: TokenizedPrompt,
        cached_tokens: impl FnOnce(&Pick) -> u32,
        time_ms: impl FnOnce(BackendIndex) -> u64,
    ) -> (Pick, Verdict) {
        let prompt_tokens = prompt.prompt_tokens as u32;
        let (pick, mut dispatched) = self.send(prompt);
        let cached_tokens = Some(cached_tokens(&pick));
        self.now = NowMs(self.now.0 + time_ms(pick.order[0]));
        let backend = self.config.backend(pick.order[0]).unwrap();
        self.writer().served(&mut dispatched, backend, 1);
        self.writer().first_byte(&mut dispatched, true);
        self.lost_updates += self.writer().settle().lost_updates;
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: 1 };
        let (written, verdict) = self.writer().finish(dispatched, Outcome::Answered, Some(usage));
        self.lost_updates += written.lost_updates + self.writer().settle().lost_updates;
        (pick, verdict.unwrap())
    }
}

/// `backends` backends of one model.
pub fn config(backends: usize, kv_capacity_tokens: Option<u32>) -> Config {
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
pub fn prompt(seed: u32, shared: u32, own: (u32, u32)) -> TokenizedPrompt {
    let (own_seed, own_tokens) = own;
    let tokens: Vec<u32> = (0..shared)
        .map(|at| seed.wrapping_mul(100_000).wrapping_add(at))
        .chain((0..own_tokens).map(|at| u32::MAX - own_seed * 10_000 - at))
        .collect();
    let namespace = Namespace { model: "m", adapter: "", cache_salt: "" };
    TokenizedPrompt {
        model_index: 0,
        prompt_tokens: tokens.len(),
        hashes: blocks::block_hashes(namespace.seed(), &tokens, &[], BLOCK_SIZE_TOKENS),
        output_tokens_max: Some(100),
        session: None,
        cache_read_tokens_max: None,
    }
}
