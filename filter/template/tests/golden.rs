//! Every official template, every conversation, both versions of transformers: the same bytes.
//!
//! The vectors hold digests only; `integration/vectors/templates/show.py`
//! prints the reference's prompt, `cargo run --example render` prints ours.

mod support;

use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};
use warmpath_template::{MessageRules, RenderError};

/// Fewer templates than this means that the fetch or the vectors are broken.
const TEMPLATES_MIN: usize = 40;

fn digest(text: &str) -> String {
    let mut hex = String::new();
    for byte in Sha256::digest(text.as_bytes()).iter().take(16) {
        write!(hex, "{byte:02x}").unwrap();
    }
    hex
}

/// What differs from the expectation, if anything.
fn mismatch(ours: &Result<String, RenderError>, expected: &Value) -> Option<String> {
    match (ours, expected.as_array()) {
        (Err(_), None) => None,
        (Ok(prompt), None) => Some(format!("{} bytes, but transformers raises", prompt.len())),
        (Err(error), Some(_)) => Some(format!("{error}, but transformers renders")),
        (Ok(prompt), Some(fields)) if fields[0] == digest(prompt).as_str() => None,
        (Ok(prompt), Some(fields)) => {
            Some(format!("{} bytes, expected {}", prompt.len(), fields[1]))
        }
    }
}

fn check(version: &str, rules: MessageRules) {
    let folder = support::templates();
    let conversations = support::read_json("conversations.json");
    let golden = support::read_json(&format!("golden.{version}.json"));
    let mut table = String::new();
    let mut failures = String::new();
    let mut exact = 0_usize;
    for (name, expected) in golden.as_object().unwrap() {
        if name == "versions" {
            continue;
        }
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let is_valid = expected.as_object().unwrap().values().any(|result| !result.is_null());
        let templates = match support::compile(&source, rules) {
            Ok(templates) => templates,
            Err(error) if is_valid => {
                writeln!(table, "{name}: REFUSED: {error}").unwrap();
                writeln!(failures, "{name}: {error}").unwrap();
                continue;
            }
            Err(error) => {
                writeln!(table, "{name}: refused, as transformers does: {error}").unwrap();
                continue;
            }
        };
        let mut wrong = 0_usize;
        for conversation in conversations.as_array().unwrap() {
            let id = conversation["name"].as_str().unwrap();
            let ours = support::render(&templates, conversation);
            if let Some(what) = mismatch(&ours, &expected[id]) {
                wrong += 1;
                writeln!(failures, "{name} {id}: {what}").unwrap();
            }
        }
        exact += usize::from(wrong == 0);
        let state = if wrong == 0 { "exact" } else { "WRONG" };
        writeln!(table, "{name}: {state}, {wrong} mismatches").unwrap();
    }
    println!("{table}{exact} templates exact under transformers {version}");
    assert!(exact >= TEMPLATES_MIN, "only {exact} templates are exact\n{failures}");
    assert!(
        failures.is_empty(),
        "{failures}\nTo see one: python3 integration/vectors/templates/show.py TEMPLATE CONVERSATION\n\
         and: cargo run -p warmpath-template --example render -- TEMPLATE CONVERSATION"
    );
}

#[test]
fn renders_like_transformers_5() {
    check("v5", MessageRules::V5);
}

#[test]
fn renders_like_transformers_4() {
    check("v4", MessageRules::V4);
}
