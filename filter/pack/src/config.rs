//! What tokenizer_config.json says about the tokenizer.

use serde_json::{Map, Value, json};
use warmpath_bundle::SpecialTokens;

/// The special tokens that every tokenizer of transformers may have.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token is a string or an object with `content`.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content").and_then(Value::as_str))
}

/// The special tokens, as chat templates see them.
pub(crate) fn special_tokens(config: &Value) -> SpecialTokens {
    let named = |key: &str| config.get(key).and_then(content).map(str::to_owned);
    let mut extra: Vec<(String, String)> = Vec::new();
    let own = config.as_object().into_iter().flatten();
    let more = config.get("extra_special_tokens").and_then(Value::as_object).into_iter().flatten();
    for (key, value) in own.filter(|(key, _)| key.ends_with("_token")).chain(more) {
        let variable = !["bos_token", "eos_token", "unk_token", "pad_token"]
            .contains(&key.as_str())
            && !extra.iter().any(|(known, _)| known == key);
        if let (true, Some(token)) = (variable, content(value)) {
            extra.push((key.clone(), token.to_owned()));
        }
    }
    SpecialTokens {
        bos_token: named("bos_token"),
        eos_token: named("eos_token"),
        unk_token: named("unk_token"),
        pad_token: named("pad_token"),
        extra,
        additional: unnamed(config).filter_map(content).map(str::to_owned).collect(),
    }
}

/// The lists of special tokens without a role.
fn unnamed(config: &Value) -> impl Iterator<Item = &Value> {
    ["additional_special_tokens", "extra_special_tokens"]
        .into_iter()
        .filter_map(|key| config.get(key).and_then(Value::as_array))
        .flatten()
}

/// Adds the special tokens that the configuration has and tokenizer.json has not, in
/// transformers' order: those of `added_tokens_decoder`, the named ones, the others.
pub(crate) fn amend(tokenizer: &mut Value, config: &Value, notes: &mut Vec<String>) {
    let mut wanted: Vec<Value> = Vec::new();
    let mut decoder: Vec<(u64, &Value)> = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, token)))
        .collect();
    decoder.sort_by_key(|(id, _)| *id);
    wanted.extend(decoder.into_iter().map(|(_, token)| token.clone()));
    let named = NAMED.into_iter().filter_map(|key| config.get(key));
    for token in named.chain(unnamed(config)) {
        let mut token = match token {
            Value::Object(map) => map.clone(),
            _ => Map::from_iter([("content".to_owned(), token.clone())]),
        };
        token.insert("special".into(), Value::Bool(true));
        wanted.push(Value::Object(token));
    }
    let mut next_id = largest_id(tokenizer) + 1;
    for token in wanted {
        let Some(text) = content(&token).filter(|text| !text.is_empty()) else { continue };
        if is_added(tokenizer, text) {
            continue;
        }
        let id = own_id(tokenizer, text).unwrap_or_else(|| {
            next_id += 1;
            next_id - 1
        });
        notes.push(format!(
            "added token {text:?} as {id}: the configuration has it, tokenizer.json not"
        ));
        let flag = |key: &str| token.get(key).and_then(Value::as_bool).unwrap_or(false);
        let entry = json!({
            "id": id,
            "content": text,
            "single_word": flag("single_word"),
            "lstrip": flag("lstrip"),
            "rstrip": flag("rstrip"),
            "normalized": flag("normalized"),
            "special": flag("special"),
        });
        match tokenizer.get_mut("added_tokens").and_then(Value::as_array_mut) {
            Some(list) => list.push(entry),
            None => tokenizer["added_tokens"] = json!([entry]),
        }
    }
}

fn added(tokenizer: &Value) -> impl Iterator<Item = &Value> {
    tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten()
}

fn is_added(tokenizer: &Value, text: &str) -> bool {
    added(tokenizer).any(|token| content(token) == Some(text))
}

fn own_id(tokenizer: &Value, text: &str) -> Option<u64> {
    match tokenizer.pointer("/model/vocab")? {
        Value::Object(map) => map.get(text)?.as_u64(),
        Value::Array(list) => list
            .iter()
            .position(|entry| entry.get(0).and_then(Value::as_str) == Some(text))
            .map(|id| id as u64),
        _ => None,
    }
}

fn largest_id(tokenizer: &Value) -> u64 {
    let own = match tokenizer.pointer("/model/vocab") {
        Some(Value::Object(map)) => map.values().filter_map(Value::as_u64).max(),
        Some(Value::Array(list)) => (list.len() as u64).checked_sub(1),
        _ => None,
    };
    let added = added(tokenizer).filter_map(|token| token.get("id").and_then(Value::as_u64));
    own.into_iter().chain(added).max().unwrap_or(0)
}

/// Notes what engines may do otherwise.
pub(crate) fn note_differences(tokenizer: &Value, config: &Value, notes: &mut Vec<String>) {
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let post_processor = tokenizer.get("post_processor").map(Value::to_string).unwrap_or_default();
    let bos = config.get("bos_token").and_then(content).unwrap_or_default();
    if flag("add_bos_token") && !bos.is_empty() && !post_processor.contains(bos) {
        notes.push(
            "tokenizer_config.json asks for add_bos_token, tokenizer.json adds none: plain \
             completions get a BOS from transformers 4, none from 5 and none here"
                .into(),
        );
    }
    for dropped in ["truncation", "padding"] {
        if tokenizer.get(dropped).is_some_and(|value| !value.is_null()) {
            notes.push(format!("{dropped} of tokenizer.json left out: engines take whole prompts"));
        }
    }
    if config.get("auto_map").is_some() {
        notes.push(
            "the model brings tokenizer code of its own (auto_map), which cannot be run here"
                .into(),
        );
    }
    if flag("split_special_tokens") {
        notes.push(
            "split_special_tokens is set: special tokens in texts are taken whole here".into(),
        );
    }
}
