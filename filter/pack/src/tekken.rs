//! Mistral's tekken.json as a tokenizer.json.
//!
//! A tekken.json is a vocabulary in tiktoken's manner: tokens by rank, no merges, and special tokens before
//! them that no text can spell. Fields and defaults are those of mistral-common 1.13.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;
use warmpath_bundle::{MistralEfforts, MistralFormat, MistralVersion, SpecialTokens};

use crate::PackError;

/// The file's name in a model directory.
pub(crate) const FILE: &str = "tekken.json";

/// Opens every sequence.
const BOS: &str = "<s>";

/// The special tokens of files that list none, by their ids.
const DEFAULT_SPECIAL: [&str; 20] = [
    "<unk>",
    BOS,
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// A tokenizer, and how chats are written for it.
#[derive(Debug, Clone)]
pub struct Tekken {
    /// The same tokenizer as a tokenizer.json.
    pub(crate) tokenizer: String,
    /// How chats are written.
    pub(crate) format: MistralFormat,
}

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
    model_settings_builder: Option<Settings>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    version: String,
}

#[derive(Deserialize)]
struct Token {
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

#[derive(Deserialize)]
struct Settings {
    reasoning_effort: Option<MistralEfforts>,
    json_schema: Option<Value>,
}

impl Tekken {
    /// Reads the text of the file at `path`.
    ///
    /// # Errors
    /// [`PackError::Json`] when it has another form, [`PackError::Tekken`] when it contradicts itself or is of
    /// a version that is not known.
    pub(crate) fn read(text: &str, path: &Path) -> Result<Self, PackError> {
        let failed = |detail: String| PackError::Tekken { path: path.to_owned(), detail };
        let file: File = serde_json::from_str(text)
            .map_err(|source| PackError::Json { path: path.to_owned(), source })?;
        let version = version(&file.config.version)
            .ok_or_else(|| failed(format!("version {:?} is not known", file.config.version)))?;
        let settings = file.model_settings_builder;
        if settings.as_ref().is_some_and(|it| it.json_schema.is_some()) {
            return Err(failed("prompts that name a JSON schema are not known".into()));
        }
        let special = file.special_tokens.unwrap_or_else(|| {
            let default = DEFAULT_SPECIAL.iter().enumerate();
            default.map(|(rank, text)| Special { rank, token_str: (*text).to_owned() }).collect()
        });
        let first_id = file.config.default_num_special_tokens;
        let own = file
            .config
            .default_vocab_size
            .checked_sub(first_id)
            .and_then(|count| file.vocab.get(..count))
            .ok_or_else(|| failed("fewer tokens than its vocabulary size".into()))?;
        if special.iter().any(|token| token.rank >= first_id) {
            return Err(failed("a special token behind the others".into()));
        }
        let tokens: Vec<Vec<u8>> = own
            .iter()
            .map(|token| STANDARD.decode(&token.token_bytes))
            .collect::<Result<_, _>>()
            .map_err(|error| failed(format!("a token is not base64: {error}")))?;
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": special.iter().map(added).collect::<Vec<_>>(),
            "pre_tokenizer": pre_tokenizer(&file.config.pattern),
            "post_processor": opened_by(BOS, special.iter().find(|it| it.token_str == BOS)),
            "model": model(&tokens, &special, first_id),
        });
        let efforts = settings.and_then(|settings| settings.reasoning_effort);
        Ok(Self { tokenizer: tokenizer.to_string(), format: MistralFormat { version, efforts } })
    }

    /// The special tokens that completions know.
    pub(crate) fn special_tokens() -> SpecialTokens {
        let text = |text: &str| Some(text.to_owned());
        SpecialTokens {
            bos_token: text(BOS),
            eos_token: text("</s>"),
            unk_token: text("<unk>"),
            pad_token: text("<pad>"),
            ..SpecialTokens::default()
        }
    }
}

fn version(name: &str) -> Option<MistralVersion> {
    serde_json::from_value(Value::from(name)).ok()
}

fn added(token: &Special) -> Value {
    json!({
        "id": token.rank, "content": token.token_str, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true,
    })
}

fn pre_tokenizer(pattern: &str) -> Value {
    json!({
        "type": "Sequence",
        "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        ],
    })
}

fn opened_by(text: &str, token: Option<&Special>) -> Value {
    let Some(token) = token else { return Value::Null };
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let special = json!({ "SpecialToken": { "id": text, "type_id": 0 } });
    json!({
        "type": "TemplateProcessing",
        "single": [special, sequence("A")],
        "pair": [special, sequence("A"), sequence("B")],
        "special_tokens": { text: { "id": text, "ids": [token.rank], "tokens": [text] } },
    })
}

/// The model: any two tokens that make a third are merged, those first that make the one of lowest rank.
/// Special tokens are in it for their ids; the pattern leaves no word that is spelled like one.
fn model(tokens: &[Vec<u8>], special: &[Special], first_id: usize) -> Value {
    let spell = |bytes: &[u8]| -> String {
        bytes.iter().filter_map(|byte| BYTES_CHAR_LOOKUP.get(usize::from(*byte))).collect()
    };
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, bytes)| (bytes.as_slice(), rank)).collect();
    let named = special.iter().map(|token| (token.token_str.clone(), Value::from(token.rank)));
    let mut vocab: Map<String, Value> = named.collect();
    let mut merges = Vec::new();
    for (rank, bytes) in tokens.iter().enumerate() {
        vocab.insert(spell(bytes), (first_id + rank).into());
        for (left, right) in (1..bytes.len()).map(|at| bytes.split_at(at)) {
            if ranks.contains_key(left) && ranks.contains_key(right) {
                merges.push(json!([spell(left), spell(right)]));
            }
        }
    }
    json!({ "type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges })
}
