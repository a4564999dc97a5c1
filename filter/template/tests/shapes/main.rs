//! Prompts from the memo of shapes are those of the template engine, byte for byte.

mod cases;
mod random;
#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::fmt::Write;

use cases::{CONDITIONAL, KEPT, LEAKS, STRICTLY_REFUSED, UNASKED};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use random::{conversation, statement};
use serde_json::{Map, Value, json};
use warmpath_template::{
    ChatRequest, ChatTemplates, MessageRules, RenderError, RenderLimits, ShapeCounts,
};

/// Texts that a template could take for something else; the last ones hold what marks are made of.
const TEXTS: [&str; 14] = [
    "a",
    "  both ends \n",
    "</think>",
    "<think>why</think>\n\nbecause",
    "<tool_response>\n1\n</tool_response>",
    "{{ 1 }}{% if x %}",
    "Gr\u{f6}\u{df}e \u{65e5}\u{672c}\u{8a9e} \u{1f642}",
    "12345",
    "None",
    "\u{3000}x\u{1f}",
    "it's \"quoted\" \\n <&>",
    "a.b",
    "\u{fdd0}w000\u{fdd1}",
    "\u{fdd1} \u{fdd0}s001",
];
const BLANKS: [&str; 3] = [" ", "\n\t", "\u{3000}\u{1c}"];

/// Templates of these many official ones at least write a plain chat from its shape.
const LEARNED_MIN: usize = 60;

/// One template with and without a memo.
struct Both {
    with: ChatTemplates,
    without: ChatTemplates,
}

impl Both {
    fn new(source: &str, rules: MessageRules) -> Option<Self> {
        let compile = || support::compile(source, rules);
        let (with, without) = (compile().ok()?, compile().ok()?.without_memo());
        Some(Self { with, without })
    }

    fn of(source: &str) -> Self {
        Self::new(source, MessageRules::V5).unwrap_or_else(|| panic!("{source}"))
    }

    /// Renders both ways, compares, and gives the result.
    fn check(&self, conversation: &Value) -> Result<String, RenderError> {
        let expected = support::render(&self.without, conversation);
        let ours = support::render(&self.with, conversation);
        assert_eq!(ours, expected, "{conversation}");
        expected
    }

    /// Lets the memo learn a conversation, then renders it with other texts.
    fn check_shape(&self, conversation: &Value, rounds: usize) {
        self.check_rounds(conversation, rounds);
        // A shape that only the comparison with the engine keeps from being used is a hole in the guards.
        assert_eq!(self.with.shape_counts().refuted, 0, "{conversation}");
    }

    fn check_rounds(&self, conversation: &Value, rounds: usize) {
        self.check(conversation).ok();
        self.check(conversation).ok();
        for round in 0..rounds {
            self.check(&with_other_texts(conversation, round)).ok();
        }
    }
}

/// The same shape: texts become other texts, white space other white space, empty ones stay.
fn with_other_texts(conversation: &Value, round: usize) -> Value {
    let mut conversation = conversation.clone();
    let mut at = round;
    let mut change = |text: &mut Value| {
        let Value::String(text) = text else { return };
        match text.trim() {
            _ if text.is_empty() => {}
            "" => *text = BLANKS[at % BLANKS.len()].to_owned(),
            _ => *text = TEXTS[at % TEXTS.len()].to_owned(),
        }
        at += 5;
    };
    for message in conversation["messages"].as_array_mut().into_iter().flatten() {
        match message.get_mut("content") {
            Some(Value::Array(parts)) => {
                let texts = parts.iter_mut().filter(|part| part["type"] == "text");
                texts.filter_map(|part| part.get_mut("text")).for_each(&mut change);
            }
            Some(content) => change(content),
            None => {}
        }
    }
    conversation
}

/// The same conversation with each content as a list of one text.
fn in_parts(conversation: &Value) -> Value {
    let mut conversation = conversation.clone();
    for message in conversation["messages"].as_array_mut().into_iter().flatten() {
        if let Some(text @ Value::String(_)) = message.get_mut("content") {
            *text = json!([{"type": "text", "text": text.take()}]);
        }
    }
    conversation
}

