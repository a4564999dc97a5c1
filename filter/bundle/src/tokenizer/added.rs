//! The added tokens of a bundle, rebuilt as the library's matcher.

use tokenizers::pipeline::NormalizerChain;
use tokenizers::pipeline::PipelineNormalizer;
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
