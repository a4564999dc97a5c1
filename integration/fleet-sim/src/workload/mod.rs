//! Workloads: who asks what, and when.
//!
//! In: parameters and a seed. Out: arrivals. An open-loop workload gives all of them at the start;
//! a closed-loop one gives each user's next request when the last one is answered. What a user asks
//! depends on the seed and the user only, never on the policy, so that arms differ in placement
//! alone.

mod open;
mod stress;
mod talk;
pub mod trace;

pub use open::{BURST_USERS, Open, OpenSpec, Prompts};
pub use stress::{Pool, Stress, StressSpec};
pub use talk::{Talk, TalkSpec};
use warmpath_engine_sim::model::SimTime;

use crate::text::Piece;

/// What kind of request it is, for figures by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A prompt of up to a few hundred tokens.
    Short,
    /// A prompt of a few thousand tokens.
    Large,
    /// A prompt of at least 4,000 tokens.
    ExtraLarge,
}

impl Class {
    /// The class of a prompt of this length.
    #[must_use]
    pub fn of(prompt_tokens: usize) -> Self {
        match prompt_tokens {
            0..1_000 => Self::Short,
            1_000..4_000 => Self::Large,
            _ => Self::ExtraLarge,
        }
    }
}

/// One request before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks: a user or a conversation. Also the session that a session policy hashes.
    pub user: u32,
    /// The prompt.
    pub pieces: Vec<Piece>,
    /// Tokens that the engine will generate.
    pub output_tokens: u32,
    /// The limit that the request names; absent in most chats.
    pub output_tokens_max: Option<u32>,
}

/// A request and when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: SimTime,
    /// What.
    pub request: Request,
}

/// A source of requests.
pub trait Workload {
    /// The requests that depend on no answer, in any order.
    fn start(&mut self) -> Vec<Arrival>;

    /// What follows the answer to `request`, which came at `now` with these tokens. Tokens are
    /// given only if [`Workload::reads_answers`].
    fn answered(&mut self, now: SimTime, request: &Request, answer: &[u32]) -> Option<Arrival>;

    /// Whether later prompts contain earlier answers.
    fn reads_answers(&self) -> bool {
        false
    }
}
