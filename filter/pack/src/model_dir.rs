//! The files of a model directory.

use std::path::{Path, PathBuf};

use serde_json::Value;
use warmpath_bundle::MistralFormat;

use crate::tekken::{self, Tekken};
use crate::{Encoding, PackError};

/// What was found in a model directory, and where.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// The text of tokenizer.json, or of what a tekken.json was turned into.
    pub tokenizer: String,
    /// Where it is.
    pub tokenizer_path: PathBuf,
    /// tokenizer_config.json, if there is one.
    pub config_path: Option<PathBuf>,
    /// special_tokens_map.json, if there is one.
    pub special_map_path: Option<PathBuf>,
    /// config.json, the model's own configuration, if there is one.
    pub model_config: Option<Value>,
    /// Template files as `(template name, path)`, the default first.
    pub template_paths: Vec<(String, PathBuf)>,
    /// How the engine writes chats, if not with a template: then those are not looked at.
    pub encoding: Option<Encoding>,
    /// How Mistral's library writes chats, for a tekken.json: then templates are not looked at either.
    pub mistral: Option<MistralFormat>,
}

impl ModelFiles {
    /// Looks into a directory. Paths given explicitly replace those of the directory. A tekken.json is taken
    /// before a tokenizer.json, unless a template is given.
    ///
    /// # Errors
    /// [`PackError::Io`] when the tokenizer, config.json or an explicit file cannot be read,
    /// [`PackError::Json`] when config.json is no JSON, [`PackError::Tekken`].
    pub fn find(
        dir: &Path,
        tokenizer: Option<&Path>,
        config: Option<&Path>,
        template: Option<&Path>,
    ) -> Result<Self, PackError> {
        let existing = |name: &str| Some(dir.join(name)).filter(|path| path.is_file());
        let tekken_path = existing(tekken::FILE).filter(|_| template.is_none());
        let tokenizer_path = match tokenizer {
            Some(path) => path.to_owned(),
            None => tekken_path.unwrap_or_else(|| dir.join("tokenizer.json")),
        };
        let mut text = read(&tokenizer_path)?;
        let mut mistral = None;
        if tokenizer_path.file_name().is_some_and(|name| name == tekken::FILE) {
            let tekken = Tekken::read(&text, &tokenizer_path)?;
            text = tekken.tokenizer;
            mistral = Some(tekken.format);
        }
        let config_path = match config {
            Some(path) => Some(path.to_owned()),
            None => existing("tokenizer_config.json"),
        };
        let template_paths = match template {
            Some(path) => vec![("default".to_owned(), path.to_owned())],
            None => template_files(dir)?,
        };
        let model_config = existing("config.json").map(|path| json(&path)).transpose()?;
        let encoding = model_config.as_ref().filter(|_| template.is_none()).and_then(encoding);
        Ok(Self {
            tokenizer: text,
            tokenizer_path,
            config_path,
            special_map_path: existing("special_tokens_map.json"),
            model_config,
            template_paths,
            encoding,
            mistral,
        })
    }

    /// tokenizer_config.json, completed as transformers does: without `added_tokens_decoder`,
    /// special_tokens_map.json wins. An empty object when there is none.
    pub(crate) fn config(&self) -> Result<Value, PackError> {
        let mut config = match &self.config_path {
            Some(path) => json(path)?,
            None => Value::Object(serde_json::Map::new()),
        };
        if let (None, Some(path)) = (config.get("added_tokens_decoder"), &self.special_map_path)
            && let Value::Object(map) = json(path)?
            && let Some(object) = config.as_object_mut()
        {
            object.extend(map);
        }
        Ok(config)
    }

    /// Tokens of the sliding attention window that some of the model's layers have; `None` where none or all
    /// have it, and without a config.json.
    pub(crate) fn sliding_window_tokens(&self) -> Option<u64> {
        let config = self.model_config.as_ref()?;
        // Models of more than text have their text part's configuration inside.
        let text = config.get("text_config").unwrap_or(config);
        let is_full = |layer: &Value| layer.as_str() == Some("full_attention");
        let is_mixed = match text.get("layer_types").and_then(Value::as_array) {
            Some(layers) => layers.iter().any(is_full) && !layers.iter().all(is_full),
            // How older models say so.
            None => text.get("sliding_window_pattern").is_some_and(|it| !it.is_null()),
        };
        let tokens = text.get("sliding_window").and_then(Value::as_u64);
        tokens.filter(|tokens| *tokens > 0 && is_mixed)
    }

    /// Chat templates as `(name, source)`: the encoding's, else those of files, else that of
    /// chat_template.json, else those of the configuration.
    pub(crate) fn templates(&self, config: &Value) -> Result<Vec<(String, String)>, PackError> {
        if let Some(encoding) = self.encoding {
            return Ok(vec![(encoding.template.to_owned(), encoding.source.to_owned())]);
        }
        if self.template_paths.is_empty() {
            let path = self.config_path.clone().unwrap_or_default();
            return named_templates(config.get("chat_template"), &path);
        }
        let mut templates = Vec::new();
        for (name, path) in &self.template_paths {
            if path.extension().is_some_and(|extension| extension == "json") {
                let found = json(path)?;
                templates.extend(named_templates(found.get("chat_template"), path)?);
            } else {
                templates.push((name.clone(), read(path)?));
            }
        }
        Ok(templates)
    }
}

/// The encoding of a model with this config.json.
fn encoding(model_config: &Value) -> Option<Encoding> {
    let architectures = model_config.get("architectures").and_then(Value::as_array);
    architectures
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find_map(Encoding::of_architecture)
}

fn template_files(dir: &Path) -> Result<Vec<(String, PathBuf)>, PackError> {
    let mut found = Vec::new();
    let default = dir.join("chat_template.jinja");
    if default.is_file() {
        found.push(("default".to_owned(), default));
    }
    let more = dir.join("additional_chat_templates");
    if more.is_dir() {
        let entries = std::fs::read_dir(&more)
            .map_err(|source| PackError::Io { path: more.clone(), source })?;
        let mut named: Vec<(String, PathBuf)> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
            .filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path)))
            .collect();
        named.sort();
        found.extend(named);
    }
    let legacy = dir.join("chat_template.json");
    if found.is_empty() && legacy.is_file() {
        found.push(("default".to_owned(), legacy));
    }
    Ok(found)
}

/// A template is a string, a list of `{name, template}`, or an object from name to template.
fn named_templates(value: Option<&Value>, path: &Path) -> Result<Vec<(String, String)>, PackError> {
    let shape =
        |detail: &str| PackError::Template { path: path.to_owned(), detail: detail.to_owned() };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![("default".to_owned(), source.clone())]),
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| {
                let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name")
                    .zip(text("template"))
                    .ok_or_else(|| shape("chat_template entry without name and template"))
            })
            .collect(),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(name, source)| {
                let source = source.as_str().ok_or_else(|| shape("chat_template is no text"))?;
                Ok((name.clone(), source.to_owned()))
            })
            .collect(),
        Some(_) => Err(shape("chat_template is neither text nor a list of templates")),
    }
}

fn read(path: &Path) -> Result<String, PackError> {
    std::fs::read_to_string(path).map_err(|source| PackError::Io { path: path.to_owned(), source })
}

fn json(path: &Path) -> Result<Value, PackError> {
    serde_json::from_str(&read(path)?)
        .map_err(|source| PackError::Json { path: path.to_owned(), source })
}
