//! The BPE model: words to token ids, over tables that stay in the bundle's bytes.
//!
//! In: words, as the pre-tokenizer cut them. Out: token ids, the same as the `tokenizers` library
//! gives. Why not the library's own model: it builds its tables at load, which for a vocabulary of
//! 128k tokens takes over half a second and 30 to 50 MB in a VM, and for one of 262k takes 90 MB.
//! Here the tables are built once, when the bundle is written; loading checks sizes and fills two
//! small arrays.
//!
//! A word goes through up to five steps: cuts where no merge can reach across; the cache of words
//! seen before; the token index, since most words are tokens themselves; conversion to symbols;
//! merges.

pub(crate) mod cache;
pub(crate) mod cuts;
pub(crate) mod index;
mod merge;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tokenizers::pipeline::Span;

use crate::error::BundleError;
use crate::format::{Kind, Layout};
use cache::{CharCache, PairCache, WordCache, WordKey};
use cuts::Cuts;
use index::{MergeIndex, TokenIndex, hash_bytes};
use merge::{MergeScratch, Ranks, merge};

/// How a model turns text into its first symbols; JSON in the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BpeConfig {
    /// Symbols are bytes (GPT-2 and after) rather than characters (SentencePiece).
    pub(crate) byte_level: bool,
    /// The tokens of the 256 bytes. For byte-level models their symbols, for others what unknown
    /// characters fall back to; empty when they do not.
    pub(crate) byte_tokens: Vec<u32>,
    /// The token for unknown characters, in models of characters.
    pub(crate) unk_token: Option<u32>,
    /// Runs of unknown characters give one such token.
    pub(crate) fuse_unk: bool,
}

#[derive(Debug)]
enum Atoms {
    Bytes([u32; 256]),
    Chars { byte_fallback: Option<[u32; 256]>, unk_token: Option<u32>, fuse_unk: bool },
}

/// Stands for a character that has no symbol.
const NO_SYMBOL: u32 = u32::MAX;

/// A BPE model over a bundle's bytes.
#[derive(Debug)]
pub(crate) struct Bpe {
    bytes: Vec<u8>,
    tokens: TokenIndex,
    merges: MergeIndex,
    atoms: Atoms,
    /// Symbols of the ASCII characters, or [`NO_SYMBOL`].
    ascii: [u32; 128],
    cuts: Option<Cuts>,
}

/// Buffers that outlive a call.
#[derive(Debug)]
pub(crate) struct BpeScratch {
    words: WordCache,
    chars: CharCache,
    pairs: PairCache,
    symbols: Vec<u32>,
    merge: MergeScratch,
}

impl BpeScratch {
    pub(crate) fn new() -> Self {
        Self {
            words: WordCache::new(),
            chars: CharCache::new(),
            pairs: PairCache::new(),
            symbols: Vec::new(),
            merge: MergeScratch::default(),
        }
    }

    /// Gives back what grows with the text.
    pub(crate) fn trim(&mut self) {
        self.symbols = Vec::new();
        self.merge = MergeScratch::default();
    }
}

impl Bpe {
    pub(crate) fn read(bytes: Vec<u8>, layout: &Layout) -> Result<Self, BundleError> {
        let config: BpeConfig = layout.json(&bytes, Kind::BpeConfig)?;
        let tokens = TokenIndex::read(&bytes, layout)?;
        let merges = MergeIndex::read(&bytes, layout)?;
        let byte_tokens: Option<[u32; 256]> = match config.byte_tokens.len() {
            0 => None,
            _ => Some(config.byte_tokens.try_into().map_err(|_| {
                BundleError::malformed(Kind::BpeConfig.name(), "byte tokens are not 256")
            })?),
        };
        let atoms = match (config.byte_level, byte_tokens) {
            (true, Some(table)) => Atoms::Bytes(table),
            (true, None) => {
                return Err(BundleError::malformed(Kind::BpeConfig.name(), "no byte tokens"));
            }
            (false, byte_fallback) => Atoms::Chars {
                byte_fallback,
                unk_token: config.unk_token,
                fuse_unk: config.fuse_unk,
            },
        };
        let mut ascii = [NO_SYMBOL; 128];
        for (byte, symbol) in (0u8..).zip(ascii.iter_mut()) {
            *symbol = match &atoms {
                Atoms::Bytes(table) => table.get(usize::from(byte)).copied().unwrap_or(NO_SYMBOL),
                Atoms::Chars { .. } => {
                    let hash = hash_bytes(&[byte], tokens.seed());
                    tokens.find(&bytes, &[byte], hash).map_or(NO_SYMBOL, |found| found.id)
                }
            };
        }
        let cuts = Cuts::read(&bytes, layout)?;
        Ok(Self { bytes, tokens, merges, atoms, ascii, cuts })
    }

    /// Whether merges alone turn `text` into token `id`.
    #[cfg(feature = "write")]
    pub(crate) fn merges_to(&self, text: &str, id: u32, scratch: &mut BpeScratch) -> bool {
        self.merge_word(text, scratch);
        scratch.symbols == [id]
    }

    /// Appends the ids of each word of `text` to `out`.
    pub(crate) fn encode_words(
        &self,
        text: &str,
        words: &[Span],
        scratch: &mut BpeScratch,
        out: &mut Vec<u32>,
    ) {
        out.reserve(words.len());
        match (&self.cuts, &self.atoms) {
            (Some(cuts), Atoms::Chars { .. }) => {
                for word in words {
                    let mut range = word.range();
                    while let Some(end) = cuts.next(text, range.start, range.end) {
                        self.encode_word(text, range.start..end, scratch, out);
                        range.start = end;
                    }
                    self.encode_word(text, range, scratch, out);
                }
            }
            _ => {
                for word in words {
                    self.encode_word(text, word.range(), scratch, out);
                }
            }
        }
    }