fn official() -> Vec<(String, String)> {
    let folder = support::templates();
    let golden = support::read_json("golden.v5.json");
    let names = golden.as_object().unwrap().keys().filter(|name| *name != "versions");
    names.map(|name| (name.clone(), std::fs::read_to_string(folder.join(name)).unwrap())).collect()
}

fn demo() -> String {
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("../../examples/demo-model/chat_template.jinja");
    std::fs::read_to_string(path).unwrap()
}

fn plain_chat() -> Value {
    let messages = json!([
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is a prefix cache?"},
    ]);
    json!({"messages": messages, "add_generation_prompt": true})
}

#[test]
fn official_templates_render_alike_with_other_texts() {
    let conversations = support::read_json("conversations.json");
    let mut hits = 0;
    for (name, source) in official() {
        for (rules, rounds) in [(MessageRules::V5, 6), (MessageRules::V4, 2)] {
            let Some(both) = Both::new(&source, rules) else {
                continue;
            };
            for conversation in conversations.as_array().unwrap() {
                both.check_shape(conversation, rounds);
            }
            let counts = both.with.shape_counts();
            println!("{name} {rules:?}: {counts:?}");
            hits += counts.hits;
        }
    }
    assert!(hits > 1000, "only {hits} prompts came from a shape");
}

#[test]
fn plain_chats_of_most_templates_have_a_shape() {
    let (mut learned, mut table) = (0_usize, String::new());
    for (name, source) in official() {
        let Some(both) = Both::new(&source, MessageRules::V5) else {
            continue;
        };
        both.check_shape(&plain_chat(), TEXTS.len());
        let counts = both.with.shape_counts();
        learned += usize::from(counts.hits > 0);
        let state = match both.check(&plain_chat()) {
            Err(_) => "refused",
            Ok(_) if counts.hits > 0 => "shape",
            Ok(_) => "engine",
        };
        writeln!(table, "{name}: {state}").unwrap();
    }
    println!("{table}{learned} templates have a shape for a plain chat");
    assert!(learned >= LEARNED_MIN, "{learned}\n{table}");
}

#[test]
fn the_demo_model_has_shapes() {
    let both = Both::of(&demo());
    let conversations = support::read_json("conversations.json");
    for conversation in conversations.as_array().unwrap() {
        both.check_shape(conversation, 3);
        both.check_shape(&in_parts(conversation), 3);
    }
    let before = both.with.shape_counts().hits;
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let mut chat = plain_chat();
    chat["tools"] = tools;
    chat["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
        json!({"role": "tool", "content": "1"}),
        json!({"role": "user", "content": "and?"}),
    ]);
    both.check_shape(&chat, TEXTS.len());
    both.check_shape(&in_parts(&chat), TEXTS.len());
    assert_eq!(both.with.shape_counts().hits, before + 2 * TEXTS.len() as u64);
}

/// Renders a template over a chat until it would be learned, then with all texts.
fn counts_of(source: &str, form: impl Fn(&Value) -> Value) -> ShapeCounts {
    let both = Both::of(source);
    both.check_rounds(&form(&plain_chat()), 2 * TEXTS.len());
    let mut blank = plain_chat();
    blank["messages"][0]["content"] = json!(" ");
    both.check_rounds(&form(&blank), TEXTS.len());
    let mut short = plain_chat();
    short["messages"][0]["content"] = json!("b");
    short["messages"][1]["content"] = json!("a");
    let fresh = Both::of(source);
    fresh.check_rounds(&form(&short), TEXTS.len());
    let (one, other) = (both.with.shape_counts(), fresh.with.shape_counts());
    ShapeCounts {
        hits: one.hits + other.hits,
        learned: one.learned + other.learned,
        opaque: one.opaque + other.opaque,
        refuted: one.refuted + other.refuted,
    }
}

const SET: &str = "{% set c = messages[-1].content %}{% set d = messages[0].content %}";

/// The same where each content is a list of one text.
const SET_OF_PARTS: &str =
    "{% set c = messages[-1].content[0].text %}{% set d = messages[0].content[0].text %}";

