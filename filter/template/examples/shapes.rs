//! Times the renders of a plain chat by the template engine and from its shape.
//!
//! `cargo run --release -p warmpath-template --example shapes -- [TEMPLATE.jinja ...]`

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use serde_json::{Value, json};
use warmpath_template::{ChatTemplates, MessageRules};

const RENDERS: u32 = 20_000;

/// Mean microseconds of a render.
fn time_us(templates: &ChatTemplates, chat: &Value) -> f64 {
    for _ in 0..100 {
        support::render(templates, chat).unwrap();
    }
    let start = Instant::now();
    for _ in 0..RENDERS {
        std::hint::black_box(support::render(templates, chat).unwrap());
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(RENDERS)
}

/// A system message, and so many turns after it; 2 KB of text a message.
fn chat(turns: usize) -> Value {
    let text = "All work and no play makes a chat dull. ".repeat(50);
    let mut messages = vec![json!({"role": "system", "content": "You are a helpful assistant."})];
    for turn in 0..turns {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": text}));
    }
    json!({"messages": messages, "add_generation_prompt": true})
}

/// 20 KB of tools.
fn tools() -> Value {
    let tool = |at| {
        let properties = json!({"path": {"type": "string", "description": "A path. ".repeat(100)}});
        let parameters = json!({"type": "object", "properties": properties, "required": ["path"]});
        json!({"type": "function", "function": {"name": format!("tool_{at}"), "parameters": parameters}})
    };
    (0..20).map(tool).collect()
}

fn main() {
    let manifest = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let demo = manifest.join("../../examples/demo-model/chat_template.jinja");
    let named = std::env::args().skip(1).map(|name| support::templates().join(name));
    for path in std::iter::once(demo).chain(named) {
        let source = std::fs::read_to_string(&path).unwrap();
        let start = Instant::now();
        let with = support::compile(&source, MessageRules::V5).unwrap();
        let compile_us = start.elapsed().as_micros();
        let without = support::compile(&source, MessageRules::V5).unwrap().without_memo();
        println!("{}: compiled in {compile_us} us", path.file_name().unwrap_or_default().display());
        for (turns, has_tools) in [(1, false), (5, false), (31, false), (5, true)] {
            let mut chat = chat(turns);
            if has_tools {
                chat["tools"] = tools();
            }
            let (engine, shape) = (time_us(&without, &chat), time_us(&with, &chat));
            let tools = if has_tools { " with tools" } else { "" };
            println!("  {turns} turns{tools}: engine {engine:.1} us, memo {shape:.1} us");
        }
        println!("  {:?}", with.shape_counts());
    }
}
