//! What an engine reports.
//!
//! [`Event`]s concern one request each and come in the order of their time. [`CacheEvent`]s
//! concern the prefix cache and come in the order in which the cache changed; they are what an
//! engine publishes as KV events.

use super::prompt::BlockHash;
use super::time::SimTime;

/// Names a request within one engine; chosen by the caller, unique while the request lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// When it happened.
    pub at: SimTime,
    /// To which request.
    pub id: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventKind {
    /// It left the queue and its first tokens are being computed.
    Admitted {
        /// Leading tokens found in the prefix cache.
        cached_tokens: u32,
        /// Whether it ran before and lost its blocks to another request.
        resumed: bool,
    },
    /// Its first output token.
    FirstToken {
        /// The token's id.
        token: u32,
    },
    /// A further output token.
    Token {
        /// The token's id.
        token: u32,
    },
    /// It gave up its blocks to an older request and waits to be computed again.
    Preempted,
    /// It is complete. Its last token was reported just before.
    Finished(Finished),
}

/// The account of a complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
    /// Leading prompt tokens that were found in the prefix cache when it was first admitted.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// When it was submitted.
    pub arrived_at: SimTime,
    /// When it was first admitted.
    pub admitted_at: SimTime,
    /// When its first token came out.
    pub first_token_at: SimTime,
}

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks became findable. The same hash may be stored more than once; it is gone when it was
    /// removed as often.
    Stored {
        /// Their hashes, in prefix order.
        hashes: Vec<BlockHash>,
        /// The block before the first of them; `None` at the start of a prompt.
        parent: Option<BlockHash>,
        /// Their tokens, all blocks in a row; empty when the prompt was given by hashes.
        tokens: Vec<u32>,
    },
    /// Blocks were evicted.
    Removed {
        /// Their hashes.
        hashes: Vec<BlockHash>,
    },
    /// The whole cache was dropped.
    Cleared,
}
