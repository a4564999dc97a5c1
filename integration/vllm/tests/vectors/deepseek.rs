//! The chats of DeepSeek models whose engines write them with code of their own: the prompts of
//! `integration/vectors/vllm/deepseek.jsonl`, which `deepseek.py` there writes anew.
//!
//! `WARMPATH_DEEPSEEK` names another file of such prompts, for longer random runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use warmpath_core::config::ChatConfig;
use warmpath_core::ids::NowMs;
use warmpath_core::model::Model;
use warmpath_core::request::{Api, PromptInput, parse};
use warmpath_vllm::family::{encoding_bundle, read, vectors};
use warmpath_vllm::recorded::{hex_digest, model};

use crate::Tally;

/// What all prompts with tools, and all with an effort, have in common: its start and its end.
const COMMON: [(&str, &str); 4] = [
    ("## Tools\n", "<functions>\n"),
    ("## Tools\n", "### Available Tool Schemas\n"),
    ("Reasoning Effort: Absolute", "unchecked.\n\n"),
    ("Reasoning Effort: Beyond", "undiscovered.\n\n"),
];

/// Shortened as in the file.
fn shortened(text: &str) -> String {
    let mut text = text.to_owned();
    for (start, end) in COMMON {
        let mut rest = text.as_str();
        let mut out = String::new();
        while let Some((before, after)) = rest.split_once(start)
            && let Some((common, behind)) = after.split_once(end)
        {
            let digest = hex_digest(format!("{start}{common}{end}").as_bytes(), 8);
            out += &format!("{before}{{{{{digest}}}}}");
            rest = behind;
        }
        text = out + rest;
    }
    text
}

fn ours(model: &Model, api: Api, body: &str, config: &ChatConfig) -> Result<String, String> {
    let request = parse(api, body.as_bytes()).map_err(|error| error.to_string())?;
    let PromptInput::Chat(chat) = request.prompt else { panic!("{body}") };
    let rendered = model.render(*chat, config, NowMs(1_767_312_000_000));
    Ok(rendered.map_err(|error| error.to_string())?.0)
}

/// Neither the limit of a template's steps nor a quadratic loop stands in a long chat's way.
fn check_long_chat(model: &Model) {
    let said = r#"{"role": "user", "content": "go on"},
        {"role": "assistant", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "y", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "tool", "tool_call_id": "x", "content": "1"}"#;
    let body = format!(r#"{{"messages": [{}]}}"#, vec![said; 800].join(","));
    let text = ours(model, Api::ChatCompletions, &body, &ChatConfig::default()).unwrap();
    assert_eq!(text.matches("go on").count(), 800);
}

fn check(encoding: &str, equal_min: usize) {
    let Some(model) = model(encoding_bundle(encoding)) else { return };
    check_long_chat(&model);
    let file = std::env::var_os("WARMPATH_DEEPSEEK");
    let file = file.map_or_else(|| vectors().join("deepseek.jsonl"), PathBuf::from);
    let mut tally = Tally::default();
    for line in read(&file).lines() {
        let (api, body, traits, mut texts): (String, String, Value, BTreeMap<String, String>) =
            serde_json::from_str(line).unwrap();
        // What the engine refuses is computed nowhere.
        let Some(expected) = texts.remove(encoding) else { continue };
        let ours = ours(&model, Api::from_name(&api).unwrap(), &body, &crate::config(&traits));
        let compared = ours.map(|ours| {
            let ours = shortened(&ours);
            (ours == expected, format!("  vllm: {expected:?}\n  ours: {ours:?}"))
        });
        tally.add(&body, compared);
    }
    tally.check(encoding, equal_min);
}

#[test]
fn deepseek_v32() {
    check("deepseek_v32", 400);
}

#[test]
fn deepseek_v4() {
    check("deepseek_v4", 500);
}

#[test]
fn deepseek_v41() {
    check("deepseek_v41", 400);
}
