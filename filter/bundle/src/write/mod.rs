//! Making bundles, natively.
//!
//! In: a model's tokenizer.json of any version, its chat templates and special tokens. Out: the
//! bytes of a bundle. The work that a reader would do at each start is done once here: converting
//! old forms, resolving merges, building hash tables, finding shortcuts that leave the ids as they
//! are.

mod bpe;
mod seeds;

use serde_json::{Map, Value};
use tokenizers::pipeline::{NormalizerChain, PipelineNormalizer};
use tokenizers::vocab::bucket_added_vocabulary::{AddedToken, AddedVocabulary};
use xxhash_rust::xxh3::xxh3_128;

use crate::format::{Kind, Layout, assemble};
use crate::limits::BUNDLE_BYTES_MAX;
use crate::meta::{BundleMeta, SpecialTokens};
use crate::mistral::MistralFormat;
use crate::tokenizer::{added, stages_from_json};

/// What goes into a bundle.
#[derive(Debug, Clone)]
pub struct BundleSource<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The text of tokenizer.json, of any version.
    pub tokenizer_json: &'a str,
    /// Chat templates as `(name, source)`, the one used by default named `default`.
    pub templates: &'a [(String, String)],
    /// The special tokens of tokenizer_config.json.
    pub special: &'a SpecialTokens,
    /// How chats are written where Mistral's library does it.
    pub mistral: Option<&'a MistralFormat>,
}

/// Why a bundle could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The tokenizer.json holds something that cannot be brought to the current form.
    #[error("tokenizer.json cannot be converted: {0}")]
    Convert(#[from] tokenizers::ConvertError),
    /// The tokenizer.json is not JSON.
    #[error("tokenizer.json is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The tokenizer.json lacks something or contradicts itself.
    #[error("tokenizer.json: {0}")]
    Source(String),
    /// The bundle would be larger than readers accept.
    #[error("bundle would have {size} bytes, at most {max} are allowed")]
    Oversized {
        /// Its size.
        size: usize,
        /// The most that is allowed.
        max: usize,
    },
}

/// Packs a model.
///
/// # Errors
/// [`WriteError`] when the tokenizer.json cannot be converted, or when the result is too large.
pub fn write(source: &BundleSource<'_>) -> Result<Vec<u8>, WriteError> {
    let mut json: Value = serde_json::from_str(source.tokenizer_json)?;
    tokenizers::canonicalize_value(&mut json)?;
    let root = json.as_object_mut().ok_or_else(|| WriteError::Source("not an object".into()))?;
    // Engines tokenize whole prompts and pad none. Decoders are for the way back.
    for unused in ["truncation", "padding", "decoder"] {
        root.insert(unused.into(), Value::Null);
    }
    let mut sections = vec![
        (Kind::Meta, serde_json::to_vec(&meta(source, root)?)?),
        (Kind::Special, serde_json::to_vec(source.special)?),
        (Kind::Templates, serde_json::to_vec(source.templates)?),
    ];
    let model = root.get("model").cloned().unwrap_or_default();
    let compact = match model.get("type").and_then(Value::as_str) {
        Some("BPE") => bpe::Source::read(&model, source.mistral.is_some())?,
        _ => None,
    };
    match compact {
        Some(model) => {
            sections.extend(stages(root, &model)?);
            sections.extend(model.compile()?);
        }
        None => sections.push((Kind::Tokenizer, serde_json::to_vec(&json)?)),
    }
    let bundle = assemble(&sections);
    if bundle.len() > BUNDLE_BYTES_MAX {
        return Err(WriteError::Oversized { size: bundle.len(), max: BUNDLE_BYTES_MAX });
    }
    Ok(bundle)
}

fn meta(source: &BundleSource<'_>, root: &Map<String, Value>) -> Result<BundleMeta, WriteError> {
    let model = root.get("model").and_then(|model| model.get("type"));
    let added = root.get("added_tokens").and_then(Value::as_array);
    Ok(BundleMeta {
        name: source.name.to_owned(),
        source_digest: format!("{:032x}", xxh3_128(source.tokenizer_json.as_bytes())),
        vocab_size: vocab_size(root)?,
        added_tokens: added.map_or(0, |tokens| tokens.len() as u32),
        model_kind: model.and_then(Value::as_str).unwrap_or_default().to_owned(),
        packed_by: env!("CARGO_PKG_VERSION").to_owned(),
        mistral: source.mistral.cloned(),
    })
}

