//! The stress mix: users who ask about a pool of documents.
//!
//! 10% of requests are short fixed questions, 20% a question under a small system prompt, 30% and
//! 40% a question about a large and an extra large document. In a closed loop each user thinks
//! U(0.5, 2) s between an answer and the next question; in an open one, questions come by a Poisson
//! process and each is some user's.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use warmpath_engine_sim::model::SimTime;

use super::open::poisson_times;
use super::{Arrival, Request, Workload};
use crate::text::{Piece, mix};

/// Fixed short questions.
const SHORT_QUESTIONS: u64 = 20;

/// Length of a filler in tokens, from and to.
pub const FILLER_TOKENS: (u32, u32) = (2_000, 4_000);

/// Small system prompts.
const SYSTEM_PROMPTS: u64 = 5;

/// From this length on a document is extra large.
const EXTRA_LARGE_TOKENS: u32 = 4_000;

/// Which documents are asked about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pool {
    /// All of them, at any time.
    Fixed,
    /// A window that moves through them, as a day's topics do.
    Churn {
        /// Documents in the window.
        window: u64,
        /// Documents by which it moves.
        advance: u64,
        /// How often it moves, in seconds.
        every_s: f64,
        /// Share of requests that are fillers: a text that nobody sends again.
        fillers: f64,
    },
}

/// The parameters of the mix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StressSpec {
    /// Users at once.
    pub users: u32,
    /// Questions a second in an open loop; `None` is a closed one.
    pub rate_per_s: Option<f64>,
    /// Documents in the pool.
    pub documents: u64,
    /// Their length in tokens, from and to.
    pub document_tokens: (u32, u32),
    /// Which of them are asked about.
    pub pool: Pool,
    /// Probability that a document is one of the pool, which all users share; otherwise it is the
    /// user's own, which the same user asks about again.
    pub shared_documents: f64,
    /// The same for the small system prompts.
    pub shared_systems: f64,
    /// Tokens of each answer.
    pub output_tokens: u32,
    /// When users stop asking, in seconds.
    pub duration_s: f64,
}

/// The mix at work.
#[derive(Debug)]
pub struct Stress {
    spec: StressSpec,
    seed: u64,
    /// Length of each document, in tokens.
    lengths: Vec<u32>,
    users: Vec<ChaCha8Rng>,
}

impl Stress {
    /// The mix with these parameters.
    #[must_use]
    pub fn new(spec: StressSpec, seed: u64) -> Self {
        let (from, to) = spec.document_tokens;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let lengths = (0..spec.documents).map(|_| rng.random_range(from..=to)).collect();
        let users = (0..spec.users)
            .map(|user| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(u64::from(user) + 1);
                rng
            })
            .collect();
        Self { spec, seed, lengths, users }
    }

    /// The user's next question after `now`, in a closed loop.
    fn next(&mut self, user: u32, now: SimTime) -> Option<Arrival> {
        let rng = self.users.get_mut(user as usize)?;
        let at = now + Duration::from_secs_f64(rng.random_range(0.5..2.0));
        (at.as_secs_f64() < self.spec.duration_s).then(|| self.ask(user, at))
    }

    fn ask(&mut self, user: u32, at: SimTime) -> Arrival {
        let spec = self.spec;
        let rng = &mut self.users[user as usize];
        let mut ask = Ask { spec: &spec, seed: self.seed, lengths: &self.lengths, user, at, rng };
        let request = Request {
            user,
            pieces: ask.pieces(),
            output_tokens: spec.output_tokens,
            output_tokens_max: Some(spec.output_tokens),
        };
        Arrival { at, request }
    }
}

impl Workload for Stress {
    fn start(&mut self) -> Vec<Arrival> {
        let Some(rate_per_s) = self.spec.rate_per_s else {
            return (0..self.spec.users)
                .filter_map(|user| self.next(user, SimTime::ZERO))
                .collect();
        };
        let mut rng = ChaCha8Rng::seed_from_u64(mix(self.seed));
        let times = poisson_times(rate_per_s, self.spec.duration_s, &mut rng);
        times
            .into_iter()
            .map(|at| {
                let user = rng.random_range(0..self.spec.users);
                self.ask(user, at)
            })
            .collect()
    }

    fn answered(&mut self, now: SimTime, request: &Request, _: &[u32]) -> Option<Arrival> {
        if self.spec.rate_per_s.is_some() { None } else { self.next(request.user, now) }
    }
}

/// One question in the making.
struct Ask<'a> {
    spec: &'a StressSpec,
    seed: u64,
    lengths: &'a [u32],
    user: u32,
    at: SimTime,
    rng: &'a mut ChaCha8Rng,
}

impl Ask<'_> {
    fn pieces(&mut self) -> Vec<Piece> {
        if let Pool::Churn { fillers, .. } = self.spec.pool
            && self.rng.random_bool(fillers)
        {
            let (from, to) = FILLER_TOKENS;
            return vec![self.question(from..to + 1)];
        }
        match self.rng.random_range(0..100) {
            0..10 => {
                let question = self.rng.random_range(0..SHORT_QUESTIONS);
                let id = self.id("short", question);
                vec![Piece::Text { id, tokens: 30 + (mix(id) % 90) as u32 }]
            }
            10..30 => {
                let system = if self.rng.random_bool(self.spec.shared_systems) {
                    let system = self.rng.random_range(0..SYSTEM_PROMPTS);
                    self.id("system", system)
                } else {
                    self.id("own system", u64::from(self.user))
                };
                let tokens = 200 + (mix(system) % 300) as u32;
                vec![Piece::Text { id: system, tokens }, self.question(50..150)]
            }
            30..60 => vec![self.document(false), self.question(20..60)],
            _ => vec![self.document(true), self.question(20..60)],
        }
    }

    fn document(&mut self, extra_large: bool) -> Piece {
        if !self.rng.random_bool(self.spec.shared_documents) {
            let id = self.id("own document", u64::from(self.user) * 2 + u64::from(extra_large));
            let (from, to) = self.spec.document_tokens;
            return Piece::Text { id, tokens: from + (mix(id) % u64::from(to - from + 1)) as u32 };
        }
        // A class that no document belongs to takes any.
        let active = self.active();
        let fits = |document: &u64| {
            (self.lengths[*document as usize] >= EXTRA_LARGE_TOKENS) == extra_large
        };
        let mut choice: Vec<u64> = active.iter().copied().filter(fits).collect();
        if choice.is_empty() {
            choice = active;
        }
        let document = choice[self.rng.random_range(0..choice.len())];
        Piece::Text { id: self.id("document", document), tokens: self.lengths[document as usize] }
    }

    /// Documents that are asked about at this moment.
    fn active(&self) -> Vec<u64> {
        match self.spec.pool {
            Pool::Fixed => (0..self.spec.documents).collect(),
            Pool::Churn { window, advance, every_s, .. } => {
                let first = (self.at.as_secs_f64() / every_s) as u64 * advance;
                (first..first + window).map(|document| document % self.spec.documents).collect()
            }
        }
    }

    fn question(&mut self, tokens: std::ops::Range<u32>) -> Piece {
        Piece::Text { id: self.rng.random(), tokens: self.rng.random_range(tokens) }
    }

    fn id(&self, kind: &str, number: u64) -> u64 {
        let kind = kind.bytes().fold(self.seed, |id, byte| mix(id ^ u64::from(byte)));
        mix(kind ^ number)
    }
}
