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

fn main() {
    let manifest = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let demo = manifest.join("../../examples/demo-model/chat_template.jinja");
    let named = std::env::args().skip(1).map(|name| support::templates().join(name));
    for path in std::iter::once(demo).chain(named) {
        let source = std::fs::read_to_string(&path).unwrap();
        let with = support::compile(&source, MessageRules::V5).unwrap();
        let without = support::compile(&source, MessageRules::V5).unwrap().without_memo();
        for turns in [1, 5, 31] {
            let chat = chat(turns);
            let (engine, shape) = (time_us(&without, &chat), time_us(&with, &chat));
            println!(
                "{}: {turns} turns: engine {engine:.1} us, memo {shape:.1} us",
                path.file_name().unwrap_or_default().display()
            );
        }
        println!("{:?}", with.shape_counts());
    }
}
