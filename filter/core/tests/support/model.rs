//! A model small enough to be made on the spot: its tokens are bytes, and a few added tokens.

use serde_json::{Value, json};
use warmpath_bundle::{BundleSource, MistralFormat, SpecialTokens, write};

/// The added tokens; their ids start at 256.
pub const ADDED: [&str; 4] = ["<s>", "</s>", "<|image_pad|>", "<audio>"];

/// A tokenizer of single bytes; `added` tokens follow, and the first goes before texts that ask for it.
fn tokenizer_json(added: &[&str]) -> String {
    let mut vocab = serde_json::Map::new();
    let mut shifted = 0_u32;
    for byte in 0..=255_u8 {
        // Bytes that are no visible characters are written as others in such vocabularies.
        let shown = if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            char::from(byte)
        } else {
            shifted += 1;
            char::from_u32(255 + shifted).expect("a character")
        };
        vocab.insert(shown.to_string(), u32::from(byte).into());
    }
    let first = added.first().expect("an added token");
    let added: Vec<Value> = added
        .iter()
        .enumerate()
        .map(|(index, content)| {
            json!({"id": 256 + index, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": first, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {*first: {"id": first, "ids": [256], "tokens": [first]}}},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    })
    .to_string()
}

/// A bundle of that tokenizer and a chat template; an empty one is none.
#[allow(dead_code, reason = "not every user of this file needs it")]
pub fn bundle(template: &str) -> Vec<u8> {
    bundle_with(template, &ADDED)
}

/// The same with other added tokens.
#[allow(dead_code, reason = "not every user of this file needs it")]
pub fn bundle_with(template: &str, added: &[&str]) -> Vec<u8> {
    bundle_for(template, added, None)
}

/// The same for a model whose chats Mistral's library writes.
#[allow(dead_code, reason = "not every user of this file needs it")]
pub fn bundle_for(template: &str, added: &[&str], mistral: Option<&MistralFormat>) -> Vec<u8> {
    let templates = [("default".to_owned(), template.to_owned())];
    let templates = if template.is_empty() { &[][..] } else { &templates };
    let special = SpecialTokens {
        bos_token: added.first().map(|&first| first.to_owned()),
        ..SpecialTokens::default()
    };
    write(&BundleSource {
        name: "m",
        tokenizer_json: &tokenizer_json(added),
        templates,
        special: &special,
        mistral,
    })
    .expect("packs")
}
