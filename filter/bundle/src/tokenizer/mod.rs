//! Text to token ids, exactly as the model's tokenizer.json says.
//!
//! The stages are those of the `tokenizers` crate, whose parts run here: added tokens are cut out
//! of the raw text; each rest is normalized; added tokens that match normalized text are cut out
//! of that; each rest is pre-tokenized into words; the model turns words into ids. Running the
//! stages here rather than through the crate's own `encode` gives access to the first cut, which
//! is where a [`SegmentMemo`](crate::SegmentMemo) may step in, and lets [`Bpe`](crate::bpe::Bpe)
//! be the model. Other models (Unigram, BPE with word affixes) run in the crate.

pub(crate) mod added;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokenizers::pipeline::{
    Model, PipelineModelScratch, PipelineToken, PipelineTokenizer, PreTokenizer,
    PreTokenizerScratch, Segment as CrateSegment, Span, SpecialSegmentIterator, normalize_all,
};
use xxhash_rust::xxh3::xxh3_64;

use self::added::AddedTokens;
use crate::bpe::{Bpe, BpeScratch};
use crate::error::{BundleError, TokenizeError};
use crate::format::{Kind, Layout};
use crate::limits::{STAGES_BYTES_MAX, TEXT_BYTES_MAX};
use crate::memo::SegmentMemo;
use crate::meta::BundleMeta;

/// A piece of text as the tokenizer's first cut leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Text without added tokens in it, tokenized on its own: its ids depend on nothing outside
    /// it, except on whether it opens the sequence.
    Text {
        /// The text.
        text: &'a str,
        /// Where it starts, in bytes.
        offset_bytes: usize,
    },
    /// An added token.
    Token(u32),
}

/// Turns text into token ids.
pub struct Tokenizer {
    /// Normalizers, pre-tokenizer and post-processor, and the model if it is the library's.
    stages: PipelineTokenizer,
    added: AddedTokens,
    /// Whether a text may have special tokens in it.
    has_special_text: bool,
    /// The model, unless it is the library's.
    bpe: Option<Bpe>,
    /// Tells tokenizers apart in a memo's keys.
    identity: u64,
    vocab_size: u32,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Working buffers at rest, as many as there were ever calls at once.
    scratches: Mutex<Vec<Scratch>>,
}

/// Buffers that outlive a call, so that a warm call allocates nothing.
struct Scratch {
    split: PreTokenizerScratch,
    words: Vec<Span>,
    model: ModelScratch,
}

/// After a longer text, buffers are given back: they take about twelve bytes for each of the
/// text's, and other uses of the memory should not have to do without.
const SCRATCH_TEXT_BYTES_MAX: usize = 1 << 19;

/// Tells texts in which no added token is looked for from others in a memo's keys.
const PLAIN: u64 = 0x9E6C_63D0_876A_3F6B;

/// A place inside a sequence: normalizers that put something before its start leave it alone.
const INSIDE: usize = 1;

impl Scratch {
    /// Gives back what grows with the text, keeps the caches.
    fn trim(&mut self) {
        self.split = PreTokenizerScratch::default();
        self.words = Vec::new();
        match &mut self.model {
            ModelScratch::Bpe(model) => model.trim(),
            ModelScratch::Library { tokens, .. } => *tokens = Vec::new(),
        }
    }
}

enum ModelScratch {
    Bpe(Box<BpeScratch>),
    Library { model: PipelineModelScratch, tokens: Vec<PipelineToken> },
}

