//! Every bound on what comes from outside, in one place.
//!
//! Exceeding one of them is answered with a 4xx or a named error, never with unbounded memory.

/// The largest request body that is read. Long-context prompts with inline images stay below it.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bodies above this are parsed and tokenized off the async workers, so that one large prompt does
/// not hold up the token streams of the others.
pub const INLINE_PARSE_BYTES_MAX: usize = 256 * 1024;

/// The most prompts in one completions request. Each becomes a request of its own in the engine.
pub const PROMPTS_PER_REQUEST_MAX: usize = 256;

/// Requests an engine holds at once, running and waiting together. A real engine's queue is
/// bounded by its clients; this bound only keeps a runaway load generator from eating the memory.
pub const REQUESTS_IN_ENGINE_MAX: usize = 65_536;

/// Commands queued for an engine's drive loop before senders wait.
pub const COMMANDS_QUEUED_MAX: usize = 1_024;

/// Served requests that `/sim/requests` remembers for each engine; the oldest goes first.
pub const REQUEST_RECORDS_MAX: usize = 16_384;

/// Bytes of the request body that a record keeps, enough to tell requests apart.
pub const RECORD_BODY_BYTES_MAX: usize = 80;

/// Header bytes (names and values) that a record keeps; further headers are left out.
pub const RECORD_HEADER_BYTES_MAX: usize = 4_096;

/// Block events kept until somebody drains them. Beyond it further events are counted and dropped,
/// which a consumer sees as a gap.
pub const CACHE_EVENTS_UNDRAINED_MAX: usize = 1_000_000;

/// The most KV blocks a profile may ask for: block ids are 32 bits wide and the pool is allocated
/// up front, at about 40 bytes a block.
pub const KV_BLOCKS_MAX: u32 = 1 << 26;

/// The most engines one process serves.
pub const ENGINES_MAX: usize = 256;
