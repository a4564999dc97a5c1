//! Little-endian reading and writing of stored values.
//!
//! Readers return `None` on short input instead of failing: a value of an unknown layout is
//! treated as missing.

use xxhash_rust::xxh3::xxh3_64;

/// Version of every stored value's layout; part of the key prefix too, so that a filter upgrade
/// never reads its predecessor's values.
pub const LAYOUT_VERSION: u8 = 2;

/// Prefix of every key.
pub const KEY_PREFIX: &str = "wp2";

/// Key of what belongs to one configuration or model, by its name; `kind` tells what.
#[must_use]
pub fn named_key(kind: char, name: &str) -> String {
    format!("{KEY_PREFIX}/{kind}/{:016x}", xxh3_64(name.as_bytes()))
}

/// Reads fields from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from the start, after checking the leading layout version.
    #[must_use]
    pub fn versioned(bytes: &'a [u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        (version == LAYOUT_VERSION).then_some(Self { rest })
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    /// Passes over `bytes` bytes.
    pub fn skip(&mut self, bytes: usize) -> Option<()> {
        self.rest = self.rest.get(bytes..)?;
        Some(())
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Appends fields to a byte vector.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A value that starts with the layout version; `capacity_bytes` is a hint.
    #[must_use]
    pub fn versioned(capacity_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity_bytes);
        bytes.push(LAYOUT_VERSION);
        Self { bytes }
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// The finished value.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
