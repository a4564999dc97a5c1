//! Engine steps computed by hand, and invariants under random load.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::model::event::Finished;
use crate::model::prompt::{BlockHash, Prompt};

/// 1,000 prefill tokens/s, 10 ms a step and 1 ms a sequence: easy to add up.
fn profile(kv_blocks: u32) -> Profile {
    Profile {
        name: "test".into(),
        kv_tokens: (kv_blocks + 1) * 16,
        prefill_tokens_per_s: 1_000.0,
        decode_step_ms: 10.0,
        decode_per_seq_ms: 1.0,
        max_num_seqs: 256,
        max_num_batched_tokens: 2_048,
        block_size_tokens: 16,
        max_model_len_tokens: None,
    }
}

fn spec(id: u64, tokens: Vec<u32>, output_tokens: u32) -> RequestSpec {
    RequestSpec {
        id: RequestId(id),
        prompt: Prompt::from_tokens("m", tokens, 16).unwrap(),
        output_tokens,
    }
}

/// Tokens `family * 100,000 ..`: different families share nothing.
fn text(family: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| family * 100_000 + at).collect()
}

/// Runs until idle.
fn drain(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(at) = engine.next_event_at() {
        engine.advance_to(at, &mut events);
    }
    events
}

fn finished(events: &[Event], id: u64) -> (SimTime, Finished) {
    let found = events.iter().find_map(|event| match event.kind {
        EventKind::Finished(finished) if event.id.0 == id => Some((event.at, finished)),
        _ => None,
    });
    found.expect("the request finished")
}

fn outputs(events: &[Event], id: u64) -> Vec<u32> {
    let of_id = events.iter().filter(|event| event.id.0 == id);
    of_id
        .filter_map(|event| match event.kind {
            EventKind::FirstToken { token } | EventKind::Token { token } => Some(token),
            _ => None,
        })
        .collect()
}

fn serve(
    engine: &mut Engine,
    id: u64,
    tokens: Vec<u32>,
    output_tokens: u32,
) -> (Finished, Vec<u32>) {
    engine.submit(engine.now, spec(id, tokens, output_tokens)).unwrap();
    let events = drain(engine);
    (finished(&events, id).1, outputs(&events, id))
}

#[test]
fn one_request_step_by_step() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    let at = SimTime::from_millis_f64(5.0);
    engine.advance_to(at, &mut Vec::new());
    engine.submit(at, spec(1, text(1, 100), 3)).unwrap();
    assert_eq!(engine.next_event_at(), Some(at));
    let events = drain(&mut engine);
    let times: Vec<f64> = events.iter().map(|event| event.at.as_millis_f64()).collect();
    // Prefill: 10 + 1 + 100 ms. Each decode step: 11 ms. Admitted, first token, two tokens, end.
    assert_eq!(times, [5.0, 116.0, 127.0, 138.0, 138.0]);
    let (_, account) = finished(&events, 1);
    assert_eq!((account.prompt_tokens, account.output_tokens, account.cached_tokens), (100, 3, 0));
    assert_eq!(account.first_token_at.as_millis_f64(), 116.0);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.kv_used_blocks), (0, 0, 0));
    // 102 tokens were computed: six full blocks; the third output token never is.
    assert_eq!(stats.kv_hashed_blocks, 6);
    assert_eq!((stats.prompt_tokens, stats.generation_tokens, stats.steps), (100, 3, 3));
}

#[test]
fn a_full_repeat_computes_exactly_the_last_block() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    assert_eq!(serve(&mut engine, 1, text(1, 64), 1).0.cached_tokens, 0);
    assert_eq!(serve(&mut engine, 2, text(1, 64), 1).0.cached_tokens, 48);
    // One token more and the fourth block may hit.
    assert_eq!(serve(&mut engine, 3, text(1, 65), 1).0.cached_tokens, 64);
    // Less than a block never hits.
    assert_eq!(serve(&mut engine, 4, text(1, 15), 1).0.cached_tokens, 0);
    assert_eq!(serve(&mut engine, 5, text(1, 16), 1).0.cached_tokens, 0);
    assert_eq!(serve(&mut engine, 6, text(1, 17), 1).0.cached_tokens, 16);
    let stats = engine.stats();
    assert_eq!(stats.prefix_cache_queries, 64 + 64 + 65 + 15 + 16 + 17);
    assert_eq!(stats.prefix_cache_hits, 48 + 64 + 16);
}

