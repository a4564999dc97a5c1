//! The container: a header, a table of sections, and the sections.
//!
//! ```text
//! magic "WPBUNDLE"        8 bytes
//! format version          u32
//! section count           u32
//! per section:            kind u32, codec u32, stored bytes u32, raw bytes u32, xxh3-64 of the stored bytes u64
//! xxh3-64 of all above    u64
//! sections, in the order of the table, each at a multiple of 8 bytes, padded with zeros
//! ```
//!
//! All numbers are little-endian. A reader checks the header's checksum before it believes any
//! length, every length before it slices, and every section's checksum before it looks inside.
//! Sections of unknown kind are skipped, so that a bundle may carry more than a reader knows.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::BundleError;
use crate::limits::{BUNDLE_BYTES_MAX, SECTION_BYTES_MAX, SECTIONS_MAX};

/// The version that this build writes and reads. Raised when a section's meaning changes.
pub const FORMAT_VERSION: u32 = 1;

pub(crate) const MAGIC: &[u8; 8] = b"WPBUNDLE";
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;
const ALIGN_BYTES: usize = 8;

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// JSON of [`BundleMeta`](crate::BundleMeta).
    Meta = 1,
    /// JSON of [`SpecialTokens`](crate::SpecialTokens).
    Special = 2,
    /// JSON array of `[name, source]`.
    Templates = 3,
    /// The whole canonical tokenizer.json, for models that [`Bpe`](crate::bpe::Bpe) cannot run.
    Tokenizer = 4,
    /// The canonical tokenizer.json without model and added tokens, for all others.
    Stages = 5,
    /// Added tokens: count u32, then per token id u32, flags u8, zero u8, length u16, bytes.
    Added = 6,
    /// JSON of `BpeConfig`.
    BpeConfig = 7,
    /// Texts of the tokens, each a length u16 and bytes.
    Tokens = 8,
    /// Hash table: token by bytes.
    TokenIndex = 9,
    /// Hash table: rank by pair.
    Merges = 10,
    /// What the merge of each rank makes, u32 each.
    Products = 11,
    /// Which classes of characters some merge joins, three u64 each.
    Joints = 12,
}

impl Kind {
    pub(crate) const ALL: [Self; 12] = [
        Self::Meta,
        Self::Special,
        Self::Templates,
        Self::Tokenizer,
        Self::Stages,
        Self::Added,
        Self::BpeConfig,
        Self::Tokens,
        Self::TokenIndex,
        Self::Merges,
        Self::Products,
        Self::Joints,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Meta => "metadata",
            Self::Special => "special tokens",
            Self::Templates => "templates",
            Self::Tokenizer => "tokenizer",
            Self::Stages => "stages",
            Self::Added => "added tokens",
            Self::BpeConfig => "model configuration",
            Self::Tokens => "token bytes",
            Self::TokenIndex => "token index",
            Self::Merges => "merge index",
            Self::Products => "merge products",
            Self::Joints => "joints",
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == code)
    }
}

/// Where the sections of a checked bundle lie.
#[derive(Debug)]
pub(crate) struct Layout {
    sections: Vec<(Kind, Range<usize>)>,
}