/// Members of a tokenizer.json that stand in for the model, which runs here. The word-level model
/// is the library's cheapest.
const STAND_IN_MODEL: &str = r#"{"type":"WordLevel","vocab":{"<unk>":0},"unk_token":"<unk>"}"#;

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn read(
        bytes: Vec<u8>,
        layout: &Layout,
        meta: &BundleMeta,
    ) -> Result<Self, BundleError> {
        let (stages, added, bpe) = if layout.find(Kind::Tokenizer).is_some() {
            let json = text(layout, &bytes, Kind::Tokenizer)?;
            let stages = from_json(json)?;
            let added = stages.get_added_vocabulary().clone();
            (stages, added, None)
        } else {
            let stages = stages_from_json(&bytes, layout)?;
            let added = added::read(&bytes, layout, stages.get_normalizers())?;
            (stages, added, Some(Bpe::read(bytes, layout)?))
        };
        let template = &stages.get_post_processor().single;
        let ids = |run: &[(PipelineToken, u8)]| run.iter().map(|(token, _)| token.id()).collect();
        Ok(Self {
            prefix: ids(&template.prefix),
            suffix: ids(&template.suffix),
            identity: xxh3_64(meta.source_digest.as_bytes()),
            vocab_size: meta.vocab_size,
            scratches: Mutex::new(Vec::new()),
            added: AddedTokens::new(added, stages.get_normalizers().is_empty())?,
            stages,
            has_special_text: meta.mistral.is_none(),
            bpe,
        })
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// What the post-processor puts before a sequence, BOS as a rule, when special tokens are
    /// asked for.
    pub fn special_prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// What the post-processor puts after a sequence when special tokens are asked for.
    pub fn special_suffix(&self) -> &[u32] {
        &self.suffix
    }

    /// The id of an added token, such as `<|im_end|>`.
    pub fn added_token_id(&self, content: &str) -> Option<u32> {
        self.added.token_to_id(content)
    }

    /// Where the tokenizer always splits: added tokens, and the texts between them, in order.
    pub fn segments<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Segment<'a>> + 'a {
        let segments =
            SpecialSegmentIterator::new(text, &self.added, false, !self.has_special_text);
        segments.map(|segment| match segment {
            CrateSegment::SpecialToken(id) => Segment::Token(id),
            CrateSegment::Text { text, input_offset } => {
                Segment::Text { text, offset_bytes: input_offset }
            }
        })
    }

    /// Appends the ids of `text` to `out`. With `add_special_tokens`, the post-processor's prefix
    /// and suffix go around them, as engines do for plain completions; chat templates spell their
    /// special tokens themselves.
    ///
    /// # Errors
    /// [`TokenizeError`]; `out` is then as it was before.
    pub fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        self.encode(text, add_special_tokens, None, out)
    }

    /// [`Self::encode_into`] with a memo: the same ids, without tokenizing segments seen before.
    ///
    /// # Errors
    /// [`TokenizeError`]; `out` is then as it was before.
    pub fn encode_memo(
        &self,
        text: &str,
        add_special_tokens: bool,
        memo: &mut SegmentMemo,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        self.encode(text, add_special_tokens, Some(memo), out)
    }

    /// Appends the ids of `text` to `out` as of text in which no added token is looked for: what is
    /// written like one is its letters. The memo spares texts seen before.
    ///
    /// # Errors
    /// [`TokenizeError`]; `out` is then as it was before.
    pub fn encode_plain(
        &self,
        text: &str,
        memo: Option<&mut SegmentMemo>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        self.with_scratch(text, out, |scratch, out| {
            with_memo(memo, self.identity ^ PLAIN, false, text, out, |out| {
                let normalizers = self.stages.get_normalizers();
                let normalized = normalize_all(normalizers, text, INSIDE).map_err(engine)?;
                self.encode_words(&normalized, scratch, out)
            })
        })
    }

    fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
        memo: Option<&mut SegmentMemo>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        self.with_scratch(text, out, |scratch, out| {
            if add_special_tokens {
                out.extend_from_slice(&self.prefix);
            }
            self.encode_segments(text, memo, scratch, out)?;
            if add_special_tokens {
                out.extend_from_slice(&self.suffix);
            }
            Ok(())
        })
    }

    fn encode_segments(
        &self,
        text: &str,
        mut memo: Option<&mut SegmentMemo>,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        for segment in self.segments(text) {
            let (text, offset) = match segment {
                Segment::Token(id) => {
                    out.push(id);
                    continue;
                }
                Segment::Text { text, offset_bytes } => (text, offset_bytes),
            };
            with_memo(memo.as_deref_mut(), self.identity, offset == 0, text, out, |out| {
                self.encode_text(text, offset, scratch, out)
            })?;
        }
        Ok(())
    }

    /// Encodes one text segment. `offset` is where it starts in the sequence, which normalizers
    /// that prepend to the sequence's start need to know.
    fn encode_text(
        &self,
        text: &str,
        offset: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let normalized =
            normalize_all(self.stages.get_normalizers(), text, offset).map_err(engine)?;
        for segment in SpecialSegmentIterator::new(&normalized, &self.added, true, false) {
            let text = match segment {
                CrateSegment::SpecialToken(id) => {
                    out.push(id);
                    continue;
                }
                CrateSegment::Text { text, .. } => text,
            };
            self.encode_words(text, scratch, out)?;
        }
        Ok(())
    }

    /// Encodes normalized text without added tokens.
    fn encode_words(
        &self,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let Scratch { split, words, model } = scratch;
        words.clear();
        self.stages.get_pre_tokenizer().pre_tokenize(text, split, words).map_err(engine)?;
        match (&self.bpe, model) {
            (Some(bpe), ModelScratch::Bpe(model)) => bpe.encode_words(text, words, model, out),
            (None, ModelScratch::Library { model, tokens }) => {
                tokens.clear();
                self.stages
                    .get_model()
                    .tokenize_spans(text, words, model, tokens)
                    .map_err(engine)?;
                out.extend_from_slice(PipelineToken::cast_slice(tokens));
            }
            _ => {
                return Err(TokenizeError::Engine { detail: "buffers of another model".into() });
            }
        }
        Ok(())
    }

    /// Runs `encode` on `text` with buffers that are kept for the next time. Where it fails, `out` is as it
    /// was before.
    fn with_scratch(
        &self,
        text: &str,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&mut Scratch, &mut Vec<u32>) -> Result<(), TokenizeError>,
    ) -> Result<(), TokenizeError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizeError::TooLong { size: text.len(), max: TEXT_BYTES_MAX });
        }
        let start = out.len();
        let mut scratch = self.take_scratch();
        let done = encode(&mut scratch, out);
        if text.len() > SCRATCH_TEXT_BYTES_MAX {
            scratch.trim();
        }
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        if done.is_err() {
            out.truncate(start);
        }
        done
    }

    fn take_scratch(&self) -> Scratch {
        let spare = self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Scratch {
            split: PreTokenizerScratch::default(),
            words: Vec::new(),
            model: match &self.bpe {
                Some(_) => ModelScratch::Bpe(Box::new(BpeScratch::new())),
                None => ModelScratch::Library {
                    model: self.stages.get_model().init_scratch(),
                    tokens: Vec::new(),
                },
            },
        })
    }
}

