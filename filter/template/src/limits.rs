//! Every limit of this crate, with its reason.

/// Longest template source. The longest official one known has 19 KB.
pub const SOURCE_BYTES_MAX: usize = 256 * 1024;

/// Most templates of one model. Models ship at most a handful ("default", "tool_use", "rag").
pub const TEMPLATES_MAX: usize = 16;

/// Deepest nesting of JSON in messages, tools and arguments, and of values that a template builds.
/// Python's own parser stops near 1000; 64 keeps every recursive walk within a wasm stack of 1 MB.
pub const VALUE_DEPTH_MAX: usize = 64;

/// Deepest nesting of blocks, macro calls and loops while a template runs.
pub const CALL_DEPTH_MAX: usize = 120;

/// Longest text that one operation makes of lists, dicts or many parts: twice the longest prompt.
/// A list can hold one string many times, so its text is not bounded by the memory it takes.
pub const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most items that one operation makes of a string's characters or parts.
pub const ITEMS_MAX: usize = 1_000_000;

/// Most messages of a conversation whose shape is kept; beyond, rendering is a small part of the work.
pub const SHAPE_MESSAGES_MAX: usize = 64;

/// Most texts of one: each message's content, or the text of each of its parts.
pub const SHAPE_TEXTS_MAX: usize = 256;

/// Longest key of a shape: everything of a request but its texts, so mostly tools. An agent's
/// tools have some 20 KB; beyond 64 KB the walk is no longer small beside rendering.
pub const SHAPE_KEY_BYTES_MAX: usize = 64 * 1024;

/// Most shapes that are kept, the least recently used go first: turns of a chat with and without a
/// system message and tools are some dozens.
pub const SHAPES_MAX: usize = 256;

/// Most bytes of all keys and shapes together, a part of a worker's memory that does not hurt.
pub const SHAPES_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How many shapes seen once are remembered by their hash. A shape is learned when it comes again,
/// so that requests that no other will be like cost no more than a hash.
pub const SHAPES_SEEN_MAX: usize = 128;

/// Most questions about texts that a shape may depend on: some for each of 64 messages.
pub const SHAPE_CONDITIONS_MAX: usize = 256;

/// After how many requests in a row whose texts answer otherwise a shape is learned anew.
pub const SHAPE_MISSES_MAX: u32 = 16;

/// Most values (a string counts one for each 64 bytes more) that learning one shape looks through;
/// some milliseconds. What needs more is not kept.
pub const SHAPE_SCAN_MAX: usize = 1_000_000;

/// Bounds on one render.
///
/// `fuel` bounds both time and memory: an instruction costs 1, and so do each
/// 64 bytes that the template reads, copies or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Work units. The default is enough for a prompt of several megabytes.
    pub fuel: u64,
    /// Longest prompt in bytes.
    pub output_bytes_max: usize,
    /// Deepest nesting of the request's JSON; at most [`VALUE_DEPTH_MAX`] is honoured.
    pub value_depth_max: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            fuel: 2_000_000,
            output_bytes_max: 8 * 1024 * 1024,
            value_depth_max: VALUE_DEPTH_MAX,
        }
    }
}
