//! Bounds on what a bundle may hold, each far above what models ship, so that a damaged or hostile
//! file is refused before anything of its claimed size is allocated.

/// The largest bundle, in bytes. The biggest tokenizer in use (262,144 tokens, 514,906 merges)
/// packs into about 15 MB; Envoy caps a fetched body at 32 MiB.
pub const BUNDLE_BYTES_MAX: usize = 32 << 20;

/// The most sections a bundle may list. The format defines fewer than ten.
pub const SECTIONS_MAX: u32 = 32;

/// The largest unpacked section, in bytes.
pub const SECTION_BYTES_MAX: u32 = 64 << 20;

/// The most chat templates. Models ship one to four.
pub const TEMPLATES_MAX: usize = 64;

/// The largest chat template, in bytes. The longest that models ship have about 25 KB.
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// The longest model name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// The longest text tokenized at once, in bytes: spans are 32-bit offsets into the normalized
/// text, and a normalizer may triple it.
pub const TEXT_BYTES_MAX: usize = 256 << 20;

/// The most added tokens. Gemma 3 has 6,415.
pub const ADDED_TOKENS_MAX: u32 = 65_536;

/// The largest JSON of a tokenizer's stages, in bytes. Real ones have less than 8 KB, or 400 KB
/// with a SentencePiece character map.
pub const STAGES_BYTES_MAX: usize = 2 << 20;
