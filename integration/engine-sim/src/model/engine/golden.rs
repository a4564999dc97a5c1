//! Step by step against vLLM's own scheduler.
//!
//! `tests/golden/vllm-0.32.0-scheduler.json` records what it did with random workloads;
//! `tests/golden/vllm_scheduler.py` made it and describes it. The engine has to schedule the same
//! requests in the same order with the same number of tokens, find the same cached prefixes,
//! preempt the same requests, and store and evict the same blocks in the same order.

use std::collections::HashMap;

use serde::Deserialize;

use super::*;
use crate::model::prompt::{BlockHash, Prompt};

const BLOCK: u32 = 16;

#[derive(Deserialize)]
struct Case {
    seed: u64,
    blocks: u32,
    budget: u32,
    seqs: u32,
    prefix_cache_queries: u64,
    prefix_cache_hits: u64,
    requests: Vec<GoldenRequest>,
    steps: Vec<GoldenStep>,
}

/// A prompt: what it starts with, then tokens of its own.
#[derive(Deserialize)]
struct GoldenRequest {
    /// Starts with the first tokens of one of a few texts.
    family: Option<u32>,
    #[serde(default)]
    shared: u32,
    /// Starts with the prompt and the answer of another request.
    after: Option<usize>,
    /// Equals the prompt of another request.
    same: Option<usize>,
    own: u32,
    output: u32,
}

#[derive(Deserialize)]
struct GoldenStep {
    arrive: Vec<u64>,
    /// In scheduling order: request, and its computed tokens after the step.
    scheduled: Vec<(u64, u32)>,
    /// Request, and its cached tokens.
    admitted: Vec<(u64, u32)>,
    preempted: Vec<u64>,
    free: u32,
    abort: Vec<u64>,
    kv: Vec<Vec<serde_json::Value>>,
}

/// Replays a case.
struct Replay {
    engine: Engine,
    prompts: Vec<Vec<u32>>,
    outputs: Vec<Vec<u32>>,
    ordinals: HashMap<BlockHash, u64>,
}

impl Replay {
    fn new(case: &Case) -> Self {
        let profile = Profile {
            kv_tokens: case.blocks * BLOCK,
            max_num_batched_tokens: case.budget,
            max_num_seqs: case.seqs,
            ..Profile::named("a100-8b").unwrap()
        };
        let mut engine = Engine::new(profile, 5).unwrap();
        engine.set_reporting(Reporting { tokens: true, cache_events: true });
        Self {
            engine,
            prompts: vec![Vec::new(); case.requests.len()],
            outputs: vec![Vec::new(); case.requests.len()],
            ordinals: HashMap::new(),
        }
    }

    fn submit(&mut self, number: u64, request: &GoldenRequest) {
        let mut tokens = Vec::new();
        if let Some(family) = request.family {
            tokens.extend((0..request.shared).map(|at| family * 100_000 + at));
        }
        if let Some(other) = request.same {
            tokens.clone_from(&self.prompts[other]);
        }
        if let Some(other) = request.after {
            tokens.clone_from(&self.prompts[other]);
            tokens.extend_from_slice(&self.outputs[other]);
        }
        tokens.extend((0..request.own).map(|at| (1_000 + number as u32) * 100_000 + at));
        self.prompts[number as usize].clone_from(&tokens);
        let spec = RequestSpec {
            id: RequestId(number),
            prompt: Prompt::from_tokens("m", tokens, BLOCK).unwrap(),
            output_tokens: request.output,
        };
        self.engine.submit(self.engine.now, spec).unwrap();
    }

    /// Begins a step and compares it.
    fn begin(&mut self, golden: &GoldenStep) {
        let engine = &mut self.engine;
        assert!(engine.step.is_none(), "vLLM has nothing in flight here");
        let mut events = Vec::new();
        engine.begin_step(&mut events);
        let scheduled: Vec<(u64, u32)> = engine
            .step
            .iter()
            .flat_map(|step| &step.scheduled)
            .map(|part| (part.id.0, engine.request(part.slot).computed_tokens))
            .collect();
        assert_eq!(scheduled, golden.scheduled);
        let (mut admitted, mut preempted) = (Vec::new(), Vec::new());
        for event in events {
            match event.kind {
                EventKind::Admitted { cached_tokens, .. } => {
                    admitted.push((event.id.0, cached_tokens));
                }
                EventKind::Preempted => preempted.push(event.id.0),
                _ => panic!("a step begins with {event:?}"),
            }
        }
        preempted.sort_unstable();
        assert_eq!(admitted, golden.admitted);
        assert_eq!(preempted, golden.preempted);
        assert_eq!(engine.kv.free_blocks(), golden.free);
    }

    /// Ends the step and compares what became of the cache.
    fn end(&mut self, golden: &GoldenStep) {
        for &number in &golden.abort {
            assert!(self.engine.abort(RequestId(number)));
        }
        let mut events = Vec::new();
        if let Some(step) = self.engine.step.take() {
            self.engine.now = step.ends_at;
            self.engine.finish_step(step, &mut events);
        }
        for event in events {
            if let EventKind::FirstToken { token } | EventKind::Token { token } = event.kind {
                self.outputs[event.id.0 as usize].push(token);
            }
        }
        let kv: Vec<Vec<serde_json::Value>> =
            self.engine.take_cache_events().into_iter().map(|event| self.numbered(event)).collect();
        assert_eq!(kv, golden.kv);
    }

    fn numbered(&mut self, event: CacheEvent) -> Vec<serde_json::Value> {
        let mut number = |hash| {
            let next = self.ordinals.len() as u64;
            *self.ordinals.entry(hash).or_insert(next)
        };
        match event {
            CacheEvent::Stored { hashes, parent, .. } => {
                let parent = parent.map(&mut number);
                let mut row = vec!["stored".into(), parent.into()];
                row.extend(hashes.into_iter().map(|hash| number(hash).into()));
                row
            }
            CacheEvent::Removed { hashes } => {
                let mut row = vec!["removed".into()];
                row.extend(hashes.into_iter().map(|hash| number(hash).into()));
                row
            }
            CacheEvent::Cleared => vec!["cleared".into()],
        }
    }
}

#[test]
fn schedules_caches_evicts_and_preempts_as_vllm_does() {
    let text = include_str!("../../../tests/golden/vllm-0.32.0-scheduler.json");
    let cases: Vec<Case> = serde_json::from_str(text).unwrap();
    for case in &cases {
        let mut replay = Replay::new(case);
        for (at, step) in case.steps.iter().enumerate() {
            // Shown only when an assertion fails.
            println!("case {}, step {at}", case.seed);
            for &number in &step.arrive {
                replay.submit(number, &case.requests[number as usize]);
            }
            replay.begin(step);
            replay.end(step);
        }
        let stats = replay.engine.stats();
        assert_eq!((stats.running, stats.waiting), (0, 0));
        assert_eq!(stats.prefix_cache_queries, case.prefix_cache_queries);
        assert_eq!(stats.prefix_cache_hits, case.prefix_cache_hits);
    }
    let steps = || cases.iter().flat_map(|case| &case.steps);
    // The recording exercises what it is for.
    assert!(steps().map(|step| step.preempted.len()).sum::<usize>() > 20);
    assert!(
        steps().flat_map(|step| &step.admitted).filter(|(_, cached)| *cached > 0).count() > 100
    );
}
