//! The entry of the fuzz target.
//!
//! In: bytes, read as a template, and after a NUL as the JSON of the request's
//! variables. What must hold: compiling and rendering end; the same input
//! renders to the same output again and under a compiled copy; a prompt from a
//! shape is the engine's, whatever the texts are; the limits hold;
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
    if let (Ok(with), Ok(without)) = (compile(), compile()) {
        check_shapes(&with, &without.without_memo(), &variables);
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

/// Texts for one shape: the first two teach it.
const TEXTS: [(&str, &str); 6] = [
    ("s", "u"),
    ("s", "u"),
    (" s ", "12"),
    ("</a>", "s"),
    ("<b", "\u{fdd0}w000\u{fdd1}"),
    ("u", "u"),
];

/// Checks that prompts from shapes are those of the engine.
fn check_shapes(with: &ChatTemplates, without: &ChatTemplates, variables: &Map<String, Value>) {
    for (system, user) in TEXTS {
        let messages = json!([
            {"role": "system", "content": system},
            {"role": "user", "content": user},
            {"role": "assistant", "content": ""},
        ]);
        let render = |templates| render_messages(templates, &messages, variables, &LIMITS);
        let (ours, engine) = (render(with), render(without));
        assert_eq!(ours, engine, "a prompt from a shape differs");
    }
    assert_eq!(with.shape_counts().refuted, 0, "a guard has a hole");
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
    render_messages(templates, &messages, variables, limits)
}

fn render_messages(
    templates: &ChatTemplates,
    messages: &Value,
    variables: &Map<String, Value>,
    limits: &RenderLimits,
) -> Result<String, RenderError> {
    templates.render(
        &ChatRequest {
            messages,
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
