//! The prompt in Harmony that a request comes to, against what vLLM 0.32 makes of it for a gpt-oss model:
//! the recorded cases of `integration/vectors/vllm/harmony.jsonl`, which `harmony.py` there writes anew.
//! The tokens of the same prompts are compared in `integration/vllm`.
//!
//! `WARMPATH_HARMONY` names another file of such cases, for longer random runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warmpath_core::config::ChatConfig;
use warmpath_core::piece::Piece;
use warmpath_core::request::{Api, ChatFormat, PromptInput, RequestError, parse_for};
use warmpath_template::CivilTime;

const BEGINNING: &str = "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
    Knowledge cutoff: 2024-06\nCurrent date: 2026-01-02\n\nReasoning: ";

fn file() -> PathBuf {
    std::env::var_os("WARMPATH_HARMONY").map_or_else(
        || {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../integration/vectors/vllm/harmony.jsonl")
        },
        PathBuf::from,
    )
}

/// The prompt's text behind its fixed beginning.
fn ours(api: Api, body: &str, hides_unused_tools: bool) -> Result<String, RequestError> {
    let request = parse_for(api, body.as_bytes(), |_| ChatFormat::Harmony)?;
    let PromptInput::Harmony(mut conversation) = request.prompt else { panic!("{body}") };
    conversation.restrict(&ChatConfig { hides_unused_tools, ..ChatConfig::default() });
    let day = CivilTime::from_unix(1_767_312_000, 0, 0);
    let text: String = conversation
        .pieces(day)
        .expect("short")
        .iter()
        .map(|piece| match piece {
            Piece::Mark(mark) => mark.text(),
            Piece::Text(text) => text.as_ref(),
        })
        .collect();
    Ok(text.strip_prefix(BEGINNING).expect("the beginning").to_owned())
}

#[test]
fn prompts_are_those_of_vllm() {
    let text = std::fs::read_to_string(file()).unwrap();
    let (mut equal, mut refused, mut named, mut wrong) = (0, 0, BTreeMap::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let (api, body, traits, expected): (String, String, Value, Option<(String, u32, String)>) =
            serde_json::from_str(line).unwrap();
        let api = Api::from_name(&api).unwrap();
        let ours = ours(api, &body, traits["hides_unused_tools"] == true);
        match (ours, expected) {
            (Ok(ours), Some((expected, ..))) if ours == expected => equal += 1,
            (Err(_), None) => refused += 1,
            // What is not read is placed by load under its name.
            (Err(error), Some(_)) => *named.entry(error.to_string()).or_insert(0) += 1,
            // A request that the engine refuses costs nothing.
            (Ok(_), None) => refused += 1,
            (Ok(ours), Some((expected, ..))) => {
                wrong.push(format!(
                    "{}: {body}\n  vllm: {expected:?}\n  ours: {ours:?}",
                    number + 1
                ));
            }
        }
    }
    println!("{equal} equal, {refused} refused, not read: {named:#?}");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    let not_read: i32 = named.values().sum();
    assert!(equal >= 550 && not_read * 15 <= equal, "{equal} equal, not read: {named:#?}");
}