/// Appends the ids of `text` as the memo has them, else as `encode` gives them, which the memo then keeps.
fn with_memo(
    memo: Option<&mut SegmentMemo>,
    tokenizer: u64,
    opens_sequence: bool,
    text: &str,
    out: &mut Vec<u32>,
    encode: impl FnOnce(&mut Vec<u32>) -> Result<(), TokenizeError>,
) -> Result<(), TokenizeError> {
    let key = memo.as_deref().and_then(|memo| memo.key(tokenizer, opens_sequence, text));
    let Some((memo, key)) = memo.zip(key) else { return encode(out) };
    if !memo.recall(key, text.len(), out) {
        let start = out.len();
        encode(out)?;
        memo.remember(key, out.get(start..).unwrap_or_default());
    }
    Ok(())
}

/// Builds all stages but the model, which [`STAND_IN_MODEL`] stands for.
pub(crate) fn stages_from_json(
    bytes: &[u8],
    layout: &Layout,
) -> Result<PipelineTokenizer, BundleError> {
    let json = text(layout, bytes, Kind::Stages)?;
    if json.len() > STAGES_BYTES_MAX {
        return Err(BundleError::Oversized {
            what: Kind::Stages.name(),
            size: json.len() as u64,
            max: STAGES_BYTES_MAX as u64,
        });
    }
    let Some(rest) = json.trim_start().strip_prefix('{') else {
        return Err(BundleError::malformed(Kind::Stages.name(), "not an object"));
    };
    from_json(&format!("{{\"model\":{STAND_IN_MODEL},{rest}"))
}

fn text<'a>(layout: &Layout, bytes: &'a [u8], kind: Kind) -> Result<&'a str, BundleError> {
    std::str::from_utf8(layout.bytes(bytes, kind)?)
        .map_err(|error| BundleError::malformed(kind.name(), error))
}

/// Builds the library's tokenizer. Its parser recurses without a limit, so the nesting is checked
/// by one that has a limit.
fn from_json(json: &str) -> Result<PipelineTokenizer, BundleError> {
    serde_json::from_str::<serde::de::IgnoredAny>(json)
        .map_err(|error| BundleError::malformed("tokenizer", error))?;
    tokenizers::from_json(json)
        .map_err(|error| BundleError::Tokenizer { detail: error.to_string() })
}

fn engine(error: tokenizers::Error) -> TokenizeError {
    TokenizeError::Engine { detail: error.to_string() }
}
