//! What vLLM made of requests, recorded, against what we make of them.
//!
//! Families whose tokenizer or template is not cached are named and skipped; with
//! `WARMPATH_REQUIRE_VECTORS=1` they are a failure.

mod deepseek;
mod mistral;
mod tokens;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use warmpath_core::config::ChatConfig;

/// What a vector's traits say of a model's configuration.
fn config(traits: &Value) -> ChatConfig {
    ChatConfig {
        hides_unused_tools: traits["hides_unused_tools"] == true,
        template_kwargs: traits["default_kwargs"].as_object().map_or_else(Map::new, Map::clone),
        ..ChatConfig::default()
    }
}

/// How requests went that vLLM takes.
#[derive(Default)]
struct Tally {
    equal: usize,
    wrong: Vec<String>,
    not_written: BTreeMap<String, Vec<String>>,
}

impl Tally {
    /// Adds a request: whether our prompt is vLLM's, with both to show, or why there is none.
    fn add(&mut self, body: &str, ours: Result<(bool, String), String>) {
        match ours {
            Ok((true, _)) => self.equal += 1,
            Ok((false, both)) => self.wrong.push(format!("{body}\n{both}")),
            // It is placed by load, under its name.
            Err(error) => self.not_written.entry(error).or_default().push(body.to_owned()),
        }
    }

    /// None differs, most are written, and at least so many.
    fn check(&self, name: &str, equal_min: usize) {
        let Self { equal, wrong, not_written } = self;
        let count: usize = not_written.values().map(Vec::len).sum();
        println!("{name}: {equal} equal, {} differ, {count} not written", wrong.len());
        for (error, bodies) in not_written {
            println!("  {}: {error}: {}", bodies.len(), bodies[0]);
        }
        let shown = wrong[..wrong.len().min(8)].join("\n");
        assert!(wrong.is_empty(), "{name}: {} differ:\n{shown}", wrong.len());
        assert!(
            *equal >= equal_min && count * 15 <= *equal,
            "{name}: {equal} equal, {count} not written"
        );
    }
}
