//! Prompts from the memo of shapes are those of the template engine, byte for byte.

mod support;

use std::fmt::Write;

use proptest::prelude::*;
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
const LEARNED_MIN: usize = 40;

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
    let messages = conversation["messages"].as_array_mut().into_iter().flatten();
    for (at, message) in messages.enumerate() {
        if let Some(Value::String(text)) = message.get_mut("content") {
            let at = at * 5 + round;
            match text.trim() {
                _ if text.is_empty() => {}
                "" => *text = BLANKS[at % BLANKS.len()].to_owned(),
                _ => *text = TEXTS[at % TEXTS.len()].to_owned(),
            }
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
        writeln!(table, "{name}: {}", if counts.hits > 0 { "shape" } else { "engine" }).unwrap();
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
    assert_eq!(both.with.shape_counts().hits, before + TEXTS.len() as u64);
}

/// Renders a template over a chat until it would be learned, then with all texts.
fn counts_of(source: &str) -> ShapeCounts {
    let both = Both::of(source);
    both.check_rounds(&plain_chat(), 2 * TEXTS.len());
    let mut blank = plain_chat();
    blank["messages"][0]["content"] = json!(" ");
    both.check_rounds(&blank, TEXTS.len());
    let mut short = plain_chat();
    short["messages"][0]["content"] = json!("b");
    short["messages"][1]["content"] = json!("a");
    let fresh = Both::of(source);
    fresh.check_rounds(&short, TEXTS.len());
    let (one, other) = (both.with.shape_counts(), fresh.with.shape_counts());
    ShapeCounts {
        hits: one.hits + other.hits,
        learned: one.learned + other.learned,
        opaque: one.opaque + other.opaque,
        refuted: one.refuted + other.refuted,
    }
}

#[test]
fn what_looks_into_a_text_has_no_shape() {
    const LEAKS: &[&str] = &[
        // Comparisons.
        "{{ c == 'a' }}",
        "{{ 'a' != c }}",
        "{{ c == d }}",
        "{{ 'a' == 'a' == c }}",
        "{{ c < 'b' }}",
        "{{ 'b' <= c }}",
        "{{ c > 'b' }}",
        "{{ c >= d }}",
        "{{ [c] == ['a'] }}",
        "{{ {'k': c} == {'k': 'a'} }}",
        "{{ (c, 1) < ('b', 1) }}",
        "{{ messages[0] == messages[1] }}",
        "{{ messages == [] }}",
        "{{ 'a' in c }}",
        "{{ c in 'abc' }}",
        "{{ c in ['a'] }}",
        "{{ c not in ['a'] }}",
        "{{ 'a' in [c] }}",
        "{{ c in {'a': 1} }}",
        "{{ 'a' not in messages[0].values() }}",
        // Subscripts, slices, attributes.
        "{{ c[0] }}",
        "{{ c[-1] }}",
        "{{ c[1:] }}",
        "{{ c[::2] }}",
        "{{ c['x'] }}",
        "{{ c.x }}",
        "{{ c.split is defined }}",
        "{{ (c ~ 'b')[0] }}",
        "{{ {'a': 1}[c] }}",
        "{{ {'a': 1}.get(c, 2) }}",
        "{{ messages[0][c] }}",
        "{{ (c|attr('split'))('a')|length }}",
        "{% set f = c.strip %}{{ f() }}",
        "{% set f = c.split %}{{ f('a')|length }}",
        // Loops and unpacking.
        "{% for x in c %}{{ x }},{% endfor %}",
        "{% for x, in [c] %}{{ x }}{% endfor %}",
        "{% set (x,) = c %}{{ x }}",
        "{% for x in c recursive %}x{% endfor %}",
        "{% for x in [['a']] recursive %}{% if x is string %}y{% else %}{{ loop(c) }}{% endif %}{% endfor %}",
        "{% for x in [['a']] recursive %}{% set l = loop %}{% if x is string %}y{% else %}{{ l(c) }}{% endif %}{% endfor %}",
        "{% macro l(x) %}{% endmacro %}{% for x in [['a']] recursive %}{% set l = loop %}{% if x is string %}y{% else %}{{ l(c) }}{% endif %}{% endfor %}",
        "{% for x in [c, 'a', d] %}{{ loop.changed(x) }}{% endfor %}",
        "{% for x in [c, 'a', d] %}{% set l = loop %}{{ l.changed(x) }}{% endfor %}",
        "{% macro m(l, x) %}{{ l.changed(x) }}{% endmacro %}{% for x in [c, 'a'] %}{{ m(loop, x) }}{% endfor %}",
        "{% for x in [c, 'a'] %}{{ loop.cycle(c, 'b') }}{% endfor %}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*c) if c|length == 1 else '' }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[c]) == 'a' }}",
        // Filters.
        "{{ c|length }}",
        "{{ c|count }}",
        "{{ c|upper }}",
        "{{ c|lower }}",
        "{{ c|title }}",
        "{{ c|capitalize }}",
        "{{ c|replace('a', 'b') }}",
        "{{ 'xay'|replace('a', c) }}",
        "{{ 'xay'|replace(c, 'b') }}",
        "{{ c|tojson }}",
        "{{ messages|tojson }}",
        "{{ messages[0]|tojson(indent=2) }}",
        "{{ c|first }}",
        "{{ c|last }}",
        "{{ c|list }}",
        "{{ c|reverse }}",
        "{{ c|int }}",
        "{{ c|float }}",
        "{{ c|indent }}",
        "{{ c|indent(2, true) }}",
        "{{ 'a\\nb'|indent(c) }}",
        "{{ c|center(9) }}",
        "{{ c|truncate(3) }}",
        "{{ c|e }}",
        "{{ c|escape }}",
        "{{ c|forceescape }}",
        "{{ c|safe }}",
        "{{ '<'|safe + c }}",
        "{{ c + '<'|safe }}",
        "{{ c|trim('a') }}",
        "{{ c|trim(chars='a') }}",
        "{{ c|sort|length }}",
        "{{ [c, 'b']|sort }}",
        "{{ [c, 'b']|sort|first }}",
        "{{ [c, 'b']|max }}",
        "{{ [c, 'b']|min }}",
        "{{ [c, 'a']|unique|list|length }}",
        "{{ [c, d]|string }}",
        "{{ messages|groupby('content')|length }}",
        "{{ messages|map(attribute='content')|map('upper')|join }}",
        "{{ messages|map(attribute='content')|join|length }}",
        "{{ messages|map(attribute='content.0')|join(',') }}",
        "{{ [c, d]|map(attribute=0)|join(',') }}",
        "{{ [c, d]|join(attribute=0) }}",
        "{{ [c, d]|join(',', 0) }}",
        "{{ [[c]]|join(',') }}",
        "{{ [1, 2]|join(c)|length }}",
        "{{ messages|map('tojson')|join }}",
        "{{ messages|selectattr('content', 'equalto', 'a')|list|length }}",
        "{{ messages|rejectattr('content', 'eq', 'a')|list|length }}",
        "{{ messages|selectattr('content.0', 'eq', 'a')|list|length }}",
        "{{ messages|selectattr('content', 'in', ['a'])|list|length }}",
        "{{ messages|selectattr('role', 'eq', c)|list|length }}",
        "{{ [c, d]|select('eq', 'a')|list|length }}",
        "{{ [c, d]|reject('lower')|list|length }}",
        "{{ [c, d]|batch(1)|list }}",
        "{{ {'k': c}|dictsort(by='value') }}",
        "{{ {'k': c}|items|list }}",
        "{{ '%s'|format(c) }}",
        "{{ c|format }}",
        "{{ 'x'|attr(c) }}",
        "{% filter upper %}{{ c }}{% endfilter %}",
        "{% set x | upper %}{{ c }}{% endset %}{{ x }}",
        "{% set x %}{{ c }}{% endset %}{{ x == 'a' }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(c)|length }}",
        "{% macro m() %}{{ caller(c) }}{% endmacro %}{% call(x) m() %}{{ x|length }}{% endcall %}",
        "{% macro m(x=c) %}{{ x[0] }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='') %}{% set ns.x = ns.x + c %}{{ ns.x|length }}",
        "{{ namespace(x=c).x == 'a' }}",
        // The second character of a mark, which is neither of those that make one.
        "{{ c[1] }}",
        "{{ c[1:3] }}",
        "{{ c|select|list|length }}",
        "{{ c|reject('eq', 'w')|list|length }}",
        "{{ c|map('upper')|list|length }}",
        "{{ c|selectattr('x')|list|length }}",
        "{{ messages|map(attribute='content.1')|join(',') }}",
        "{{ messages|map(attribute='content.1', default='')|join(',') }}",
        "{{ [c, d]|map(attribute=1)|join(',') }}",
        "{{ [c, d]|join(attribute=1) }}",
        "{{ [c, d]|join(',', 1) }}",
        "{{ messages|selectattr('content.1', 'eq', 'w')|list|length }}",
        "{{ messages|rejectattr('content.1', 'eq', 'w')|list|length }}",
        "{{ [c, d]|selectattr(1)|list|length }}",
        "{{ (messages|map(attribute='content')|list|first)[1] }}",
        "{{ (messages|map(attribute='content')) == [] }}",
        "{{ messages[0].values() == [] }}{{ messages[0].values()|list == ['system', 'b'] }}",
        "{{ (messages[0].values(),) == (1,) }}",
        "{{ [c.strip] == [d.strip] }}",
        // Tests.
        "{{ c is eq('a') }}",
        "{{ c is ne 'a' }}",
        "{{ c is lt('b') }}",
        "{{ c is in(['a']) }}",
        "{{ 'a' is in(c) }}",
        "{{ c is lower }}",
        "{{ c is upper }}",
        "{{ c is filter }}",
        "{{ c is test }}",
        // Operators.
        "{{ c * 2 }}",
        "{{ 2 * c }}",
        "{{ [c] * 2 }}",
        "{{ c % () }}",
        "{{ '%s' % c }}",
        "{{ '%s' % (c,) }}",
        "{{ [c] }}",
        "{{ {'k': c} }}",
        "{{ 'x' ~ [c] }}",
        "{{ (c or d)[0] }}",
        "{{ (c and d)[0] }}",
        "{{ (c if true else d)[0] }}",
        "{{ (c|default('x'))[0] }}",
        "{{ (nosuch|default(c))[0] }}",
        // Keys.
        "{{ {c: 1}|length }}",
        "{{ {c: 1, 'a': 2}|length }}",
        "{{ dict([(c, 1), ('a', 2)])|length }}",
        "{{ dict([[c, 1]])['a'] }}",
        // Methods.
        "{{ c.split('a')|length }}",
        "{{ c.split()[-1] }}",
        "{{ c.startswith('a') }}",
        "{{ c.endswith('a') }}",
        "{{ 'abc'.startswith(c) }}",
        "{{ 'abc'.split(c) }}",
        "{{ 'abc'.replace('a', c) }}",
        "{{ c.replace('a', 'b') }}",
        "{{ c.find('a') }}",
        "{{ c.count('a') }}",
        "{{ c.upper() }}",
        "{{ c.lower() }}",
        "{{ c.title() }}",
        "{{ c.splitlines()|length }}",
        "{{ c.strip('a') }}",
        "{{ c.lstrip('a') }}",
        "{{ c.removeprefix('a') }}",
        "{{ c.partition('a')[0] }}",
        "{{ c.isspace() }}",
        "{{ c.isdigit() }}",
        "{{ c.zfill(3) }}",
        "{{ c.join(['1', '2'])|length }}",
        "{{ ','.join([c, d])|length }}",
        "{{ '{}'.format(c) }}",
        "{{ c.format(1) if '{' not in c else '' }}",
        "{{ [c].index('a') if c == 'a' else '' }}",
        "{{ [c, 'b'].count('a') }}",
        "{{ ['a', 'b'].count(c) }}",
        // What a time or a number can make.
        "{{ c }}{{ strftime_now('%H:%M') }}",
        "{{ c }}{{ strftime_now('%Y %S') }}",
        "{{ c }}{{ strftime_now('%c') }}",
        "{{ c }}{{ '%c' % 64976 }}",
        "{{ c }}{{ '%cw000%c' % (64976, 64977) }}",
        "{{ c }}{{ '\u{fdd0}w000\u{fdd1}' }}",
        // Generators in a sum are used up by a look.
        "{% set g = messages|map(attribute='content') %}{% set l = [c] + g %}{{ l|list|length }}{{ c }}",
        "{% for x, (y, z) in [[1, c]] %}{{ y }}{% endfor %}{{ c }}",
    ];
    // Not written under guard at all.
    const STRICTLY_REFUSED: &[&str] = &[
        "{% for x, (y, z) in [[1, c]] %}{{ y }}{% endfor %}{{ c }}",
        "{{ c }}{{ '\u{fdd0}w000\u{fdd1}' }}",
    ];
    let set = "{% set c = messages[-1].content %}{% set d = messages[0].content %}";
    let mut leaks = String::new();
    for leak in LEAKS {
        let source = format!("{set}{leak}");
        let counts = counts_of(&source);
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
    const KEPT: &[&str] = &[
        "{{ c }}",
        "{{ c + d }}{{ c ~ 1 ~ d }}",
        "{{ c|trim }}{{ c.strip() }}{{ c.lstrip() }}|{{ c.rstrip() }}",
        "{{ (' ' + c + d + ' x ')|trim }}|{{ (' ' ~ c ~ ' ').rstrip().lstrip() }}",
        "{{ (c|trim + c)|trim }}|{{ (c.lstrip() + '\\n' + c).strip() }}",
        "{% if d|trim %}{{ d }}{% else %}nothing{% endif %}{{ d|trim }}",
        "{{ (d + c)|trim }}|{{ (c ~ d).rstrip() }}|{{ (d + c).lstrip() }}",
        "{% if c is string and c is defined and c is not none %}{{ c }}{% endif %}",
        "{% if c %}{{ c or d }}{{ c and d }}{{ (not c) or c }}{% endif %}",
        "{{ c if c else d }}{{ nosuch|default(c) }}{{ c|default('x', true) }}",
        "{{ c == none }}{{ c != '' }}{{ '' == c }}{{ c != false }}{{ c == 1 }}",
        "{{ 'content' in messages[0] }}{{ messages[0].get('content') }}{{ messages[0]['content'] }}",
        "{{ messages[1:]|length }}{{ messages[0].keys()|list }}{{ messages|length }}",
        "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m.content }}{% endfor %}",
        "{% for k, v in messages[0].items() %}{{ k }}{{ v }}{% endfor %}",
        "{% for m in messages|selectattr('role', 'equalto', 'user') %}{{ m.content }}{% endfor %}",
        "{% for m in messages|rejectattr('role', 'equalto', 'user')|list %}{{ m.content }}{% endfor %}",
        "{{ messages|map(attribute='content')|join('\\n') }}",
        "{{ messages|map(attribute='content')|map('trim')|join('\\n') }}",
        "{{ [c, d]|join(',') }}{{ [c, d]|last }}{{ [c, d]|reverse|first }}",
        "{{ ([c] + [d])|join }}{{ (c, d)[0] }}",
        "{% set x, y = [c, d] %}{{ x }}{{ y }}",
        "{% set x %}<{{ c }}>{% endset %}{{ x }}{{ x ~ x }}",
        "{% macro m(x, y='b') %}{{ x }}{{ y }}{% endmacro %}{{ m(c) }}{{ m(c, y=d) }}{{ m(y=c, x=d) }}",
        "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call m(c) %}{{ d }}{% endcall %}",
        "{% set ns = namespace(x='', y=c) %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{% endfor %}{{ ns.x }}{{ ns.y }}",
        "{% set x = {'k': c, 'l': [d]} %}{{ x.k }}{{ x['l'][0] }}{{ dict(k=c).k }}",
        "{{ c }}{{ strftime_now('%d %b %Y %-d') }}",
        "{{ c|string }}{% generation %}{{ c }}{% endgeneration %}",
        "{% with x = c %}{{ x }}{% endwith %}",
        "x",
    ];
    let set = "{% set c = messages[-1].content %}{% set d = messages[0].content %}";
    let mut lost = String::new();
    for source in KEPT {
        let counts = counts_of(&format!("{set}{source}"));
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
    assert_eq!(counts_of(&source).hits, 0);
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
fn a_continued_message_and_parts_are_left_to_the_engine() {
    let both = Both::of("{% for m in messages %}{{ m.content }}{% endfor %}");
    let continued = json!({
        "messages": [{"role": "assistant", "content": "a"}], "continue_final_message": true,
    });
    let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]});
    for conversation in [continued, parts] {
        both.check_shape(&conversation, 4);
    }
    assert_eq!(both.with.shape_counts(), ShapeCounts::default());
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => proptest::sample::select(TEXTS.to_vec()).prop_map(Value::from),
        1 => proptest::sample::select(BLANKS.to_vec()).prop_map(Value::from),
        1 => Just(json!("")),
        1 => Just(Value::Null),
        4 => "\\PC{0,12}".prop_map(Value::from),
        2 => "[ \\n]{0,2}[a-z</>{}|]{0,8}[ \\n]{0,2}".prop_map(Value::from),
    ]
}

fn conversation() -> impl Strategy<Value = Value> {
    let role = proptest::sample::select(vec!["user", "assistant", "tool"]);
    let message =
        (role, text()).prop_map(|(role, content)| json!({"role": role, "content": content}));
    let system = proptest::option::of(text());
    (system, proptest::collection::vec(message, 1..4), any::<bool>()).prop_map(
        |(system, mut messages, prompt)| {
            if let Some(content) = system {
                messages.insert(0, json!({"role": "system", "content": content}));
            }
            json!({"messages": messages, "add_generation_prompt": prompt})
        },
    )
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