#[test]
fn equal_prompts_in_one_step_share_their_blocks() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    for id in 1..=3 {
        engine.submit(SimTime::ZERO, spec(id, text(1, 64), 1)).unwrap();
    }
    let events = drain(&mut engine);
    let cached = |id| finished(&events, id).1.cached_tokens;
    assert_eq!([cached(1), cached(2), cached(3)], [0, 48, 48]);
    // 64 + 16 + 16 prompt tokens, 3 sequences, one step.
    assert_eq!(finished(&events, 3).0.as_millis_f64(), 10.0 + 3.0 + 96.0);
}

#[test]
fn decoded_blocks_serve_the_next_turn() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    let mut turn = text(1, 40);
    // 40 + 56 - 1 tokens have KV at the end: five full blocks.
    let (_, answer) = serve(&mut engine, 1, turn.clone(), 56);
    assert_eq!(answer.len(), 56);
    turn.extend(answer);
    turn.extend(text(2, 20));
    assert_eq!(serve(&mut engine, 2, turn, 1).0.cached_tokens, 80);
}

#[test]
fn eviction_leaves_the_head_of_a_prefix_resident() {
    let mut engine = Engine::new(profile(10), 1).unwrap();
    serve(&mut engine, 1, text(1, 96), 1);
    // Four blocks are fresh; seven more evict the last three of the six.
    serve(&mut engine, 2, text(2, 112), 1);
    let again = Prompt::from_tokens("m", text(1, 96), 16).unwrap();
    assert_eq!(engine.resident_tokens(&again), 48);
    assert_eq!(serve(&mut engine, 3, text(1, 96), 1).0.cached_tokens, 48);
}

#[test]
fn long_prompts_are_chunked_and_decodes_ride_along() {
    let mut engine = Engine::new(profile(1_000), 1).unwrap();
    let mut events = Vec::new();
    engine.submit(SimTime::ZERO, spec(1, text(1, 16), 10)).unwrap();
    engine.advance_to(SimTime::ZERO, &mut events);
    engine.submit(SimTime::ZERO, spec(2, text(2, 5_000), 1)).unwrap();
    events.extend(drain(&mut engine));
    // Step 1: 16 prompt tokens, 27 ms. Steps 2 and 3: one decode and 2,047 prompt tokens each,
    // 2,059 ms. Step 4: one decode and the last 906, 918 ms.
    let (at, _) = finished(&events, 2);
    assert_eq!(at.as_millis_f64(), 27.0 + 2.0 * 2_059.0 + 918.0);
    let first_of_1 = finished(&events, 1).1.first_token_at;
    assert_eq!(first_of_1.as_millis_f64(), 27.0);
}

#[test]
fn a_request_waits_until_its_whole_context_fits_and_nobody_overtakes() {
    let mut engine = Engine::new(profile(10), 1).unwrap();
    engine.submit(SimTime::ZERO, spec(1, text(1, 80), 20)).unwrap();
    engine.submit(SimTime::ZERO, spec(2, text(2, 100), 1)).unwrap();
    engine.submit(SimTime::ZERO, spec(3, text(3, 16), 1)).unwrap();
    let mut events = Vec::new();
    engine.advance_to(SimTime::ZERO, &mut events);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.kv_used_blocks), (1, 2, 5));
    assert_eq!(stats.kv_usage, 0.5);
    events.extend(drain(&mut engine));
    // 2 needs seven of ten blocks: it starts when 1 ends, together with 3.
    assert_eq!(finished(&events, 2).1.admitted_at, finished(&events, 1).0);
    assert_eq!(finished(&events, 3).1.admitted_at, finished(&events, 1).0);
}

