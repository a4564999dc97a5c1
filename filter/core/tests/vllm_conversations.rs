//! What a template gets for a request, against what vLLM 0.32 hands to it: the recorded cases of
//! `integration/vectors/vllm/conversations.jsonl`, which `conversations.py` there writes anew.
//!
//! `WARMPATH_CONVERSATIONS` names another file of such cases, for longer random runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use warmpath_core::config::ChatConfig;
use warmpath_core::conversation::{Conversation, Placeholders, TemplateTraits, prepare};
use warmpath_core::request::{Api, PromptInput, Request, RequestError, Side, parse};
use warmpath_template::ContentFormat;

/// Defaults that the file leaves out.
fn with_defaults(expected: &Map<String, Value>) -> Map<String, Value> {
    let defaults = serde_json::json!({
        "tools": null, "documents": null, "add_generation_prompt": true,
        "continue_final_message": false, "kwargs": {}, "special_tokens": false, "truncate": null,
        "truncate_side": null,
    });
    let Value::Object(mut all) = defaults else { panic!() };
    all.extend(expected.clone());
    all
}

fn traits_of(traits: &Value) -> (TemplateTraits, ChatConfig) {
    let is_set = |name: &str| traits[name].as_bool().unwrap_or(false);
    let traits = TemplateTraits {
        content_format: match traits["content_format"].as_str() {
            Some("openai") => ContentFormat::OpenAi,
            _ => ContentFormat::String,
        },
        has_developer_role: is_set("developer"),
        is_system_first: is_set("system_first"),
        is_verbatim: false,
        thinking_off_effort: match traits["thinking_off_effort"].as_str() {
            Some("low") => "low",
            _ => "none",
        },
        placeholders: Placeholders {
            image: "<image>".to_owned(),
            audio: "<audio>".to_owned(),
            video: "<video>".to_owned(),
        },
    };
    (traits, ChatConfig::default())
}

/// Our counterpart of a recorded case.
fn ours(request: Request, traits: &TemplateTraits, config: &ChatConfig) -> Map<String, Value> {
    let truncation = request.truncation;
    let PromptInput::Chat(chat) = request.prompt else { panic!("no chat") };
    let special_tokens = chat.special_tokens;
    let Conversation {
        messages,
        tools,
        documents,
        add_generation_prompt,
        continue_final_message,
        kwargs,
        begun_answer: _,
        media: _,
    } = prepare(*chat, traits, config);
    let side = truncation.and_then(|it| it.side).map(|side| match side {
        Side::Left => "left",
        Side::Right => "right",
    });
    let Value::Object(ours) = serde_json::json!({
        "messages": messages,
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "kwargs": kwargs,
        "special_tokens": special_tokens,
        "truncate": truncation.map(|it| it.tokens_max),
        "truncate_side": side,
    }) else {
        panic!()
    };
    ours
}

/// Text that shows the order of all members but the outermost ones.
fn shown(mut value: Map<String, Value>) -> String {
    // A negative count leaves prompts alone that fit; we have none.
    if value["truncate"].as_i64().is_some_and(|count| count < 0) {
        value["truncate"] = Value::Null;
        value["truncate_side"] = Value::Null;
    }
    if let Some(Value::Object(kwargs)) = value.get_mut("kwargs") {
        kwargs.sort_keys();
    }
    value.sort_keys();
    serde_json::to_string(&value).unwrap()
}

fn file() -> PathBuf {
    std::env::var_os("WARMPATH_CONVERSATIONS").map_or_else(
        || {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../integration/vectors/vllm/conversations.jsonl")
        },
        PathBuf::from,
    )
}

#[test]
fn templates_get_what_vllm_gives_them() {
    let text = std::fs::read_to_string(file()).unwrap();
    let (mut equal, mut named, mut wrong) = (0, BTreeMap::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let (api, body, traits, expected): (String, String, Value, Option<Map<String, Value>>) =
            serde_json::from_str(line).unwrap();
        let api = Api::from_name(&api).unwrap();
        let parsed = parse(api, body.as_bytes());
        let (template, mut config) = traits_of(&traits);
        config.hides_unused_tools = traits["hides_unused_tools"] == true;
        if let Some(Value::Object(defaults)) = traits.get("default_kwargs") {
            config.template_kwargs = defaults.clone();
        }
        match (expected, parsed) {
            (Some(expected), Ok(request)) => {
                let expected = shown(with_defaults(&expected));
                let ours = shown(ours(request, &template, &config));
                if ours == expected {
                    equal += 1;
                } else {
                    wrong.push(format!("{number}: {body}\n  ours   {ours}\n  theirs {expected}"));
                }
            }
            // Not to be known for sure is no error, if it is said.
            (Some(_), Err(RequestError::Unsupported(_) | RequestError::Number)) => {
                *named.entry("unsupported").or_insert(0) += 1;
            }
            (Some(_), Err(error)) => {
                wrong.push(format!("{number}: {body}\n  ours   {error:?}"));
            }
            // What the engine refuses is computed nowhere; a tokenizer's refusal is ours too.
            (None, _) => *named.entry("refused").or_insert(0) += 1,
        }
    }
    for case in wrong.iter().take(15) {
        println!("{case}");
    }
    println!("{equal} equal, {named:?}");
    assert!(wrong.is_empty(), "{} differ", wrong.len());
    assert!(equal >= 500, "only {equal} compared");
    assert!(named.get("unsupported").is_none_or(|count| count * 100 < equal), "{named:?}");
}
