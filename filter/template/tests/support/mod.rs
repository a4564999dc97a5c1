//! Where the vectors lie, and how a conversation of theirs is rendered.

// Each test uses a part.
#![allow(dead_code)]

use std::path::PathBuf;

use serde_json::{Map, Value};
use warmpath_template::{
    ChatRequest, ChatTemplates, CivilTime, MessageRules, RenderError, RenderLimits, SpecialTokens,
    TemplateError,
};

/// The folder of the vectors in the repository.
pub fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../integration/vectors/templates")
}

/// The folder of the fetched templates. Panics when they were not fetched.
pub fn templates() -> PathBuf {
    let folder = match std::env::var_os("WARMPATH_TEMPLATES_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache/templates"),
    };
    assert!(
        folder.join("SHA256").exists(),
        "no chat templates in {}: run `make templates` first \
         (or python3 integration/vectors/templates/fetch.py)",
        folder.display()
    );
    folder
}

/// A JSON file of the vectors.
pub fn read_json(name: &str) -> Value {
    let path = vectors().join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The special tokens that the vectors were made with.
pub fn special_tokens() -> SpecialTokens {
    SpecialTokens {
        bos_token: Some("<|bos|>".to_owned()),
        eos_token: Some("<|eos|>".to_owned()),
        pad_token: Some("<|pad|>".to_owned()),
        unk_token: Some("<|unk|>".to_owned()),
        extra: Map::new(),
    }
}

/// The time that the vectors were made at.
pub const NOW: CivilTime = CivilTime {
    year: 2026,
    month: 3,
    day: 9,
    hour: 14,
    minute: 5,
    second: 7,
    microsecond: 123_456,
};

/// Compiles one template under one version's rules.
pub fn compile(source: &str, rules: MessageRules) -> Result<ChatTemplates, TemplateError> {
    let sources = [("default".to_owned(), source.to_owned())];
    Ok(ChatTemplates::compile(&sources, special_tokens())?.with_rules(rules))
}

/// Renders one conversation of `conversations.json`.
pub fn render(templates: &ChatTemplates, conversation: &Value) -> Result<String, RenderError> {
    let empty = Map::new();
    let flag = |name: &str| conversation[name].as_bool().unwrap_or(false);
    let chat = ChatRequest {
        messages: &conversation["messages"],
        tools: conversation.get("tools"),
        documents: conversation.get("documents"),
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        kwargs: conversation["kwargs"].as_object().unwrap_or(&empty),
        template_name: None,
        now: NOW,
    };
    templates.render(&chat, &RenderLimits::default())
}
