//! Little-endian reading and writing of stored values.
//!
//! Readers return `None` on short input instead of failing: a value of an unknown layout is
//! treated as missing.

use std::ops::Deref;

use xxhash_rust::xxh3::xxh3_64;

/// Version of every stored value's layout; part of the key prefix too, so that a filter upgrade
/// never reads its predecessor's values.
pub const LAYOUT_VERSION: u8 = 2;

/// Prefix of every key.
const KEY_PREFIX: &str = "wp2/";

/// Bytes of the longest key, with room to spare.
const KEY_BYTES_MAX: usize = 40;

/// A key of the shared store: text, in place, since a decision makes a dozen of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The text, then zeros.
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl Key {
    const EMPTY: Self = Self { bytes: [0; KEY_BYTES_MAX], len: 0 };

    /// The key of what there is one of, or the start of a longer key; `kind` tells what it is.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self::EMPTY.then(KEY_PREFIX).then(kind)
    }

    /// The key of what belongs to one configuration or model, by its name.
    #[must_use]
    pub fn named(kind: &str, name: &str) -> Self {
        Self::new(kind).then("/").hex(xxh3_64(name.as_bytes()), 16)
    }

    /// The key that is written as `text`; `None` when it is longer than any key.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        (text.len() <= KEY_BYTES_MAX).then(|| Self::EMPTY.then(text))
    }

    /// This key, then `text`.
    #[must_use]
    pub fn then(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// This key, then `number` in decimal.
    #[must_use]
    pub fn decimal(self, number: u64) -> Self {
        let mut digits = [0; 20];
        let mut start = digits.len();
        let mut rest = number;
        for (at, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (rest % 10) as u8;
            start = at;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.bytes(digits.get(start..).unwrap_or_default())
    }

    /// This key, then the last `digits` hexadecimal digits of `number`.
    #[must_use]
    pub fn hex(self, number: u64, digits: u32) -> Self {
        (0..digits).rev().fold(self, |key, digit| {
            let value = (number >> (4 * digit)) as u8 & 15;
            key.bytes(&[if value < 10 { b'0' + value } else { b'a' + value - 10 }])
        })
    }

    /// This key, then `bytes` of ASCII, as far as there is room.
    fn bytes(mut self, bytes: &[u8]) -> Self {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let len = bytes.len().min(room.len());
        if let (Some(room), Some(bytes)) = (room.get_mut(..len), bytes.get(..len)) {
            room.copy_from_slice(bytes);
            self.len += len;
        }
        self
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        // Only whole texts are put in; a cut one is the key of nothing.
        self.bytes.get(..self.len).and_then(|it| std::str::from_utf8(it).ok()).unwrap_or_default()
    }
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

    /// A reader of `bytes`, which belong to a value whose version was checked.
    #[must_use]
    pub fn within(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// All bytes that are left.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Passes over `bytes` bytes.
    pub fn skip(&mut self, bytes: usize) -> Option<()> {
        self.bytes(bytes).map(|_| ())
    }

    /// The next `bytes` bytes.
    pub fn bytes(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(head)
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

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The finished value.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_text() {
        assert_eq!(&*Key::new("h"), "wp2/h");
        assert_eq!(&*Key::new("v/").decimal(0), "wp2/v/0");
        let bucket = Key::new("i").decimal(10_408).then("/").decimal(u32::MAX.into());
        assert_eq!(&*bucket, "wp2/i10408/4294967295");
        assert_eq!(&*Key::new("c/").hex(0x0A0B_90FF, 8), "wp2/c/0a0b90ff");
        assert_eq!(Key::named("b", "x").len(), "wp2/b/".len() + 16);
        assert_eq!(Key::of(&bucket), Some(bucket));
    }

    #[test]
    fn longer_than_any_key_is_no_key() {
        assert!(Key::of(&"k".repeat(KEY_BYTES_MAX)).is_some());
        assert_eq!(Key::of(&"k".repeat(KEY_BYTES_MAX + 1)), None);
    }
}