impl Layout {
    /// Checks header, lengths and checksums of a whole bundle.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BundleError> {
        if bytes.len() > BUNDLE_BYTES_MAX {
            return Err(oversized("bundle", bytes.len() as u64, BUNDLE_BYTES_MAX as u64));
        }
        if !bytes.starts_with(MAGIC) {
            return Err(BundleError::NotABundle);
        }
        let truncated = |expected: usize| BundleError::Truncated {
            found: bytes.len() as u64,
            expected: expected as u64,
        };
        let version = u32_at(bytes, 8).ok_or_else(|| truncated(HEADER_BYTES))?;
        if version != FORMAT_VERSION {
            return Err(BundleError::Version { found: version, expected: FORMAT_VERSION });
        }
        let count = u32_at(bytes, 12).ok_or_else(|| truncated(HEADER_BYTES))?;
        if count > SECTIONS_MAX {
            return Err(oversized("section table", count.into(), SECTIONS_MAX.into()));
        }
        let table_end = HEADER_BYTES + count as usize * ENTRY_BYTES;
        let head = bytes.get(..table_end).ok_or_else(|| truncated(table_end + CHECKSUM_BYTES))?;
        let sum = u64_at(bytes, table_end).ok_or_else(|| truncated(table_end + CHECKSUM_BYTES))?;
        if sum != xxh3_64(head) {
            return Err(BundleError::Checksum { section: "header" });
        }
        Self::parse_sections(bytes, count as usize, table_end + CHECKSUM_BYTES)
    }

    fn parse_sections(bytes: &[u8], count: usize, data_start: usize) -> Result<Self, BundleError> {
        let mut offset = data_start;
        let mut sections: Vec<(Kind, Range<usize>)> = Vec::with_capacity(count);
        let mut sums = Vec::with_capacity(count);
        for index in 0..count {
            let at = HEADER_BYTES + index * ENTRY_BYTES;
            let (Some(code), Some(codec), Some(stored), Some(raw), Some(sum)) = (
                u32_at(bytes, at),
                u32_at(bytes, at + 4),
                u32_at(bytes, at + 8),
                u32_at(bytes, at + 12),
                u64_at(bytes, at + 16),
            ) else {
                return Err(BundleError::malformed("header", "short table entry"));
            };
            if stored > SECTION_BYTES_MAX {
                return Err(oversized("section", stored.into(), SECTION_BYTES_MAX.into()));
            }
            let end = offset.saturating_add(stored as usize);
            if let Some(kind) = Kind::from_code(code) {
                if codec != 0 || raw != stored {
                    return Err(BundleError::malformed(
                        kind.name(),
                        format!("unknown codec {codec}"),
                    ));
                }
                if sections.iter().any(|(seen, _)| *seen == kind) {
                    return Err(BundleError::malformed(kind.name(), "listed twice"));
                }
                sections.push((kind, offset..end));
                sums.push(sum);
            }
            offset = end.next_multiple_of(ALIGN_BYTES);
        }
        if offset != bytes.len() {
            return Err(BundleError::Truncated {
                found: bytes.len() as u64,
                expected: offset as u64,
            });
        }
        for ((kind, range), sum) in sections.iter().zip(sums) {
            if bytes.get(range.clone()).map(xxh3_64) != Some(sum) {
                return Err(BundleError::Checksum { section: kind.name() });
            }
        }
        Ok(Self { sections })
    }

    /// Where a section lies, if there is one.
    pub(crate) fn find(&self, kind: Kind) -> Option<Range<usize>> {
        self.sections.iter().find(|(found, _)| *found == kind).map(|(_, range)| range.clone())
    }

    /// Where a section lies, or [`BundleError::Missing`].
    pub(crate) fn range(&self, kind: Kind) -> Result<Range<usize>, BundleError> {
        self.find(kind).ok_or(BundleError::Missing { section: kind.name() })
    }

    /// A section's bytes, or [`BundleError::Missing`].
    pub(crate) fn bytes<'a>(&self, bytes: &'a [u8], kind: Kind) -> Result<&'a [u8], BundleError> {
        Ok(bytes.get(self.range(kind)?).unwrap_or_default())
    }

    /// A section of JSON.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(
        &self,
        bytes: &[u8],
        kind: Kind,
    ) -> Result<T, BundleError> {
        serde_json::from_slice(self.bytes(bytes, kind)?)
            .map_err(|error| BundleError::malformed(kind.name(), error))
    }
}

/// Puts sections into a container.
#[cfg(feature = "write")]
pub(crate) fn assemble(sections: &[(Kind, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    for (kind, data) in sections {
        out.extend_from_slice(&(*kind as u32).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        out.extend_from_slice(&xxh3_64(data).to_le_bytes());
    }
    let sum = xxh3_64(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    for (_, data) in sections {
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(ALIGN_BYTES), 0);
    }
    out
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(eight.try_into().ok()?))
}

fn oversized(what: &'static str, size: u64, max: u64) -> BundleError {
    BundleError::Oversized { what, size, max }
}