#[test]
fn the_youngest_is_preempted_and_computed_again_from_what_is_left() {
    let mut engine = Engine::new(profile(8), 1).unwrap();
    engine.submit(SimTime::ZERO, spec(1, text(1, 60), 40)).unwrap();
    engine.submit(SimTime::ZERO, spec(2, text(2, 60), 30)).unwrap();
    let events = drain(&mut engine);
    // Both hold four blocks and have four tokens to go in them; then 1 needs a fifth and takes it
    // from 2. 2 waits for room for its 65 tokens until 1 ends, and finds what 1 left of its head.
    let preempted: Vec<u64> = events
        .iter()
        .filter(|event| event.kind == EventKind::Preempted)
        .map(|event| event.id.0)
        .collect();
    assert_eq!(preempted, [2]);
    let resumed = events.iter().find_map(|event| match event.kind {
        EventKind::Admitted { cached_tokens, resumed: true } => Some((event.at, cached_tokens)),
        _ => None,
    });
    // 1 grows from four blocks to seven: it takes three of 2's four, tail first.
    assert_eq!(resumed, Some((finished(&events, 1).0, 16)));
    let (_, account) = finished(&events, 2);
    assert_eq!((account.preemptions, account.cached_tokens, account.output_tokens), (1, 0, 30));
    assert_eq!(outputs(&events, 2).len(), 30, "no token is reported twice");
    let stats = engine.stats();
    assert_eq!(stats.preemptions, 1);
    // The second look-up of 2 is not counted, as in vLLM.
    assert_eq!(stats.prefix_cache_queries, 120);
}

#[test]
fn abort_frees_at_once_and_keeps_the_computed_blocks() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    engine.submit(SimTime::ZERO, spec(1, text(1, 64), 50)).unwrap();
    engine.submit(SimTime::ZERO, spec(2, text(2, 64), 2)).unwrap();
    let mut events = Vec::new();
    engine.advance_to(SimTime::from_millis_f64(1.0), &mut events);
    assert!(engine.abort(RequestId(1)));
    assert!(!engine.abort(RequestId(1)));
    assert_eq!(engine.stats().kv_used_blocks, 4);
    events.extend(drain(&mut engine));
    assert!(outputs(&events, 1).is_empty());
    assert_eq!(finished(&events, 2).1.output_tokens, 2);
    assert_eq!(serve(&mut engine, 3, text(1, 65), 1).0.cached_tokens, 64);
    assert_eq!((engine.stats().aborted, engine.stats().finished), (1, 2));
}

#[test]
fn reset_works_only_when_no_block_is_held_and_shows_after_a_step() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    engine.set_reporting(Reporting { cache_events: true, ..Reporting::default() });
    engine.submit(SimTime::ZERO, spec(1, text(1, 32), 2)).unwrap();
    engine.advance_to(SimTime::ZERO, &mut Vec::new());
    assert!(!engine.reset_prefix_cache());
    assert!(engine.take_cache_events().is_empty(), "blocks show at the end of their step");
    drain(&mut engine);
    let first = engine.take_cache_events();
    assert!(matches!(&first[..], [CacheEvent::Stored { hashes, parent: None, tokens }]
        if hashes.len() == 2 && *tokens == text(1, 32)));
    assert!(engine.reset_prefix_cache());
    assert!(engine.take_cache_events().is_empty());
    assert_eq!(serve(&mut engine, 2, text(1, 33), 1).0.cached_tokens, 0);
    assert_eq!(engine.take_cache_events()[0], CacheEvent::Cleared);
}

#[test]
fn stored_events_carry_the_tokens_of_decoded_blocks() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    engine.set_reporting(Reporting { cache_events: true, ..Reporting::default() });
    let (_, answer) = serve(&mut engine, 1, text(1, 24), 10);
    let events = engine.take_cache_events();
    let CacheEvent::Stored { parent, tokens, hashes } = &events[1] else {
        panic!("expected a stored block");
    };
    let mut block = text(1, 24)[16..].to_vec();
    block.extend(&answer[..8]);
    assert_eq!(*tokens, block);
    let CacheEvent::Stored { hashes: first, .. } = &events[0] else {
        panic!("expected a stored block");
    };
    assert_eq!((*parent, hashes.len()), (first.last().copied(), 1));
}