#[test]
fn what_looks_into_a_text_has_no_shape() {
    assert_no_shape(SET, Value::clone);
    assert_no_shape(SET_OF_PARTS, in_parts);
}

/// Sources that go to the messages themselves expect strings there.
fn suits(set: &str, source: &str) -> bool {
    set == SET || !source.contains("messages")
}

fn assert_no_shape(set: &str, form: impl Fn(&Value) -> Value) {
    let mut leaks = String::new();
    for leak in LEAKS.iter().chain(UNASKED).filter(|source| suits(set, source)) {
        let source = format!("{set}{leak}");
        let counts = counts_of(&source, &form);
        // Where the engine itself fails, nothing would be learned, and the line tests nothing.
        let is_tried = counts.opaque > 0 || counts.refuted > 0 || STRICTLY_REFUSED.contains(leak);
        if counts.hits > 0 || counts.refuted > 0 || !is_tried {
            writeln!(leaks, "{leak}: {counts:?}").unwrap();
        }
    }
    assert!(leaks.is_empty(), "{leaks}");
}

#[test]
fn what_only_passes_a_text_on_has_a_shape() {
    assert_shapes(SET, Value::clone);
    assert_shapes(SET_OF_PARTS, in_parts);
}

fn assert_shapes(set: &str, form: impl Fn(&Value) -> Value) {
    let mut lost = String::new();
    for source in KEPT.iter().filter(|source| suits(set, source)) {
        let counts = counts_of(&format!("{set}{source}"), &form);
        if counts.hits < 2 * TEXTS.len() as u64 {
            writeln!(lost, "{source}: {counts:?}").unwrap();
        }
    }
    assert!(lost.is_empty(), "{lost}");
}

