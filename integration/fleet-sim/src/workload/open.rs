//! Open-loop workloads: requests come by a Poisson process, however slow the answers are.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};
use warmpath_engine_sim::model::SimTime;

use super::{Arrival, Request, Workload};
use crate::text::Piece;

/// What each request asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prompts {
    /// Nothing that anybody else asks.
    Unique {
        /// Length in tokens, from and to.
        tokens: (u32, u32),
    },
    /// One system prompt that all share, and a question of its own.
    Dominated {
        /// Length of the system prompt in tokens.
        system_tokens: u32,
        /// Length of a question in tokens, from and to.
        question_tokens: (u32, u32),
    },
}

/// The parameters of a stream of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenSpec {
    /// What is asked.
    pub prompts: Prompts,
    /// Requests a second.
    pub rate_per_s: f64,
    /// Tokens of an answer, from and to.
    pub output_tokens: (u32, u32),
    /// How many requests come at once, at evenly spaced times, all with one new prompt of
    /// `burst_tokens`.
    pub burst_requests: u32,
    /// Length of a burst's prompt in tokens.
    pub burst_tokens: u32,
    /// Time between bursts, in seconds.
    pub burst_every_s: f64,
    /// When requests stop, in seconds.
    pub duration_s: f64,
}

/// A list of arrivals that depend on no answer.
#[derive(Debug)]
pub struct Open {
    arrivals: Vec<Arrival>,
}

impl Open {
    /// A workload of these arrivals.
    #[must_use]
    pub fn new(arrivals: Vec<Arrival>) -> Self {
        Self { arrivals }
    }

    /// The stream with these parameters.
    #[must_use]
    pub fn poisson(spec: &OpenSpec, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let system: u64 = rng.random();
        let mut arrivals = Vec::new();
        let times = poisson_times(spec.rate_per_s, spec.duration_s, &mut rng);
        for (user, at) in (0..).zip(times) {
            let id: u64 = rng.random();
            let pieces = match spec.prompts {
                Prompts::Unique { tokens: (from, to) } => {
                    vec![Piece::Text { id, tokens: rng.random_range(from..=to) }]
                }
                Prompts::Dominated { system_tokens, question_tokens: (from, to) } => vec![
                    Piece::Text { id: system, tokens: system_tokens },
                    Piece::Text { id, tokens: rng.random_range(from..=to) },
                ],
            };
            let (from, to) = spec.output_tokens;
            let output_tokens = rng.random_range(from..=to);
            let request = Request { user, pieces, output_tokens, output_tokens_max: None };
            arrivals.push(Arrival { at, request });
        }
        arrivals.extend(bursts(spec, &mut rng));
        Self::new(arrivals)
    }
}

/// Users of bursts are numbered from here, apart from those of the stream.
pub const BURST_USERS: u32 = 1 << 24;

fn bursts(spec: &OpenSpec, rng: &mut ChaCha8Rng) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    if spec.burst_requests == 0 {
        return arrivals;
    }
    // Half a period in, so that the fleet is as busy as it usually is.
    let mut at_s = spec.burst_every_s / 2.0;
    let mut users = BURST_USERS..;
    while at_s < spec.duration_s {
        let id = rng.random();
        for user in users.by_ref().take(spec.burst_requests as usize) {
            let request = Request {
                user,
                pieces: vec![Piece::Text { id, tokens: spec.burst_tokens }],
                output_tokens: spec.output_tokens.0,
                output_tokens_max: None,
            };
            arrivals.push(Arrival { at: SimTime::from_secs_f64(at_s), request });
        }
        at_s += spec.burst_every_s;
    }
    arrivals
}

impl Workload for Open {
    fn start(&mut self) -> Vec<Arrival> {
        std::mem::take(&mut self.arrivals)
    }

    fn answered(&mut self, _: SimTime, _: &Request, _: &[u32]) -> Option<Arrival> {
        None
    }
}

/// The times of a Poisson process up to `duration_s`; none for a rate of 0.
pub(super) fn poisson_times(
    rate_per_s: f64,
    duration_s: f64,
    rng: &mut ChaCha8Rng,
) -> Vec<SimTime> {
    let mut times = Vec::new();
    let Ok(gap) = Exp::new(rate_per_s) else { return times };
    let mut at_s = gap.sample(rng);
    while at_s < duration_s {
        times.push(SimTime::from_secs_f64(at_s));
        at_s += gap.sample(rng);
    }
    times
}

/// A wait of `mean_s` seconds on average, exponentially distributed.
pub(super) fn wait(mean_s: f64, rng: &mut ChaCha8Rng) -> Duration {
    let wait_s = Exp::new(1.0 / mean_s).map_or(mean_s, |gap| gap.sample(rng));
    Duration::from_secs_f64(wait_s)
}
