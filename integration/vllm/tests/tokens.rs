//! Token ids against those that a vLLM gave, for chats with tools, thinking, prefills and the like,
//! and for texts with and without special tokens. `integration/vectors/vllm/tokens.py` writes the
//! vectors anew.
//!
//! Families whose tokenizer or template is not cached are named and skipped; with
//! `WARMPATH_REQUIRE_VECTORS=1` they are a failure.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use warmpath_core::config::ChatConfig;
use warmpath_core::ids::NowMs;
use warmpath_core::model::{Model, PromptError, prompt};
use warmpath_core::request::{Api, RequestError, parse};
use warmpath_vllm::family::{bundle, names, read, vectors};

/// Why there are no ids.
#[derive(Debug)]
#[expect(dead_code, reason = "for the message of a failure")]
enum Refused {
    Request(RequestError),
    Prompt(PromptError),
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

fn ids(model: &Model, api: Api, body: &Value) -> Result<Vec<u32>, Refused> {
    let request = parse(api, body.to_string().as_bytes()).map_err(Refused::Request)?;
    let prompt = prompt(Some(model), request, &ChatConfig::default(), NowMs(1_750_000_000_000));
    prompt.map(|prompt| prompt.tokens).map_err(Refused::Prompt)
}

fn digest(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let digest = Sha256::digest(bytes);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn check(family: &str) {
    let bundle = match bundle(family) {
        Ok(bundle) => bundle,
        Err(missing) => {
            let required = std::env::var_os("WARMPATH_REQUIRE_VECTORS").is_some();
            assert!(!required, "{} is not cached", missing.display());
            eprintln!("SKIPPED: {} is not cached", missing.display());
            return;
        }
    };
    let model = Model::from_bundle(bundle, 7).expect("loads");
    let chats: Vec<Value> = serde_json::from_str(&read(&vectors().join("chats.json"))).unwrap();
    let chats: Vec<Value> = chats.iter().map(expanded).collect();
    let lines = read(&vectors().join(format!("tokens.{family}.jsonl")));
    let (mut compared, mut wrong) = (0, Vec::new());
    for line in lines.lines() {
        let (kind, number, count, expected): (String, usize, Option<usize>, Option<String>) =
            serde_json::from_str(line).unwrap();
        let chat = &chats[number];
        let text = chat["messages"].as_array().and_then(|it| it.last()).map(|it| &it["content"]);
        let ours = match kind.as_str() {
            "chat" => ids(&model, Api::ChatCompletions, chat),
            "text" => {
                ids(&model, Api::Completions, &json!({"prompt": text, "add_special_tokens": false}))
            }
            _ => ids(&model, Api::Completions, &json!({"prompt": text})),
        };
        match (&ours, count, expected) {
            (Ok(ids), Some(count), Some(expected)) => {
                compared += 1;
                if (ids.len(), digest(ids)) != (count, expected) {
                    wrong.push(format!("{line}: {} ids", ids.len()));
                }
            }
            (Err(_), None, _) => {}
            _ => wrong.push(format!("{line}: {:?}", ours.as_ref().map(Vec::len))),
        }
    }
    assert!(wrong.is_empty(), "{family}: {wrong:#?}");
    assert!(compared >= 60, "{family}: only {compared} compared");
}

#[test]
fn llama3_1() {
    check("llama3_1");
}

#[test]
fn qwen3() {
    check("qwen3");
}

#[test]
fn deepseek_v3() {
    check("deepseek_v3");
}

#[test]
fn gemma3() {
    check("gemma3");
}

#[test]
fn mistral() {
    check("mistral");
}

#[test]
fn every_family_has_a_test() {
    let mut names = names();
    names.sort_unstable();
    assert_eq!(names, ["deepseek_v3", "gemma3", "llama3_1", "mistral", "qwen3"]);
}
