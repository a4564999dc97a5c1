//! Which characters of a byte-level model may enter the merges whole.
//!
//! A byte-level model starts from bytes, so a Chinese character is three symbols that as a rule
//! merge into one before anything else happens to them. Starting from that one symbol gives the
//! same ids if nothing can come in between. Let the character's bytes merge, lowest rank first,
//! into its token, and let `r` be the highest rank of these merges. It is safe if
//! - at each step, every merge of the outer symbols with a neighbour has a higher rank than the
//!   step: no neighbour can take a part away;
//! - every merge of the finished token has a higher rank than `r`: starting with it does not let
//!   such a merge happen before others that would have come first.
//!
//! Neighbours begin and end at character boundaries, since other characters are safe, too, or come
//! as bytes that begin or end one. Merges with tokens that begin with a continuation byte do
//! not count.

use super::WriteError;
use super::bpe::Source;

const NEVER: u32 = u32::MAX;

pub(super) struct Seeds<'a> {
    source: &'a Source,
    byte_tokens: Vec<u32>,
    /// Lowest rank of a merge of this token with something before it that ends a character.
    taken_from_left: Vec<u32>,
    /// Lowest rank of a merge of this token with something after it that begins a character.
    taken_from_right: Vec<u32>,
}

impl<'a> Seeds<'a> {
    pub(super) fn new(source: &'a Source) -> Result<Self, WriteError> {
        let mut taken_from_left = vec![NEVER; source.id_space()];
        let mut taken_from_right = vec![NEVER; source.id_space()];
        for ((left, right), rank) in &source.ranks {
            let ends = source.text_bytes(*left).and_then(|bytes| bytes.last().copied());
            let begins = source.text_bytes(*right).and_then(|bytes| bytes.first().copied());
            // A lead byte ends no character, a continuation byte begins none.
            if ends.is_none_or(|byte| byte < 0xC0)
                && let Some(lowest) = taken_from_left.get_mut(*right as usize)
            {
                *lowest = (*lowest).min(*rank);
            }
            if begins.is_none_or(|byte| !(0x80..0xC0).contains(&byte))
                && let Some(lowest) = taken_from_right.get_mut(*left as usize)
            {
                *lowest = (*lowest).min(*rank);
            }
        }
        Ok(Self { source, byte_tokens: source.byte_tokens()?, taken_from_left, taken_from_right })
    }

    /// Whether `text`, if it is one character of several bytes, may start as token `id`.
    pub(super) fn is_safe(&self, text: &str, id: u32) -> bool {
        text.chars().count() == 1 && text.len() > 1 && self.assembles(text, id).is_some()
    }

    fn assembles(&self, text: &str, id: u32) -> Option<()> {
        let mut symbols: Vec<u32> = text
            .bytes()
            .map(|byte| self.byte_tokens.get(usize::from(byte)).copied())
            .collect::<Option<_>>()?;
        let mut highest = 0;
        while symbols.len() > 1 {
            let (rank, at) = symbols
                .windows(2)
                .enumerate()
                .filter_map(|(at, pair)| {
                    let pair = (*pair.first()?, *pair.get(1)?);
                    Some((*self.source.ranks.get(&pair)?, at))
                })
                .min()?;
            let first = *symbols.first()?;
            let last = *symbols.last()?;
            if *self.taken_from_left.get(first as usize)? <= rank
                || *self.taken_from_right.get(last as usize)? <= rank
            {
                return None;
            }
            let [_, _, product] = *self.source.merges.get(rank as usize)?;
            *symbols.get_mut(at)? = product;
            symbols.remove(at + 1);
            highest = highest.max(rank);
        }
        let early = self.taken_from_left.get(id as usize)? <= &highest
            || self.taken_from_right.get(id as usize)? <= &highest;
        (symbols == [id] && !early).then_some(())
    }
}