/// The sections for everything but the model.
fn stages(
    root: &mut Map<String, Value>,
    model: &bpe::Source,
) -> Result<Vec<(Kind, Vec<u8>)>, WriteError> {
    let mut tokens = Vec::new();
    for entry in
        root.remove("added_tokens").as_ref().and_then(Value::as_array).into_iter().flatten()
    {
        tokens.push(added_token(entry)?);
    }
    tokens.sort_by_key(|(id, _)| *id);
    root.remove("model");
    let sections =
        vec![(Kind::Stages, serde_json::to_vec(root)?), (Kind::Added, added_section(&tokens)?)];
    check_added(&sections, tokens, model)?;
    Ok(sections)
}

fn added_token(entry: &Value) -> Result<(u32, AddedToken), WriteError> {
    let flag = |key: &str| entry.get(key).and_then(Value::as_bool).unwrap_or_default();
    let id = entry.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let content = entry.get("content").and_then(Value::as_str);
    let (Some(id), Some(content)) = (id, content) else {
        return Err(WriteError::Source(format!("added token {entry}")));
    };
    let token = AddedToken {
        content: content.to_owned(),
        single_word: flag("single_word"),
        lstrip: flag("lstrip"),
        rstrip: flag("rstrip"),
        normalized: flag("normalized"),
        special: flag("special"),
    };
    Ok((id, token))
}

fn added_section(tokens: &[(u32, AddedToken)]) -> Result<Vec<u8>, WriteError> {
    let mut out = (tokens.len() as u32).to_le_bytes().to_vec();
    for (id, token) in tokens {
        let mut flags = 0;
        for (set, flag) in [
            (token.single_word, added::FLAG_SINGLE_WORD),
            (token.lstrip, added::FLAG_LSTRIP),
            (token.rstrip, added::FLAG_RSTRIP),
            (token.normalized, added::FLAG_NORMALIZED),
            (token.special, added::FLAG_SPECIAL),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let len = u16::try_from(token.content.len())
            .map_err(|_| WriteError::Source(format!("added token {id} is too long")))?;
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&[flags, 0]);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(token.content.as_bytes());
    }
    Ok(out)
}

/// The library gives an added token the id that the model has for it, or the next free one; the
/// file names an id, too. Bundles hold the file's, so the two must agree.
fn check_added(
    sections: &[(Kind, Vec<u8>)],
    tokens: Vec<(u32, AddedToken)>,
    model: &bpe::Source,
) -> Result<(), WriteError> {
    let unreadable = |error: crate::BundleError| WriteError::Source(error.to_string());
    let bytes = assemble(sections);
    let layout = Layout::parse(&bytes).map_err(unreadable)?;
    let stages = stages_from_json(&bytes, &layout).map_err(unreadable)?;
    let read = added::read(&bytes, &layout, stages.get_normalizers()).map_err(unreadable)?;
    let normalizers = match stages.get_normalizers().split_last() {
        Some((PipelineNormalizer::Metaspace(_), declared)) => declared,
        _ => stages.get_normalizers(),
    };
    let mut own = AddedVocabulary::new();
    own.add_tokens(
        tokens.into_iter().map(|(_, token)| token),
        model.token_count(),
        |content| model.find(content),
        Some(&NormalizerChain(normalizers)),
    )
    .map_err(|error| WriteError::Source(error.to_string()))?;
    if own.get_added_tokens_decoder() != read.get_added_tokens_decoder() {
        return Err(WriteError::Source(
            "the ids of the added tokens are not those that the tokenizer gives them".into(),
        ));
    }
    Ok(())
}

/// One more than the largest id in the model's vocabulary and the added tokens.
fn vocab_size(root: &Map<String, Value>) -> Result<u32, WriteError> {
    let added = root
        .get("added_tokens")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|token| token.get("id").and_then(Value::as_u64));
    let own: Option<u64> = match root.get("model").and_then(|model| model.get("vocab")) {
        Some(Value::Object(map)) => map.values().filter_map(Value::as_u64).max(),
        Some(Value::Array(list)) => (list.len() as u64).checked_sub(1),
        _ => return Err(WriteError::Source("the model has no vocabulary".into())),
    };
    let largest = own.into_iter().chain(added).max().unwrap_or(0);
    u32::try_from(largest + 1).map_err(|_| WriteError::Source(format!("token id {largest}")))
}
