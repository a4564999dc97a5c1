//! Token ids against those that a vLLM gave, for chats with tools, thinking, prefills and the like,
//! and for texts with and without special tokens. `integration/vectors/vllm/tokens.py` writes the
//! vectors anew.

use serde_json::{Value, json};
use warmpath_core::config::ChatConfig;
use warmpath_core::ids::NowMs;
use warmpath_core::model::{Model, prompt};
use warmpath_core::request::{Api, ChatFormat, parse_for};
use warmpath_vllm::family::{bundle, names, read, vectors};
use warmpath_vllm::recorded::{self, chats, digest, last_content, lines, model};

fn ids(model: &Model, api: Api, body: &Value) -> Result<Vec<u32>, String> {
    recorded::ids(model, api, body, &ChatConfig::default(), NowMs(1_750_000_000_000))
}

fn check(family: &str) {
    let Some(model) = model(bundle(family)) else { return };
    assert!(!model.speaks_harmony());
    let mut chats = chats();
    let is_written_by_library = family == "mistral_tekken";
    if is_written_by_library {
        // Chats with variables are refused for such models, but not here.
        for chat in &mut chats {
            chat.as_object_mut().unwrap().shift_remove("chat_template_kwargs");
        }
    }
    let (mut compared, mut wrong) = (0, Vec::new());
    for line in lines(&vectors().join(format!("tokens.{family}.jsonl"))) {
        let chat = &chats[line.number];
        let text = last_content(chat);
        let ours = match line.kind.as_str() {
            "chat" => ids(&model, Api::ChatCompletions, chat),
            "text" => {
                ids(&model, Api::Completions, &json!({"prompt": text, "add_special_tokens": false}))
            }
            _ => ids(&model, Api::Completions, &json!({"prompt": text})),
        };
        match (&ours, line.count, &line.digest) {
            (Ok(ids), Some(count), Some(expected)) => {
                compared += 1;
                if (ids.len(), &digest(ids)) != (count, expected) {
                    wrong.push(format!("{line:?}: {} ids", ids.len()));
                }
            }
            (Err(_), None, _) => {}
            // Most of what Mistral's library refuses is written here; the engine computes none of it.
            (Ok(_), None, _) if is_written_by_library => {}
            _ => wrong.push(format!("{line:?}: {:?}", ours.as_ref().map(Vec::len))),
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
fn deepseek_v4() {
    check("deepseek_v4");
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
fn mistral_tekken() {
    check("mistral_tekken");
}

/// Chats in Harmony, by the requests of `harmony.jsonl`. What is not read here is counted where the texts
/// are compared.
#[test]
fn gptoss() {
    let Some(model) = model(bundle("gptoss")) else { return };
    assert!(model.speaks_harmony());
    let mut compared = 0;
    for line in read(&vectors().join("harmony.jsonl")).lines() {
        let (api, body, traits, expected): (
            String,
            String,
            Value,
            Option<(String, usize, String)>,
        ) = serde_json::from_str(line).unwrap();
        let api = Api::from_name(&api).unwrap();
        let hides_unused_tools = traits["hides_unused_tools"] == true;
        let config = ChatConfig { hides_unused_tools, ..ChatConfig::default() };
        let Ok(request) = parse_for(api, body.as_bytes(), |_| ChatFormat::Harmony) else {
            continue;
        };
        let Some((_, count, expected)) = expected else { continue };
        let ids = prompt(Some(&model), request, &config, NowMs(1_767_312_000_000)).unwrap().tokens;
        let digest: String = digest(&ids).chars().take(8).collect();
        assert_eq!((ids.len(), digest), (count, expected), "{line}");
        compared += 1;
    }
    assert!(compared >= 550, "only {compared} compared");
}

#[test]
fn every_family_has_a_test() {
    let mut names = names();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "deepseek_v3",
            "deepseek_v4",
            "gemma3",
            "gptoss",
            "llama3_1",
            "mistral",
            "mistral_tekken",
            "qwen3"
        ]
    );
}