fn render_at(
    templates: &ChatTemplates,
    text: &str,
    change: impl FnOnce(&mut ChatRequest<'_>, &mut RenderLimits),
) -> Result<String, RenderError> {
    let messages = json!([{"role": "user", "content": text}]);
    let kwargs = Map::new();
    let mut limits = RenderLimits::default();
    let mut chat = ChatRequest {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &kwargs,
        template_name: None,
        now: support::NOW,
    };
    change(&mut chat, &mut limits);
    templates.render(&chat, &limits)
}

#[test]
fn what_asks_a_text_has_a_shape_for_each_answer() {
    let set = "{% set c = messages[-1].content %}{% set d = messages[0].content %}";
    let mut wrong = String::new();
    for source in CONDITIONAL {
        let counts = counts_of(&format!("{set}{source}"), Value::clone);
        if counts.hits == 0 || counts.refuted > 0 {
            writeln!(wrong, "{source}: {counts:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_shape_follows_the_answers_that_come() {
    let both = Both::of("{{ 'x' in messages[0].content }}{{ messages[0].content }}");
    let render = |text: &str, count: usize| {
        for _ in 0..count {
            both.check(&json!({"messages": [{"role": "user", "content": text}]})).ok();
        }
        both.with.shape_counts()
    };
    assert_eq!(render("x", 3).hits, 1);
    // Some that answer otherwise do not move it; many in a row do.
    assert_eq!(render("y", 10).hits, 1);
    assert_eq!(render("x", 1).hits, 2);
    let counts = render("y", 20);
    assert_eq!((counts.hits, counts.learned), (5, 2));
}

#[test]
fn too_many_questions_have_no_shape() {
    let questions: String = (0..300).map(|at| format!("{{{{ 'x{at}' in c }}}}")).collect();
    let counts =
        counts_of(&format!("{{% set c = messages[-1].content %}}{questions}"), Value::clone);
    assert_eq!((counts.hits, counts.learned), (0, 0));
}

/// How many random templates are tried, of which about a third compiles and renders.
const TEMPLATES: u32 = 2_000;

#[test]
fn random_templates_render_alike() {
    let config = ProptestConfig { cases: cases(), failure_persistence: None, ..<_>::default() };
    let compiled = Cell::new(0_u32);
    let (learned, opaque) = (Cell::new(0), Cell::new(0));
    let statements = proptest::collection::vec(statement(), 1..4);
    let result = TestRunner::new(config).run(&statements, |statements| {
        let source = format!(
            "{{% macro m(x, y='b') %}}{{{{ x }}}}{{{{ y }}}}{{% if caller %}}{{{{ caller() }}}}{{% endif %}}\
             {{% endmacro %}}{{% set c = messages[-1].content %}}{{% set d = messages[0].content %}}\
             {{% set ns = namespace(x=d) %}}{}",
            statements.concat()
        );
        let Some(both) = Both::new(&source, MessageRules::V5) else {
            return Ok(());
        };
        let mut short = plain_chat();
        short["messages"][0]["content"] = json!(" b");
        short["messages"][1]["content"] = json!("a");
        for chat in [plain_chat(), short] {
            both.check_shape(&chat, TEXTS.len());
        }
        let counts = both.with.shape_counts();
        compiled.set(compiled.get() + 1);
        learned.set(learned.get() + u32::from(counts.learned > 0));
        opaque.set(opaque.get() + u32::from(counts.opaque > 0));
        Ok(())
    });
    println!("{} compiled, {} learned, {} opaque", compiled.get(), learned.get(), opaque.get());
    result.unwrap();
    assert!(learned.get() > cases() / 20 && opaque.get() > cases() / 20);
}

/// `WARMPATH_SHAPE_CASES` asks for more than the usual number of random templates.
fn cases() -> u32 {
    let asked = std::env::var("WARMPATH_SHAPE_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(TEMPLATES)
}

#[test]
fn limits_hold_on_shapes() {
    let source = "{% set ns = namespace(x='') %}{% for i in range(50) %}\
                  {% set ns.x = ns.x + messages[0].content %}{% endfor %}{{ ns.x }}";
    let Both { with, without } = Both::of(source);
    for _ in 0..3 {
        assert!(render_at(&with, "a", |_, _| {}).is_ok());
    }
    assert_eq!(with.shape_counts().hits, 1);
    for bytes in [1, 10, 100, 1_000, 10_000, 100_000, 200_000] {
        let text = "x".repeat(bytes);
        for fuel in [100, 1_000, 10_000, 100_000, 2_000_000] {
            for output_bytes_max in [100, 10_000, 8 << 20] {
                let both = [&with, &without].map(|templates| {
                    render_at(templates, &text, |_, limits| {
                        *limits = RenderLimits { fuel, output_bytes_max, ..*limits };
                    })
                });
                assert_eq!(both[0], both[1], "{bytes} bytes, {fuel} fuel, {output_bytes_max} out");
            }
        }
        for value_depth_max in [1, 2, 3, 4] {
            let both = [&with, &without].map(|templates| {
                render_at(templates, "a", |_, limits| limits.value_depth_max = value_depth_max)
            });
            assert_eq!(both[0], both[1], "depth {value_depth_max}");
        }
    }
    assert!(with.shape_counts().hits > 30, "{:?}", with.shape_counts());
}

#[test]
fn another_day_is_another_shape() {
    let Both { with, without } =
        Both::of("{{ strftime_now('%Y-%m-%d') }}{{ messages[0].content }}");
    for day in [1, 1, 1, 2, 2, 2, 1] {
        let both = [&with, &without].map(|templates| {
            render_at(templates, "a", |chat, _| {
                chat.now.day = day;
                chat.now.second = day;
            })
        });
        assert_eq!(both[0], both[1]);
    }
    assert_eq!(with.shape_counts().hits, 3);
}

#[test]
fn the_memo_forgets_the_least_used() {
    let Both { with, without } =
        Both::of("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}");
    let chat = |role: &str, text: &str| json!({"messages": [{"role": role, "content": text}]});
    let both = Both { with, without };
    for round in 0..3 {
        both.check(&chat("kept", &format!("text {round}"))).ok();
    }
    for at in 0..600 {
        for round in 0..3 {
            both.check(&chat(&format!("role{at}"), &format!("text {round}"))).ok();
        }
        both.check(&chat("kept", "again")).ok();
    }
    let counts = both.with.shape_counts();
    assert_eq!((counts.hits, counts.learned), (1 + 600 + 600, 601));
    let long = "r".repeat(60_000);
    for at in 0..100 {
        for _ in 0..3 {
            both.check(&chat(&format!("{long}{at}"), "x")).ok();
        }
    }
    assert_eq!(both.with.shape_counts().learned, 701);
}

#[test]
fn marks_in_a_request_are_no_texts() {
    let both = Both::of("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}{{ x }}");
    let mark = "\u{fdd0}w000\u{fdd1}";
    for conversation in [
        json!({"messages": [{"role": mark, "content": "a"}]}),
        json!({"messages": [{"role": "user", "content": "a"}], "kwargs": {"x": mark}}),
        json!({"messages": [{"role": "user", "content": "a", mark: 1}]}),
    ] {
        both.check_shape(&conversation, TEXTS.len());
    }
    assert_eq!(both.with.shape_counts().hits, 0);
    let mut special = support::special_tokens();
    special.extra.insert("x".to_owned(), json!(["a", mark]));
    let sources = [("default".to_owned(), "{{ messages[0].content }}{{ x[1] }}".to_owned())];
    let with = ChatTemplates::compile(&sources, special.clone()).unwrap();
    let without = ChatTemplates::compile(&sources, special).unwrap().without_memo();
    let special = Both { with, without };
    special.check_shape(&plain_chat(), TEXTS.len());
    assert_eq!(special.with.shape_counts(), ShapeCounts::default());
    let source = format!("{{{{ messages[0].content }}}}{mark}");
    assert_eq!(counts_of(&source, Value::clone).hits, 0);
}

#[test]
fn all_but_the_texts_is_part_of_a_shape() {
    let both = Both::of(
        "{{ messages|map(attribute='content')|join }}{{ messages|map(attribute='role')|join }}\
         {{ messages[0].name }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ x }}{{ y }}",
    );
    let base = json!({"messages": [{"role": "user", "content": "a"}]});
    let mut changed = vec![base.clone()];
    for (path, value) in [
        ("/messages/0/role", json!("tool")),
        ("/messages/0/name", json!("n")),
        ("/messages/1", json!({"role": "user", "content": "b"})),
        ("/tools", json!([{"a": 1}])),
        ("/tools", json!([{"a": 1.0}])),
        ("/documents", json!([{"a": 1}])),
        ("/documents", json!([{"a": "1"}])),
        ("/add_generation_prompt", json!(true)),
        ("/kwargs", json!({"x": 1})),
        ("/kwargs", json!({"y": 1})),
        ("/kwargs", json!({"x": 1, "y": 1})),
    ] {
        let mut conversation = base.clone();
        match path.rsplit_once('/').unwrap() {
            ("/messages", _) => conversation["messages"].as_array_mut().unwrap().push(value),
            ("/messages/0", name) => conversation["messages"][0][name] = value,
            (_, name) => conversation[name] = value,
        }
        changed.push(conversation);
    }
    for _ in 0..3 {
        for conversation in &changed {
            both.check(conversation).ok();
        }
    }
    let counts = both.with.shape_counts();
    let count = changed.len() as u64;
    assert_eq!((counts.learned, counts.hits), (count, count));
}

#[test]
fn a_continued_message_is_left_to_the_engine() {
    let both = Both::of("{% for m in messages %}{{ m.content }}{% endfor %}");
    let continued = json!({
        "messages": [{"role": "assistant", "content": "a"}], "continue_final_message": true,
    });
    both.check_shape(&continued, 4);
    assert_eq!(both.with.shape_counts(), ShapeCounts::default());
}

#[test]
fn lists_that_are_printed_whole_have_no_shape() {
    let both = Both::of("{% for m in messages %}{{ m.content }}{% endfor %}");
    let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]});
    both.check_shape(&parts, 4);
    assert_eq!(both.with.shape_counts().hits, 0);
}

thread_local! {
    static MODELS: Vec<Both> = {
        let official = official().into_iter().filter_map(|(_, s)| Both::new(&s, MessageRules::V5));
        official.chain([Both::of(&demo())]).collect()
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_chats_render_alike(conversation in conversation(), other in conversation(), at in any::<usize>()) {
        MODELS.with(|models| {
            let both = &models[at % models.len()];
            both.check_shape(&conversation, 3);
            both.check_shape(&other, 1);
        });
    }
}