    #[inline]
    fn encode_word(
        &self,
        text: &str,
        word: Range<usize>,
        scratch: &mut BpeScratch,
        out: &mut Vec<u32>,
    ) {
        let Some(key) = WordKey::new(text.as_bytes(), word.start, word.end) else {
            self.encode_long_word(text, word, scratch, out);
            return;
        };
        let hash = key.hash(self.tokens.seed());
        if !scratch.words.recall(&key, hash, out)
            && let Some(word) = text.get(word)
        {
            self.encode_new_word(word, &key, hash, scratch, out);
        }
    }

    #[inline(never)]
    fn encode_new_word(
        &self,
        word: &str,
        key: &WordKey,
        hash: u64,
        scratch: &mut BpeScratch,
        out: &mut Vec<u32>,
    ) {
        match self.tokens.find_key(&self.bytes, key, hash) {
            Some(found) if found.whole => {
                out.push(found.id);
                scratch.words.remember(key, hash, &[found.id]);
            }
            _ => {
                self.merge_word(word, scratch);
                out.extend_from_slice(&scratch.symbols);
                scratch.words.remember(key, hash, &scratch.symbols);
            }
        }
    }

    /// A word that has no key. Byte-level models cut it here, having cut nothing before.
    #[inline(never)]
    fn encode_long_word(
        &self,
        text: &str,
        mut word: Range<usize>,
        scratch: &mut BpeScratch,
        out: &mut Vec<u32>,
    ) {
        let Some(whole) = text.get(word.clone()) else { return };
        let hash = hash_bytes(whole.as_bytes(), self.tokens.seed());
        if let Some(found) = self.tokens.find(&self.bytes, whole.as_bytes(), hash)
            && found.whole
        {
            out.push(found.id);
            return;
        }
        if let (Some(cuts), Atoms::Bytes(_)) = (&self.cuts, &self.atoms) {
            while let Some(end) = cuts.next(text, word.start, word.end) {
                self.encode_part(text, word.start..end, scratch, out);
                word.start = end;
            }
        }
        self.encode_part(text, word, scratch, out);
    }

    /// A word, or a part of one, that is not cut any more.
    fn encode_part(
        &self,
        text: &str,
        word: Range<usize>,
        scratch: &mut BpeScratch,
        out: &mut Vec<u32>,
    ) {
        if WordKey::fits(word.len()) {
            self.encode_word(text, word, scratch, out);
        } else if let Some(word) = text.get(word) {
            self.merge_word(word, scratch);
            out.extend_from_slice(&scratch.symbols);
        }
    }

    /// Leaves the ids of `word`, by merges alone, in the scratch's `symbols`.
    fn merge_word(&self, word: &str, scratch: &mut BpeScratch) {
        let BpeScratch { chars, pairs, symbols, merge: buffers, .. } = scratch;
        symbols.clear();
        symbols.reserve(word.len());
        match &self.atoms {
            Atoms::Bytes(table) => self.convert_bytes(word, table, chars, symbols),
            Atoms::Chars { .. } => self.convert_chars(word, chars, symbols),
        }
        let mut ranks = Ranks { merges: &self.merges, bytes: &self.bytes, cache: pairs };
        merge(&mut ranks, symbols, buffers);
    }

    fn convert_bytes(
        &self,
        word: &str,
        table: &[u32; 256],
        cache: &mut CharCache,
        symbols: &mut Vec<u32>,
    ) {
        let mut rest = word;
        while let Some(char) = rest.chars().next() {
            let (head, tail) = rest.split_at(char.len_utf8());
            rest = tail;
            let symbol = match self.ascii.get(char as usize) {
                Some(symbol) => *symbol,
                None => cache.get(char, || match self.find_char(head) {
                    Some(found) if found.char_safe => found.id,
                    _ => NO_SYMBOL,
                }),
            };
            if symbol == NO_SYMBOL {
                push_bytes(head, table, symbols);
            } else {
                symbols.push(symbol);
            }
        }
    }

    fn convert_chars(&self, word: &str, cache: &mut CharCache, symbols: &mut Vec<u32>) {
        let Atoms::Chars { byte_fallback, unk_token, fuse_unk } = &self.atoms else {
            return;
        };
        let mut after_unk = false;
        let mut rest = word;
        while let Some(char) = rest.chars().next() {
            let (head, tail) = rest.split_at(char.len_utf8());
            rest = tail;
            let symbol = match self.ascii.get(char as usize) {
                Some(symbol) => *symbol,
                None => {
                    cache.get(char, || self.find_char(head).map_or(NO_SYMBOL, |found| found.id))
                }
            };
            let known = symbol != NO_SYMBOL;
            if known {
                symbols.push(symbol);
            } else if let Some(table) = byte_fallback {
                push_bytes(head, table, symbols);
            } else if let Some(unk) = unk_token
                && !(after_unk && *fuse_unk)
            {
                symbols.push(*unk);
            }
            after_unk = !known;
        }
    }

    #[inline]
    fn find_char(&self, char: &str) -> Option<index::Found> {
        let hash = hash_bytes(char.as_bytes(), self.tokens.seed());
        self.tokens.find(&self.bytes, char.as_bytes(), hash)
    }
}

#[inline]
fn push_bytes(char: &str, table: &[u32; 256], symbols: &mut Vec<u32>) {
    symbols.extend(char.bytes().filter_map(|byte| table.get(usize::from(byte)).copied()));
}
