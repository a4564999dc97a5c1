//! The prefix tree natively: a look-up and a score among a hundred backends and a million blocks.

use std::num::NonZeroU32;
use std::time::Instant;

use anyhow::{Context, bail};
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde_json::json;
use warmpath_core::blocks::{self, Namespace};
use warmpath_core::config::Config;
use warmpath_core::dispatch::Writer;
use warmpath_core::ids::NowMs;
use warmpath_core::load::Ledger;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Router, TokenizedPrompt};
use warmpath_core::store::MemoryStore;

const BACKENDS: usize = 100;
const PROMPTS: u32 = 3_200;
const PROMPT_TOKENS: u32 = 8_000;
const BLOCK_SIZE_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// Prompts that share a first part share it on this many prompts each.
const SHARING: u32 = 4;

/// What was measured.
pub struct Tree {
    /// Times of a look-up and score, in nanoseconds.
    pub lookup_ns: Histogram<u64>,
    /// Bytes of values in the store, and keys.
    pub size: (usize, usize),
}

/// Fills a tree and times `lookups` decisions on prompts that it knows.
pub fn measure(lookups: u32) -> anyhow::Result<Tree> {
    let config = config()?;
    let store = MemoryStore::default();
    let mut ledger = Ledger::new(1);
    for seed in 0..PROMPTS {
        let decision = router(&config, &store, &ledger, seed).route_tokenized(prompt(seed));
        let now = NowMs(1_000);
        Writer { config: &config, store: &store, ledger: &mut ledger, now }.dispatch(decision);
    }
    // A second worker looks, whose own load is none: the first one's is read from the store.
    let ledger = Ledger::new(2);
    let mut lookup_ns = Histogram::new(3).context("a histogram")?;
    let mut known_blocks = 0;
    for lookup in 0..lookups {
        let asked = prompt(lookup.wrapping_mul(7_919) % PROMPTS);
        let started = Instant::now();
        let decision = router(&config, &store, &ledger, lookup).route_tokenized(asked);
        lookup_ns.record(started.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))?;
        let Decision::Pick(pick) = decision else { bail!("no pick: {decision:?}") };
        known_blocks += pick.prompt.path.known_blocks;
    }
    let asked_blocks = lookups as usize * (PROMPT_TOKENS / BLOCK_SIZE_TOKENS) as usize;
    if known_blocks * 100 < asked_blocks * 99 {
        bail!("the tree knew {known_blocks} of {asked_blocks} blocks");
    }
    Ok(Tree { lookup_ns, size: store.size() })
}

fn config() -> anyhow::Result<Config> {
    let backends: Vec<_> =
        (0..BACKENDS).map(|index| json!({"name": format!("e{index}"), "cluster": "c"})).collect();
    let json = json!({
        "kv_capacity_tokens": 200_000,
        "backends": backends,
        "models": [{"name": "m", "bundle": {"cluster": "c", "path": "/m"}}],
    });
    Ok(Config::parse(json.to_string().as_bytes())?)
}

fn router<'a>(
    config: &'a Config,
    store: &'a MemoryStore,
    ledger: &'a Ledger,
    turn: u32,
) -> Router<'a, MemoryStore> {
    let turn = u64::from(turn);
    Router {
        config,
        models: &[None],
        store,
        ledger,
        reported: &NOTHING,
        explorer: None,
        now: NowMs(1_000),
        random: turn,
        turn,
    }
}

/// The first half is shared by [`SHARING`] prompts.
fn prompt(seed: u32) -> TokenizedPrompt {
    let tokens: Vec<u32> = (0..PROMPT_TOKENS)
        .map(|at| {
            let text = if at < PROMPT_TOKENS / 2 { seed / SHARING } else { PROMPTS + seed };
            text.wrapping_mul(10_007).wrapping_add(at)
        })
        .collect();
    let seed = Namespace { model: "m", adapter: "", cache_salt: "" }.seed();
    TokenizedPrompt {
        model_index: 0,
        prompt_tokens: tokens.len(),
        hashes: blocks::block_hashes(seed, &tokens, &[], BLOCK_SIZE_TOKENS),
        output_tokens_max: Some(100),
        session: None,
        cache_read_tokens_max: None,
    }
}

/// The result for people.
pub fn table(tree: &Tree) -> Table {
    let us = |quantile| format!("{:.1}", tree.lookup_ns.value_at_quantile(quantile) as f64 / 1e3);
    let (keys, bytes) = tree.size;
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "backends",
        "blocks in the tree",
        "MiB",
        "prompt tokens",
        "look-up and score p50 us",
        "p99 us (budget)",
    ]);
    let shared = PROMPTS * PROMPT_TOKENS / 2 / SHARING;
    let blocks = (PROMPTS * PROMPT_TOKENS / 2 + shared) / BLOCK_SIZE_TOKENS;
    table.add_row([
        BACKENDS.to_string(),
        blocks.to_string(),
        format!("{:.1} in {keys} keys", bytes as f64 / f64::from(1 << 20)),
        PROMPT_TOKENS.to_string(),
        us(0.5),
        format!("{} (50)", us(0.99)),
    ]);
    table
}
