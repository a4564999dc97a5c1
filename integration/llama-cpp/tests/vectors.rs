//! Token ids against those that a llama.cpp server gave, for chats with tools, thinking, prefills and the like,
//! and for texts. `integration/vectors/llama-cpp/tokens.py` writes the vectors anew.

use serde_json::json;
use warmpath_core::config::{ChatConfig, Engine};
use warmpath_core::ids::NowMs;
use warmpath_core::request::Api;
use warmpath_vllm::family::{bundle, repository_file};
use warmpath_vllm::recorded::{chats, digest, ids, last_content, lines, model};

/// Compares all requests; the `unequal` ones, by kind and number, are known to differ.
fn check(family: &str, unequal: &[(&str, usize)]) {
    let Some(model) = model(bundle(family)) else { return };
    let config = ChatConfig { engine: Engine::LlamaCpp, ..ChatConfig::default() };
    let chats = chats();
    let (mut compared, mut wrong) = (0, Vec::new());
    let file = format!("integration/vectors/llama-cpp/tokens.{family}.jsonl");
    let mut lines = lines(&repository_file(&file)).into_iter();
    let first = lines.next().expect("the moment");
    assert_eq!(first.kind, "moment");
    let now = NowMs(first.number as u64 * 1_000);
    for line in lines {
        let chat = &chats[line.number];
        let text = last_content(chat);
        let ours = match line.kind.as_str() {
            "chat" => ids(&model, Api::ChatCompletions, chat, &config, now),
            _ => ids(&model, Api::Completions, &json!({"prompt": text}), &config, now),
        };
        // What the server refuses it computes nothing of.
        let (Some(count), Some(expected)) = (line.count, &line.digest) else { continue };
        let ours = ours.map(|ids| (ids.len(), digest(&ids)));
        let is_equal = ours.as_ref().is_ok_and(|ours| *ours == (count, expected.clone()));
        if is_equal == unequal.contains(&(&*line.kind, line.number)) {
            wrong.push(format!("{line:?}: {ours:?}, for {chat:.300}"));
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{family}: {wrong:#?}");
    assert!(compared >= 70, "{family}: only {compared} compared");
}

#[test]
fn llama3_1() {
    check("llama3_1", &[]);
}

#[test]
fn qwen3() {
    // The name `reasoning` for thoughts, which llama.cpp does not know, and accents that only the tokenizer of
    // the model's own repository composes.
    check("qwen3", &[("chat", 19), ("chat", 28), ("text", 28), ("chat", 29)]);
}
