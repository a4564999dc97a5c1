//! Recorded token ids: what an engine made of the chats in `integration/vectors/vllm/chats.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use warmpath_core::config::ChatConfig;
use warmpath_core::ids::NowMs;
use warmpath_core::model::{Model, prompt};
use warmpath_core::request::{Api, parse};

use crate::family::{read, vectors};

/// What an engine made of one request.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Recorded {
    /// What of the chat was sent: all of it, or the text of its last message.
    pub kind: String,
    /// Which chat.
    pub number: usize,
    /// How many ids there are; `None` where the engine refused.
    pub count: Option<usize>,
    /// The start of their digest; `None` where the engine refused.
    pub digest: Option<String>,
}

/// The recorded lines of a file.
///
/// # Panics
/// When there is no such file, or it is not as it should be.
#[must_use]
pub fn lines(path: &Path) -> Vec<Recorded> {
    read(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The chats, by number.
///
/// # Panics
/// When they cannot be read.
#[must_use]
pub fn chats() -> Vec<Value> {
    let chats: Vec<Value> = serde_json::from_str(&read(&vectors().join("chats.json"))).unwrap();
    chats.iter().map(expanded).collect()
}

/// Writes out strings that repeat.
fn expanded(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(expanded).collect(),
        Value::Object(members) => match members.get("repeat").and_then(Value::as_array) {
            Some(repeat) if members.len() == 1 => {
                let count = usize::try_from(repeat[1].as_u64().expect("a count")).unwrap();
                repeat[0].as_str().expect("a text").repeat(count).into()
            }
            _ => members.iter().map(|(key, item)| (key.clone(), expanded(item))).collect(),
        },
        other => other.clone(),
    }
}

/// What a chat's last message says, where a test sends only that.
#[must_use]
pub fn last_content(chat: &Value) -> Option<&Value> {
    Some(&chat["messages"].as_array()?.last()?["content"])
}

/// The token ids of a request, at the moment `now`.
///
/// # Errors
/// Why there are none, in words.
pub fn ids(
    model: &Model,
    api: Api,
    body: &Value,
    config: &ChatConfig,
    now: NowMs,
) -> Result<Vec<u32>, String> {
    let request = parse(api, body.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let prompt = prompt(Some(model), request, config, now).map_err(|error| error.to_string())?;
    Ok(prompt.tokens)
}

/// The start of the ids' digest, as the scripts write it.
#[must_use]
pub fn digest(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hex_digest(&bytes, 16)
}

/// The start of a SHA-256, in hex.
#[must_use]
pub fn hex_digest(bytes: &[u8], digits: usize) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..digits].to_owned()
}

/// The model of a bundle, where what it is made of is cached. What is not is named; with
/// `WARMPATH_REQUIRE_VECTORS=1` it is a failure.
///
/// # Panics
/// When the bundle does not load, or has to be there and is not.
#[must_use]
pub fn model(bundle: Result<Vec<u8>, PathBuf>) -> Option<Model> {
    Some(Model::from_bundle(cached(bundle)?, 7).expect("loads"))
}

/// A bundle, where what it is made of is cached; see [`model`].
///
/// # Panics
/// When it has to be there and is not.
#[must_use]
pub fn cached(bundle: Result<Vec<u8>, PathBuf>) -> Option<Vec<u8>> {
    let required = std::env::var_os("WARMPATH_REQUIRE_VECTORS").is_some();
    bundle
        .inspect_err(|missing| {
            assert!(!required, "{} is not cached", missing.display());
            eprintln!("SKIPPED: {} is not cached", missing.display());
        })
        .ok()
}
