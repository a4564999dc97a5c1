//! The added tokens of a bundle, rebuilt as the library's matcher.

use tokenizers::pipeline::NormalizerChain;
use tokenizers::pipeline::PipelineNormalizer;
use tokenizers::pipeline::PipelinePatternMatcher;
use tokenizers::vocab::bucket_added_vocabulary::{AddedToken, AddedVocabulary};

use crate::bpe::index::ID_MAX;
use crate::error::BundleError;
use crate::format::{Kind, Layout, u32_at};
use crate::limits::ADDED_TOKENS_MAX;

pub(crate) const FLAG_SINGLE_WORD: u8 = 1;
pub(crate) const FLAG_LSTRIP: u8 = 2;
pub(crate) const FLAG_RSTRIP: u8 = 4;
pub(crate) const FLAG_NORMALIZED: u8 = 8;
pub(crate) const FLAG_SPECIAL: u8 = 16;

const SECTION: &str = "added tokens";

/// The library's matcher, which looks at every byte, behind a search for the bytes that tokens start
/// with, which looks at sixteen at a time. Matches are the same.
pub(crate) struct AddedTokens {
    vocabulary: AddedVocabulary,
    raw: Starts,
    normalized: Starts,
}

impl AddedTokens {
    /// # Errors
    /// [`BundleError::Tokenizer`] for a token that the library panics on: where a text has it inside a
    /// longer word and it must be a word of its own, the search goes on one byte after its start, which
    /// must not be inside a character.
    pub(crate) fn new(vocabulary: AddedVocabulary) -> Result<Self, BundleError> {
        let (mut raw, mut normalized) = (Starts::None, Starts::None);
        for token in vocabulary.get_added_tokens_decoder().values() {
            if token.single_word && !token.content.starts_with(|first: char| first.is_ascii()) {
                let content = &token.content;
                let detail = format!("the added token {content:?} is `single_word` and not ASCII");
                return Err(BundleError::Tokenizer { detail });
            }
            if token.normalized { &mut normalized } else { &mut raw }.add(token);
        }
        Ok(Self { vocabulary, raw, normalized })
    }

    /// The id of the token that is written as `content`.
    pub(crate) fn token_to_id(&self, content: &str) -> Option<u32> {
        self.vocabulary.token_to_id(content)
    }
}

impl PipelinePatternMatcher for AddedTokens {
    fn extract_next(
        &self,
        bytes: &[u8],
        search_offset: usize,
        is_normalized: bool,
        encode_special_tokens: bool,
    ) -> Option<((usize, usize), u32)> {
        let starts = if is_normalized { &self.normalized } else { &self.raw };
        let start = search_offset + starts.find(bytes.get(search_offset..)?)?;
        self.vocabulary.extract_next(bytes, start, is_normalized, encode_special_tokens)
    }
}

/// The bytes that some tokens start with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starts {
    None,
    One(u8),
    Two(u8, u8),
    Three(u8, u8, u8),
    /// Too many to search for, or a match depends on what stands before it.
    Anywhere,
}

impl Starts {
    fn add(&mut self, token: &AddedToken) {
        let Some(&start) = token.content.as_bytes().first() else { return };
        *self = match *self {
            _ if token.single_word || token.lstrip => Self::Anywhere,
            Self::None => Self::One(start),
            Self::One(a) if start != a => Self::Two(a, start),
            Self::Two(a, b) if ![a, b].contains(&start) => Self::Three(a, b, start),
            Self::Three(a, b, c) if ![a, b, c].contains(&start) => Self::Anywhere,
            same => same,
        };
    }

    /// Where in `bytes` the first match may start; nothing when there is none.
    fn find(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::None => None,
            Self::One(a) => memchr::memchr(a, bytes),
            Self::Two(a, b) => memchr::memchr2(a, b, bytes),
            Self::Three(a, b, c) => memchr::memchr3(a, b, c, bytes),
            Self::Anywhere => Some(0),
        }
    }
}

/// Reads the section and builds the matcher. Every token has its id written beside it, so the
/// library never has to invent one.
pub(crate) fn read(
    bytes: &[u8],
    layout: &Layout,
    normalizers: &[PipelineNormalizer],
) -> Result<AddedVocabulary, BundleError> {
    let data = layout.bytes(bytes, Kind::Added)?;
    let entries = parse(data)?;
    // The library matches an added token as if it stood inside the text, where a metaspace
    // normalizer prepends nothing.
    let normalizers = match normalizers.split_last() {
        Some((PipelineNormalizer::Metaspace(_), declared)) => declared,
        _ => normalizers,
    };
    let ids: ahash::AHashMap<&str, u32> =
        entries.iter().map(|(id, token)| (token.content.as_str(), *id)).collect();
    let mut added = AddedVocabulary::new();
    added
        .add_tokens(
            entries.iter().map(|(_, token)| token.clone()),
            0,
            |content| ids.get(content).copied(),
            Some(&NormalizerChain(normalizers)),
        )
        .map_err(|error| BundleError::Tokenizer { detail: error.to_string() })?;
    Ok(added)
}

