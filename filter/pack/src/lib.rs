//! Packs a model directory into a bundle.
//!
//! In: a directory as models are published, with tokenizer.json, tokenizer_config.json and chat
//! templates, or with Mistral's tekken.json. Out: the bytes of a bundle, read back and compared with
//! its source, and a list of what could not be compared.
//!
//! Files are resolved as transformers 5 resolves them, since that is what engines load: template
//! files win over templates in tokenizer_config.json, and special tokens that the configuration
//! names but tokenizer.json lacks are added to it.

#![deny(missing_docs)]

mod config;
mod encoding;
mod error;
mod model_dir;
mod tekken;
mod verify;

use serde_json::Value;
use warmpath_bundle::harmony::Marks;
use warmpath_bundle::{Bundle, BundleMeta, BundleSource, SpecialTokens, write};
use warmpath_template::ChatTemplates;

pub use encoding::Encoding;
pub use error::PackError;
pub use model_dir::ModelFiles;

use tekken::Tekken;

/// A bundle, and what is known about it.
#[derive(Debug)]
pub struct Packed {
    /// The bundle.
    pub bytes: Vec<u8>,
    /// What it says about itself.
    pub meta: BundleMeta,
    /// Its templates as `(name, source)`.
    pub templates: Vec<(String, String)>,
    /// Its special tokens.
    pub special: SpecialTokens,
    /// How many texts gave the same ids as the source.
    pub texts_checked: usize,
    /// What could not be checked, or differs between versions of transformers; one line each.
    pub notes: Vec<String>,
}

/// Packs a model and checks the result.
///
/// # Errors
/// [`PackError`], which says whether the input or the check is at fault.
pub fn pack(name: &str, files: &ModelFiles) -> Result<Packed, PackError> {
    packed(name, files).map_err(PackError::named)
}

fn packed(name: &str, files: &ModelFiles) -> Result<Packed, PackError> {
    let mut notes = Vec::new();
    let mut json: Value = serde_json::from_str(&files.tokenizer)
        .map_err(|source| PackError::Json { path: files.tokenizer_path.clone(), source })?;
    let (templates, special) = match files.mistral {
        Some(_) => {
            notes.push(
                "chats are written by Mistral's library, as by vLLM's tokenizer mode mistral: give \
                 tokenizer.json and the template for other engines"
                    .into(),
            );
            (Vec::new(), Tekken::special_tokens())
        }
        None => {
            let config = files.config()?;
            config::amend(&mut json, &config, &mut notes);
            config::note_differences(&json, &config, &mut notes);
            let (templates, special) = (files.templates(&config)?, config::special_tokens(&config));
            check_templates(&templates, &special, &mut notes)?;
            (templates, special)
        }
    };
    let amended = json.to_string();
    let bytes = write(&BundleSource {
        name,
        tokenizer_json: &amended,
        templates: &templates,
        special: &special,
        mistral: files.mistral.as_ref(),
    })?;
    let bundle = Bundle::read(bytes.clone())?;
    if bundle.templates != templates || bundle.special != special {
        return Err(PackError::ReadBack);
    }
    let texts_checked = verify::compare(&mut json, &bundle.tokenizer, files.mistral.is_none())?;
    if let Some(tokens) = files.sliding_window_tokens() {
        notes.push(format!(
            "some layers have a window of {tokens} tokens: set `sliding_window_tokens` to that"
        ));
    }
    if let Some(encoding) = files.encoding {
        notes.push(format!(
            "chats are written as by vLLM's tokenizer mode {}: give a template for other engines",
            encoding.name
        ));
    }
    if Marks::of(&bundle.tokenizer).is_some() {
        notes.push(
            "chats are written in Harmony, as by vLLM: set `chat_format` for other engines".into(),
        );
    }
    notes.push("prompts were not compared with an engine's: watch the parity metrics".into());
    Ok(Packed { bytes, meta: bundle.meta, templates, special, texts_checked, notes })
}

fn check_templates(
    templates: &[(String, String)],
    special: &SpecialTokens,
    notes: &mut Vec<String>,
) -> Result<(), PackError> {
    if templates.is_empty() {
        notes.push("no chat template: chat requests for this model cannot be tokenized".into());
        return Ok(());
    }
    let extra = special.extra.iter();
    let variables = warmpath_template::SpecialTokens {
        bos_token: special.bos_token.clone(),
        eos_token: special.eos_token.clone(),
        pad_token: special.pad_token.clone(),
        unk_token: special.unk_token.clone(),
        extra: extra.map(|(key, token)| (key.clone(), Value::String(token.clone()))).collect(),
    };
    ChatTemplates::compile(templates, variables)?;
    Ok(())
}
