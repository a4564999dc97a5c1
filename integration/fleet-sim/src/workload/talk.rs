//! Conversations: each request repeats all that was said before, answers included.
//!
//! Conversations begin by a Poisson process; within one, the next turn follows the answer after a
//! while. With a long shared prefix, many short turns and short waits they are agents that call
//! tools; with a short one and longer waits they are chats.

use std::sync::Arc;

use ahash::AHashMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use warmpath_engine_sim::model::SimTime;

use super::open::{poisson_times, wait};
use super::{Arrival, Request, Workload};
use crate::text::{Piece, mix};

/// The parameters of conversations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TalkSpec {
    /// Conversations that begin in a second.
    pub rate_per_s: f64,
    /// How many different beginnings (system prompts, tool lists) there are.
    pub prefixes: u64,
    /// Length of such a beginning in tokens, from and to.
    pub prefix_tokens: (u32, u32),
    /// Turns of a conversation, from and to.
    pub turns: (u32, u32),
    /// What is added before each turn (a question, a tool's result), in tokens, from and to.
    pub added_tokens: (u32, u32),
    /// Tokens of an answer, from and to.
    pub output_tokens: (u32, u32),
    /// Mean time between an answer and the next turn, in seconds.
    pub wait_s: f64,
    /// When conversations stop beginning and going on, in seconds.
    pub duration_s: f64,
}

/// Conversations at work.
#[derive(Debug)]
pub struct Talk {
    spec: TalkSpec,
    seed: u64,
    /// By user: one conversation each.
    live: AHashMap<u32, Conversation>,
}

#[derive(Debug)]
struct Conversation {
    rng: ChaCha8Rng,
    turns_left: u32,
}

impl Talk {
    /// Conversations with these parameters.
    #[must_use]
    pub fn new(spec: TalkSpec, seed: u64) -> Self {
        Self { spec, seed, live: AHashMap::new() }
    }

    fn turn(&mut self, user: u32, at: SimTime, mut pieces: Vec<Piece>) -> Option<Arrival> {
        let conversation = self.live.get_mut(&user)?;
        if conversation.turns_left == 0 || at.as_secs_f64() >= self.spec.duration_s {
            self.live.remove(&user);
            return None;
        }
        conversation.turns_left -= 1;
        let rng = &mut conversation.rng;
        pieces.push(Piece::Text { id: rng.random(), tokens: pick(rng, self.spec.added_tokens) });
        let output_tokens = pick(rng, self.spec.output_tokens);
        Some(Arrival {
            at,
            request: Request { user, pieces, output_tokens, output_tokens_max: None },
        })
    }
}

impl Workload for Talk {
    fn start(&mut self) -> Vec<Arrival> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let times = poisson_times(self.spec.rate_per_s, self.spec.duration_s, &mut rng);
        let mut arrivals = Vec::with_capacity(times.len());
        for (user, at) in (0..).zip(times) {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(u64::from(user) + 1);
            let id = mix(self.seed ^ mix(rng.random_range(0..self.spec.prefixes)));
            let (from, to) = self.spec.prefix_tokens;
            let tokens = from + (mix(id) % u64::from(to - from + 1)) as u32;
            let turns_left = pick(&mut rng, self.spec.turns);
            self.live.insert(user, Conversation { rng, turns_left });
            arrivals.extend(self.turn(user, at, vec![Piece::Text { id, tokens }]));
        }
        arrivals
    }

    fn answered(&mut self, now: SimTime, request: &Request, answer: &[u32]) -> Option<Arrival> {
        let conversation = self.live.get_mut(&request.user)?;
        let at = now + wait(self.spec.wait_s, &mut conversation.rng);
        let mut pieces = request.pieces.clone();
        pieces.push(Piece::Given(Arc::from(answer)));
        self.turn(request.user, at, pieces)
    }

    fn reads_answers(&self) -> bool {
        true
    }
}

fn pick(rng: &mut ChaCha8Rng, (from, to): (u32, u32)) -> u32 {
    rng.random_range(from..=to)
}
