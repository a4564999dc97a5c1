//! The added tokens of a bundle, rebuilt as the library's matcher.

use ahash::AHashMap;
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

/// The added tokens: in raw or in normalized text the first one, and the longest of those that start there.
/// They are looked for by the bytes that they start with, sixteen at a time, then in a sorted list, where the
/// library would try every length; by the library where that does not suffice.
pub(crate) struct AddedTokens {
    vocabulary: AddedVocabulary,
    raw: Matcher,
    normalized: Matcher,
}

impl AddedTokens {
    /// The matcher over `vocabulary`; `is_verbatim` says that normalizing changes no text.
    ///
    /// # Errors
    /// [`BundleError::Tokenizer`] for a token that the library panics on: where a text has it inside a
    /// longer word and it must be a word of its own, the search goes on one byte after its start, which
    /// must not be inside a character.
    pub(crate) fn new(vocabulary: AddedVocabulary, is_verbatim: bool) -> Result<Self, BundleError> {
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (id, token) in vocabulary.get_added_tokens_decoder() {
            if token.single_word && !token.content.starts_with(|first: char| first.is_ascii()) {
                let content = &token.content;
                let detail = format!("the added token {content:?} is `single_word` and not ASCII");
                return Err(BundleError::Tokenizer { detail });
            }
            if token.normalized { &mut normalized } else { &mut raw }.push((id, token));
        }
        let raw = Matcher::new(raw, true);
        let normalized = Matcher::new(normalized, is_verbatim);
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
        let matcher = if is_normalized { &self.normalized } else { &self.raw };
        let mut search = search_offset;
        loop {
            let start = search + matcher.starts.find(bytes.get(search..)?)?;
            let Some(sorted) = &matcher.sorted else {
                let vocabulary = &self.vocabulary;
                return vocabulary.extract_next(bytes, start, is_normalized, encode_special_tokens);
            };
            search = match sorted.longest_at(bytes.get(start..)?) {
                None => start + 1,
                Some(token) if encode_special_tokens && token.is_special => {
                    start + token.content.len()
                }
                Some(token) => return Some(((start, start + token.content.len()), token.id)),
            };
        }
    }
}

/// How tokens of one kind are found.
struct Matcher {
    starts: Starts,
    /// `None` when the library must find them: where a match depends on what stands around it, where the
    /// text's tokens are not written as here, or where any byte may start one.
    sorted: Option<Sorted>,
}

impl Matcher {
    fn new(tokens: Vec<(u32, AddedToken)>, is_verbatim: bool) -> Self {
        let mut starts = Starts::None;
        tokens.iter().for_each(|(_, token)| starts.add(token));
        // What else a token may ask of its surroundings, `starts` knows.
        let is_plain = |token: &AddedToken| !(token.content.is_empty() || token.rstrip);
        let is_sortable = is_verbatim
            && starts != Starts::Anywhere
            && tokens.iter().all(|(_, token)| is_plain(token));
        Self { starts, sorted: is_sortable.then_some(tokens).and_then(Sorted::new) }
    }
}

/// Tokens in the order of their bytes.
struct Sorted {
    tokens: Vec<SortedToken>,
    /// What the tokens begin with, in order: tells of most `<` in HTML that none starts there.
    beginnings: Vec<[u8; BEGINNING_BYTES]>,
    /// Whether some token is shorter than that.
    has_short: bool,
}

const BEGINNING_BYTES: usize = 3;

struct SortedToken {
    content: Box<[u8]>,
    id: u32,
    is_special: bool,
    /// Position of the longest other token that this one begins with.
    stem: Option<usize>,
}

impl Sorted {
    /// `None` when two tokens are written alike: the library knows which one counts.
    fn new(mut tokens: Vec<(u32, AddedToken)>) -> Option<Self> {
        tokens.sort_by(|(_, a), (_, b)| a.content.cmp(&b.content));
        let mut sorted: Vec<SortedToken> = Vec::with_capacity(tokens.len());
        for (id, token) in tokens {
            let content = token.content.into_bytes().into_boxed_slice();
            // What begins with a token follows it, and nothing else comes between.
            let mut stem = sorted.len().checked_sub(1);
            while let Some(position) = stem
                && let Some(other) = sorted.get(position)
                && !content.starts_with(&other.content)
            {
                stem = other.stem;
            }
            if stem.and_then(|it| sorted.get(it)).is_some_and(|stem| stem.content == content) {
                return None;
            }
            sorted.push(SortedToken { content, id, is_special: token.special, stem });
        }
        let contents = sorted.iter().map(|token| token.content.first_chunk().copied());
        let mut beginnings: Vec<[u8; BEGINNING_BYTES]> = contents.flatten().collect();
        beginnings.dedup();
        let has_short = sorted.iter().any(|token| token.content.len() < BEGINNING_BYTES);
        Some(Self { tokens: sorted, beginnings, has_short })
    }