#[test]
fn impossible_requests_are_refused() {
    let mut engine = Engine::new(profile(10), 1).unwrap();
    let now = SimTime::ZERO;
    assert_eq!(engine.submit(now, spec(1, text(1, 10), 0)), Err(SubmitError::NoOutput));
    assert!(matches!(
        engine.submit(now, spec(1, text(1, 150), 11)),
        Err(SubmitError::TooLong { context_tokens_max: 160, .. })
    ));
    engine.submit(now, spec(1, text(1, 150), 10)).unwrap();
    assert_eq!(
        engine.submit(now, spec(1, text(1, 10), 1)),
        Err(SubmitError::DuplicateId(RequestId(1)))
    );
    let other = RequestSpec {
        prompt: Prompt::from_tokens("m", text(1, 10), 32).unwrap(),
        ..spec(2, text(1, 1), 1)
    };
    assert!(matches!(engine.submit(now, other), Err(SubmitError::BlockSize { .. })));
    assert_eq!(finished(&drain(&mut engine), 1).1.output_tokens, 10);
}

#[test]
fn prompts_known_by_hashes_share_full_blocks_and_nothing_else() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    let hashes: Vec<BlockHash> = (1..=3).map(BlockHash::new).collect();
    for id in 1..=2 {
        let prompt = Prompt::from_block_hashes(hashes.clone(), 50, 16).unwrap();
        engine
            .submit(engine.now, RequestSpec { id: RequestId(id), prompt, output_tokens: 40 })
            .unwrap();
        drain(&mut engine);
    }
    assert_eq!(engine.stats().prefix_cache_hits, 48);
    // 89 tokens are computed for each: two blocks beyond the shared three, of each its own.
    assert_eq!(engine.stats().kv_hashed_blocks, 3 + 2 + 2);
}

#[test]
fn requests_that_arrive_later_than_a_step_begins_do_not_join_it() {
    let mut engine = Engine::new(profile(100), 1).unwrap();
    let later = SimTime::from_millis_f64(40.0);
    engine.submit(later, spec(1, text(1, 16), 1)).unwrap();
    assert_eq!(engine.next_event_at(), Some(later));
    let events = drain(&mut engine);
    assert_eq!(finished(&events, 1).1.admitted_at, later);
}

/// A request of a random workload.
#[derive(Clone, Debug)]
struct Arrival {
    gap_ms: u32,
    family: u32,
    shared: u32,
    own: u32,
    output: u32,
    abort_after_ms: Option<u32>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (0..60u32, 0..4u32, 0..200u32, 1..80u32, 1..60u32, prop::option::weighted(0.1, 0..200u32))
        .prop_map(|(gap_ms, family, shared, own, output, abort_after_ms)| Arrival {
            gap_ms,
            family,
            shared,
            own,
            output,
            abort_after_ms,
        })
}

impl Engine {
    fn assert_consistent(&self) {
        let requests = || self.requests.iter().flatten();
        self.kv.assert_consistent(requests().map(|request| &request.table));
        assert_eq!(requests().count(), self.running.len() + self.waiting.len());
        for &slot in &self.waiting {
            assert!(self.request(slot).table.is_empty(), "waiting requests hold no blocks");
        }
        assert!(self.running.is_empty() || self.step.is_some(), "running means stepping");
        if self.running.is_empty() {
            assert_eq!(self.stats().kv_used_blocks, 0);
        }
    }
}

