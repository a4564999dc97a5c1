//! Where a word may be cut without changing its ids.
//!
//! A token that spans two neighbouring characters was once made by a merge that joined them: one
//! whose left side ends in the first and whose right side begins with the second. Where the model
//! has no such merge, the two sides never meet, and each can be tokenized, or looked up, by
//! itself. Models of the SentencePiece kind hand over a whole text as one word, which such cuts
//! break into what are words to the reader: no merge of Llama's joins anything to a `▁` after it.
//!
//! Characters fall into 130 classes: each ASCII character, `▁`, all others. The table says for
//! each pair of classes whether some merge joins them.

use crate::error::BundleError;
use crate::format::{Kind, Layout, u64_at};

/// The character that stands for a space.
pub(crate) const METASPACE: char = '▁';

const CLASS_METASPACE: usize = 128;
const CLASS_OTHER: usize = 129;
pub(crate) const CLASSES: usize = 130;
/// 64-bit words of a row.
const ROW_WORDS: usize = 3;
const TABLE_BYTES: usize = CLASSES * ROW_WORDS * 8;

/// The class of a character.
#[inline]
pub(crate) fn class_of(char: char) -> usize {
    match char {
        char if char.is_ascii() => char as usize,
        METASPACE => CLASS_METASPACE,
        _ => CLASS_OTHER,
    }
}

/// The table of a model.
#[derive(Debug, Clone)]
pub(crate) struct Cuts {
    /// By the class before and the class after, a bit: set if a merge joins them.
    rows: Box<[[u64; ROW_WORDS]]>,
}

impl Cuts {
    /// The table of a bundle, if it has one.
    pub(crate) fn read(bytes: &[u8], layout: &Layout) -> Result<Option<Self>, BundleError> {
        let Some(range) = layout.find(Kind::Joints) else {
            return Ok(None);
        };
        if range.len() != TABLE_BYTES {
            return Err(BundleError::malformed(Kind::Joints.name(), "wrong size"));
        }
        let word = |at| u64_at(bytes, range.start + 8 * at).unwrap_or(u64::MAX);
        let rows = (0..CLASSES)
            .map(|row| std::array::from_fn(|column| word(row * ROW_WORDS + column)))
            .collect();
        Ok(Some(Self { rows }))
    }

    /// The first cut after `start`, before `end`.
    #[inline]
    pub(crate) fn next(&self, text: &str, start: usize, end: usize) -> Option<usize> {
        let word = text.get(start..end)?;
        let mut chars = word.char_indices();
        let (_, first) = chars.next()?;
        let mut row = self.rows.get(class_of(first))?;
        for (at, char) in chars {
            let class = class_of(char);
            if row.get(class / 64)? >> (class % 64) & 1 == 0 {
                return Some(start + at);
            }
            row = self.rows.get(class)?;
        }
        None
    }
}

#[cfg(feature = "write")]
impl Cuts {
    /// A table of which no pair of classes is joined yet.
    pub(crate) fn everywhere() -> Self {
        Self { rows: vec![[0; ROW_WORDS]; CLASSES].into_boxed_slice() }
    }

    /// Forbids cuts between two classes.
    pub(crate) fn join(&mut self, before: usize, after: usize) {
        let row = self.rows.get_mut(before);
        if let Some(word) = row.and_then(|row| row.get_mut(after / 64)) {
            *word |= 1 << (after % 64);
        }
    }

    /// The section.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.rows.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }
}
