//! Small templates, each showing one difference between Python and other engines: the same text.

mod support;

use std::fmt::Write;

use serde_json::{Value, json};
use warmpath_template::{MessageRules, TemplateError};

/// Templates that are valid but refused: the odd ones among the vectors, and no more.
const REFUSALS_MAX: usize = 17;

#[test]
fn expressions_render_like_jinja2() {
    let source = support::read_json("expressions.json");
    let golden = support::read_json("golden.expressions.json");
    let templates = source["templates"].as_array().unwrap();
    let outputs = golden["outputs"].as_array().unwrap();
    assert_eq!(templates.len(), outputs.len(), "run generate_expressions.py");
    let conversation = json!({
        "messages": [{"role": "user", "content": "x"}],
        "kwargs": source["variables"],
    });
    let mut failures = String::new();
    let mut refused = String::new();
    let mut refusals = 0_usize;
    let mut failed = 0_usize;
    for (template, expected) in templates.iter().zip(outputs) {
        let text = template.as_str().unwrap();
        let ours = match support::compile(text, MessageRules::V5) {
            Ok(compiled) => support::render(&compiled, &conversation).map_err(|e| e.to_string()),
            Err(error @ TemplateError::Refused { .. }) => {
                if !expected.is_null() {
                    refusals += 1;
                    writeln!(refused, "{template}: {error}").unwrap();
                }
                continue;
            }
            Err(error) => Err(error.to_string()),
        };
        let is_same = match (&ours, expected) {
            (Ok(ours), Value::String(expected)) => ours == expected,
            (Err(_), Value::Null) => true,
            _ => false,
        };
        if !is_same {
            failed += 1;
            writeln!(failures, "{template}\n  ours     {ours:?}\n  expected {expected}").unwrap();
        }
    }
    println!("{} templates, refused though valid: {refusals}\n{refused}", templates.len());
    assert!(refusals <= REFUSALS_MAX, "{refusals} refusals\n{refused}");
    assert!(failures.is_empty(), "{failed} differ\n{failures}");
}