fn parse(data: &[u8]) -> Result<Vec<(u32, AddedToken)>, BundleError> {
    let short = || BundleError::malformed(SECTION, "ends early");
    let count = u32_at(data, 0).ok_or_else(short)?;
    if count > ADDED_TOKENS_MAX {
        return Err(BundleError::Oversized {
            what: SECTION,
            size: count.into(),
            max: ADDED_TOKENS_MAX.into(),
        });
    }
    let mut entries = Vec::with_capacity(count as usize);
    let mut at = 4;
    for _ in 0..count {
        let id = u32_at(data, at).ok_or_else(short)?;
        let Some(&[flags, _, low, high]) = data.get(at + 4..at + 8) else {
            return Err(short());
        };
        at += 8;
        let end = at + usize::from(u16::from_le_bytes([low, high]));
        let content = std::str::from_utf8(data.get(at..end).ok_or_else(short)?)
            .map_err(|error| BundleError::malformed(SECTION, error))?;
        at = end;
        if id > ID_MAX || content.is_empty() {
            return Err(BundleError::malformed(SECTION, format!("token id {id}")));
        }
        entries.push((
            id,
            AddedToken {
                content: content.to_owned(),
                single_word: flags & FLAG_SINGLE_WORD != 0,
                lstrip: flags & FLAG_LSTRIP != 0,
                rstrip: flags & FLAG_RSTRIP != 0,
                normalized: flags & FLAG_NORMALIZED != 0,
                special: flags & FLAG_SPECIAL != 0,
            },
        ));
    }
    if at != data.len() {
        return Err(BundleError::malformed(SECTION, "goes on after its end"));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Contents whose first bytes are few or many, and whose beginnings overlap.
    const CONTENTS: [&str; 8] = ["<a>", "<a><b", "<", "[x]", "  ", "é!", "中", "b"];

    fn tokens() -> impl Strategy<Value = Vec<AddedToken>> {
        let token =
            (0..CONTENTS.len(), prop::array::uniform3(prop::bool::weighted(0.1)), any::<bool>());
        let token = token.prop_map(|(content, [lstrip, rstrip, single_word], normalized)| {
            let token = AddedToken::from(CONTENTS[content], true).normalized(normalized);
            token.lstrip(lstrip).rstrip(rstrip).single_word(single_word)
        });
        prop::collection::vec(token, 0..5)
    }

    fn vocabulary(tokens: impl IntoIterator<Item = AddedToken>) -> AddedVocabulary {
        let mut vocabulary = AddedVocabulary::new();
        let none: Option<&NormalizerChain<'_>> = None;
        vocabulary.add_tokens(tokens, 0, |_| None, none).unwrap();
        vocabulary
    }

    fn text() -> impl Strategy<Value = String> {
        let pieces = ["<a>", "<a><b", "<", ">", "[x]", "[", " ", "é", "é!", "中", "b", "word"];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..20)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn matches_are_the_librarys((tokens, text) in (tokens(), text())) {
            let vocabulary = vocabulary(tokens);
            let Ok(added) = AddedTokens::new(vocabulary.clone()) else { return Ok(()) };
            for (is_normalized, (offset, _)) in
                [false, true].into_iter().flat_map(|it| text.char_indices().map(move |at| (it, at)))
            {
                let bytes = text.as_bytes();
                prop_assert_eq!(
                    added.extract_next(bytes, offset, is_normalized, false),
                    vocabulary.extract_next(bytes, offset, is_normalized, false)
                );
            }
        }
    }

    #[test]
    fn what_the_library_would_panic_on_is_refused() {
        let token = |content: &str| AddedToken::from(content, true).single_word(true);
        for (content, is_good) in [("é", false), ("e", true)] {
            let vocabulary = vocabulary([token(content)]);
            assert_eq!(AddedTokens::new(vocabulary).is_ok(), is_good, "{content}");
        }
    }

    #[test]
    fn few_first_bytes_are_searched_for() {
        let token = |content: &str| AddedToken::from(content, true);
        let mut starts = Starts::None;
        assert_eq!(starts.find(b"<"), None);
        for content in ["<a>", "<b>", "[", "!"] {
            starts.add(&token(content));
        }
        assert_eq!(starts, Starts::Three(b'<', b'[', b'!'));
        assert_eq!(starts.find(b"no ! and <"), Some(3));
        starts.add(&token("~"));
        assert_eq!(starts, Starts::Anywhere);
        let mut looks_back = Starts::None;
        looks_back.add(&token("<a>").lstrip(true));
        assert_eq!(looks_back.find(b"none"), Some(0));
    }
}