/// Plays a workload; checks the engine after every event.
fn play(
    kv_blocks: u32,
    budget: u32,
    seqs: u32,
    arrivals: &[Arrival],
) -> (Vec<Event>, EngineStats, Vec<CacheEvent>) {
    let profile =
        Profile { max_num_batched_tokens: budget, max_num_seqs: seqs, ..profile(kv_blocks) };
    let mut engine = Engine::new(profile, 9).unwrap();
    engine.set_reporting(Reporting { tokens: true, cache_events: true });
    let (mut events, mut at_ms, mut todo) = (Vec::new(), 0, Vec::new());
    for (id, arrival) in arrivals.iter().enumerate() {
        at_ms += arrival.gap_ms;
        todo.push((at_ms, id as u64, Some(arrival)));
        todo.extend(arrival.abort_after_ms.map(|after| (at_ms + after, id as u64, None)));
    }
    todo.sort_by_key(|&(at_ms, id, _)| (at_ms, id));
    for (at_ms, id, arrival) in todo {
        let at = SimTime::from_millis_f64(f64::from(at_ms));
        engine.advance_to(at, &mut events);
        if let Some(arrival) = arrival {
            let mut tokens = text(arrival.family, arrival.shared);
            tokens.extend(text(1_000 + id as u32, arrival.own));
            engine.submit(at, spec(id, tokens, arrival.output)).unwrap();
        } else {
            engine.abort(RequestId(id));
        }
        engine.assert_consistent();
    }
    while let Some(at) = engine.next_event_at() {
        engine.advance_to(at, &mut events);
        engine.assert_consistent();
    }
    (events, engine.stats(), engine.take_cache_events())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn invariants_hold_under_random_load(
        kv_blocks in 24..80u32,
        budget in 8..200u32,
        seqs in 1..12u32,
        arrivals in prop::collection::vec(arrival(), 1..40),
    ) {
        let (events, stats, cache_events) = play(kv_blocks, budget, seqs, &arrivals);
        prop_assert_eq!(stats.running + stats.waiting, 0);
        prop_assert_eq!(stats.kv_used_blocks, 0);
        prop_assert_eq!(stats.submitted, arrivals.len() as u64);
        prop_assert_eq!(stats.finished + stats.aborted, stats.submitted);
        prop_assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at));

        let mut generated = 0;
        for (id, arrival) in arrivals.iter().enumerate() {
            let tokens = outputs(&events, id as u64).len() as u32;
            generated += u64::from(tokens);
            let end = events.iter().find_map(|event| match event.kind {
                EventKind::Finished(account) if event.id.0 == id as u64 => Some(account),
                _ => None,
            });
            if let Some(account) = end {
                prop_assert_eq!(tokens, arrival.output);
                prop_assert_eq!(account.prompt_tokens, arrival.shared + arrival.own);
                prop_assert!(account.cached_tokens < account.prompt_tokens);
                prop_assert_eq!(account.cached_tokens % 16, 0);
                prop_assert!(account.arrived_at <= account.admitted_at);
                prop_assert!(account.admitted_at < account.first_token_at);
            } else {
                prop_assert!(arrival.abort_after_ms.is_some());
            }
        }
        prop_assert_eq!(generated, stats.generation_tokens);

        // A consumer that counts stores and removals knows exactly what is resident.
        let mut resident: HashMap<BlockHash, i64> = HashMap::new();
        for event in &cache_events {
            match event {
                CacheEvent::Stored { hashes, parent, tokens } => {
                    prop_assert_eq!(tokens.len(), hashes.len() * 16);
                    prop_assert!(parent.is_none_or(|parent| resident.contains_key(&parent)));
                    hashes.iter().for_each(|hash| *resident.entry(*hash).or_default() += 1);
                }
                CacheEvent::Removed { hashes } => {
                    hashes.iter().for_each(|hash| *resident.entry(*hash).or_default() -= 1);
                }
                CacheEvent::Cleared => resident.clear(),
            }
        }
        prop_assert!(resident.values().all(|&count| count >= 0));
        prop_assert_eq!(resident.values().sum::<i64>(), i64::from(stats.kv_hashed_blocks));

        prop_assert_eq!(play(kv_blocks, budget, seqs, &arrivals), (events, stats, cache_events));
    }
}
