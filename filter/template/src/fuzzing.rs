//! The entry of the fuzz target.
//!
//! In: bytes, read as a template, and after a NUL as the JSON of the request's
//! variables. What must hold: compiling and rendering end; the same input
//! renders to the same output again and under a compiled copy; the limits hold;
//! and more fuel or room never changes an output, only errors.

use serde_json::{Map, Value, json};

use crate::{ChatRequest, ChatTemplates, CivilTime, RenderError, RenderLimits, SpecialTokens};

/// Small enough to be fast, large enough for loops.
const LIMITS: RenderLimits =
    RenderLimits { fuel: 20_000, output_bytes_max: 64 * 1024, value_depth_max: 32 };

/// Renders arbitrary input and checks what must hold.
///
/// # Panics
/// When something does not hold.
pub fn fuzz_render(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (source, variables) = text.split_once('\0').unwrap_or((text, "{}"));
    let variables = match serde_json::from_str(variables) {
        Ok(Value::Object(variables)) => variables,
        _ => Map::new(),
    };
    let sources = [("default".to_owned(), source.to_owned())];
    let compile = || ChatTemplates::compile(&sources, SpecialTokens::default());
    let Ok(templates) = compile() else {
        return;
    };
    let first = render(&templates, &variables, &LIMITS);
    assert_eq!(first, render(&templates, &variables, &LIMITS), "rendering again differs");
    if let Ok(copy) = compile() {
        assert_eq!(first, render(&copy, &variables, &LIMITS), "a compiled copy differs");
    }
    if let Ok(prompt) = &first {
        assert!(prompt.len() <= LIMITS.output_bytes_max, "the output limit does not hold");
        let wider = RenderLimits {
            fuel: LIMITS.fuel * 2,
            output_bytes_max: LIMITS.output_bytes_max * 2,
            ..LIMITS
        };
        let again = render(&templates, &variables, &wider);
        assert_eq!(first, again, "wider limits change an output");
    }
}

fn render(
    templates: &ChatTemplates,
    variables: &Map<String, Value>,
    limits: &RenderLimits,
) -> Result<String, RenderError> {
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"items": [1, 2.5, null]}}}
        ]},
    ]);
    templates.render(
        &ChatRequest {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: variables,
            template_name: None,
            now: CivilTime::from_unix(1_700_000_000, 0, 0),
        },
        limits,
    )
}
