//! What engines report as cached, what they leave out, and what is learnt of it.

mod support {
    pub mod worker;
}

use support::worker::{Worker, config, prompt};
use warmpath_core::answer::{AnswerKind, Framing, Usage};
use warmpath_core::config::Config;
use warmpath_core::dispatch::{Outcome, Verdict};
use warmpath_core::request::Api;
use warmpath_core::residency;
use warmpath_core::route::TokenizedPrompt;
use warmpath_core::store::MemoryStore;

const PROMPT_TOKENS: u32 = 4_000;
const CACHED_TOKENS: u32 = 3_984;

const CHAT: AnswerKind = AnswerKind { api: Api::ChatCompletions, framing: Framing::Json };

/// A whole request, of whose prompt the answer says that so much was cached.
fn serve(
    worker: &mut Worker<'_>,
    prompt: TokenizedPrompt,
    kind: AnswerKind,
    cached_tokens: Option<u32>,
) -> Verdict {
    let prompt_tokens = prompt.prompt_tokens as u32;
    let (_, mut dispatched) = worker.send(prompt);
    dispatched.answers_in(kind);
    worker.writer().first_byte(&mut dispatched, true);
    let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: 1 };
    worker.writer().finish(dispatched, Outcome::Answered, Some(usage)).1.unwrap()
}

/// Text `seed`, which others share.
fn text(seed: u32) -> TokenizedPrompt {
    prompt(seed, PROMPT_TOKENS, (0, 0))
}

/// A worker with one backend, to which ten texts were sent: the first ones are neither new nor old there.
fn warm<'a>(config: &'a Config, store: &'a MemoryStore) -> Worker<'a> {
    let mut worker = Worker::new(config, store, 1);
    for seed in 0..10 {
        worker.serve(text(seed), |_| 0, |_| 1);
    }
    worker
}

/// How many lives the only backend has had.
fn lives(worker: &Worker<'_>) -> u16 {
    residency::load(worker.store, worker.config.backends[0].id, 0).unwrap().generation
}

#[test]
fn an_engine_that_leaves_out_nothing_says_that_nothing_was_cached() {
    let config = config(1, Some(400_000));
    let hit = Some(CACHED_TOKENS);
    for (said, lost) in [
        (vec![], 0),
        (vec![(CHAT, hit)], 1),
        // Whoever says that nothing was cached means nothing by silence.
        (vec![(CHAT, Some(0)), (CHAT, hit)], 0),
        (vec![(AnswerKind { framing: Framing::Sse, ..CHAT }, hit)], 0),
        (vec![(AnswerKind { api: Api::SglangGenerate, ..CHAT }, hit)], 0),
    ] {
        let store = MemoryStore::default();
        let mut worker = warm(&config, &store);
        for (kind, cached_tokens) in &said {
            serve(&mut worker, text(9), *kind, *cached_tokens);
        }
        for seed in 0..3 {
            let verdict = serve(&mut worker, text(seed), CHAT, None);
            assert_eq!(verdict.predicted_cached_tokens, CACHED_TOKENS);
        }
        assert_eq!(lives(&worker), lost, "{said:?}");
    }
}

#[test]
fn a_new_life_of_an_engine_may_leave_out_more_than_the_old_one() {
    let (config, store) = (config(1, Some(400_000)), MemoryStore::default());
    let mut worker = warm(&config, &store);
    serve(&mut worker, text(9), CHAT, Some(CACHED_TOKENS));
    for _ in 0..4 {
        for seed in 0..10 {
            serve(&mut worker, text(seed), CHAT, None);
        }
    }
    assert_eq!(lives(&worker), 1);
}

#[test]
fn a_prompt_that_the_engine_computes_whole_is_no_sign_of_a_lost_cache() {
    let (config, store) = (config(1, Some(400_000)), MemoryStore::default());
    let mut worker = warm(&config, &store);
    let scored =
        |seed, read_max| TokenizedPrompt { cache_read_tokens_max: Some(read_max), ..text(seed) };
    for seed in [0, 1, 2, 0, 1, 2] {
        let verdict = serve(&mut worker, scored(seed, 0), CHAT, Some(0));
        assert_eq!(verdict.predicted_cached_tokens, 0);
    }
    // Up to a token within the third node.
    let verdict = serve(&mut worker, scored(3, 2_100), CHAT, Some(2_096));
    assert_eq!(verdict.predicted_cached_tokens, 2_096);
    assert_eq!(lives(&worker), 0);
    let verdict = serve(&mut worker, text(0), CHAT, Some(CACHED_TOKENS));
    assert_eq!(verdict.predicted_cached_tokens, CACHED_TOKENS);
}
