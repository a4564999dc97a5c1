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