    /// The longest token that `bytes` begins with.
    fn longest_at(&self, bytes: &[u8]) -> Option<&SortedToken> {
        let beginning = bytes.first_chunk();
        let is_known = beginning.is_some_and(|it| self.beginnings.binary_search(it).is_ok());
        if !is_known && !self.has_short {
            return None;
        }
        // A token that `bytes` begins with is the last one before `bytes` in this order, or that one
        // begins with it.
        let mut last = self.tokens.partition_point(|it| *it.content <= *bytes).checked_sub(1);
        while let Some(token) = last.and_then(|position| self.tokens.get(position)) {
            if bytes.starts_with(&token.content) {
                return Some(token);
            }
            last = token.stem;
        }
        None
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
    let ids: AHashMap<&str, u32> =
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
        let token = (
            0..CONTENTS.len(),
            prop::array::uniform3(prop::bool::weighted(0.1)),
            any::<[bool; 2]>(),
        );
        let token =
            token.prop_map(|(content, [lstrip, rstrip, single_word], [normalized, special])| {
                let token = AddedToken::from(CONTENTS[content], special).normalized(normalized);
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

    /// The first place where a token stands, and the longest one there, by trying all.
    fn first_longest(
        tokens: &[(u32, AddedToken)],
        text: &str,
        offset: usize,
        encode_special_tokens: bool,
    ) -> Option<((usize, usize), u32)> {
        let mut start = offset;
        while let Some(rest) = text.as_bytes().get(start..).filter(|rest| !rest.is_empty()) {
            let at_start = tokens.iter().filter(|(_, it)| rest.starts_with(it.content.as_bytes()));
            start += match at_start.max_by_key(|(_, token)| token.content.len()) {
                None => 1,
                Some((_, token)) if encode_special_tokens && token.special => token.content.len(),
                Some((id, token)) => return Some(((start, start + token.content.len()), *id)),
            };
        }
        None
    }

    proptest! {
        #[test]
        fn matches_are_the_first_and_longest_or_the_librarys((tokens, text) in (tokens(), text())) {
            let vocabulary = vocabulary(tokens);
            let Ok(added) = AddedTokens::new(vocabulary.clone(), true) else { return Ok(()) };
            let all = vocabulary.get_added_tokens_decoder();
            for (offset, is_normalized, is_plain) in text.char_indices().flat_map(|(offset, _)| {
                [(false, false), (false, true), (true, false), (true, true)].map(|it| (offset, it.0, it.1))
            }) {
                let bytes = text.as_bytes();
                let matcher = if is_normalized { &added.normalized } else { &added.raw };
                // The library itself misses a token whose beginning repeats: `<a><b` in `<a><a><b`.
                let expected = match matcher.sorted {
                    None => vocabulary.extract_next(bytes, offset, is_normalized, is_plain),
                    Some(_) => {
                        let of_kind = all.iter().filter(|(_, it)| it.normalized == is_normalized);
                        let of_kind: Vec<_> = of_kind.map(|(id, it)| (*id, it.clone())).collect();
                        first_longest(&of_kind, &text, offset, is_plain)
                    }
                };
                let found = added.extract_next(bytes, offset, is_normalized, is_plain);
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn a_token_whose_beginning_repeats_is_found() {
        let token = AddedToken::from("<a><b", true).normalized(false);
        let added = AddedTokens::new(vocabulary([token]), true).unwrap();
        let found = added.extract_next(b"<a><a><b", 0, false, false);
        assert_eq!(found.map(|(range, _)| range), Some((3, 8)));
    }

    #[test]
    fn what_the_library_would_panic_on_is_refused() {
        let token = |content: &str| AddedToken::from(content, true).single_word(true);
        for (content, is_good) in [("é", false), ("e", true)] {
            let vocabulary = vocabulary([token(content)]);
            assert_eq!(AddedTokens::new(vocabulary, true).is_ok(), is_good, "{content}");
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
