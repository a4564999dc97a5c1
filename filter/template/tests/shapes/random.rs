//! Random conversations and random templates.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{BLANKS, TEXTS};

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

pub fn conversation() -> impl Strategy<Value = Value> {
    let role = proptest::sample::select(vec!["user", "assistant", "tool"]);
    let part = prop_oneof![
        4 => text().prop_map(|text| json!({"type": "text", "text": text})),
        1 => Just(json!({"type": "image"})),
    ];
    let parts = proptest::collection::vec(part, 0..3).prop_map(Value::from);
    let content = prop_oneof![3 => text(), 1 => parts];
    let message =
        (role, content).prop_map(|(role, content)| json!({"role": role, "content": content}));
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

/// Expressions over texts, the messages and what is made of them, with every way to look into a text.
fn expression() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(vec![
        "c",
        "d",
        "c",
        "d",
        "messages",
        "messages[0]",
        "'a'",
        "''",
        "'w'",
        "' '",
        "1",
        "0",
        "none",
        "true",
        "nosuch",
        "ns",
        "ns.x",
        "m",
        "loop",
        "range(2)",
        "[]",
        "'content'",
        "{'content': 1}",
    ]);
    let leaf = leaf.prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 3, |inner| {
        let filter = proptest::sample::select(vec![
            "trim", "length", "first", "last", "list", "reverse", "string", "join", "join(',')", "upper",
            "default('x')", "default('x', true)", "items", "tojson", "sort", "unique", "min", "sum",
            "map('trim')", "map('upper')", "map(attribute='content')", "map(attribute='content.1')",
            "map(attribute=1)", "select", "reject", "select('string')", "select('eq', 'w')",
            "selectattr('content')", "selectattr('role', 'eq', 'user')", "selectattr('content', 'string')",
            "selectattr(1)", "rejectattr('content', 'in', ['a', 'w'])", "groupby('role')", "batch(2)",
            "slice(2)", "replace('w', '')", "safe", "e", "int", "indent", "title", "dictsort", "center(9)",
            "truncate(4)", "format", "attr('strip')", "trim('w')", "abs", "count",
        ]);
        let test = proptest::sample::select(vec![
            "string", "defined", "none", "mapping", "iterable", "sequence", "number", "boolean", "eq('a')",
            "in(['a'])", "lower", "upper", "callable", "sameas(none)", "true", "odd", "filter", "undefined",
        ]);
        let method = proptest::sample::select(vec![
            ".strip()", ".lstrip()", ".rstrip()", ".split()", ".split('w')", ".upper()", ".startswith('w')", ".endswith('a')", ".strip('a')", ".lstrip('\\u{fdd0}')",
            ".items()", ".keys()", ".values()", ".get('content')", ".get('content', c)", ".copy()",
            ".count('w')", ".index('w')", ".changed(c)", ".cycle(c, d)", ".content", ".role", ".x", ".strip",
            "['content']", "[0]", "[1]", "[-1]", "[1:]", "[:2]", "[::2]", ".isdigit()", ".splitlines()",
            ".previtem", ".index", "(c)", "(c, d)", "()", ".format(c)", ".join(['w', 'w'])",
        ]);
        let binary = proptest::sample::select(vec![
            "+", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or", "*", "%", "-", "/",
        ]);
        let of_two = |a: String, op: &str, b: String| format!("({a} {op} {b})");
        prop_oneof![
            3 => (inner.clone(), filter).prop_map(|(base, name)| format!("({base}|{name})")),
            1 => (inner.clone(), test).prop_map(|(base, name)| format!("({base} is {name})")),
            3 => (inner.clone(), method).prop_map(|(base, method)| format!("{base}{method}")),
            3 => (inner.clone(), binary, inner.clone()).prop_map(move |(a, op, b)| of_two(a, op, b)),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}, {b})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{'content': {a}, 'k': {b}}}")),
            1 => (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("m({a}, y={b})")),
            1 => inner.clone().prop_map(|a| format!("m({a})")),
            1 => inner.prop_map(|a| format!("namespace(x={a}).x")),
        ]
    })
}

pub fn statement() -> impl Strategy<Value = String> {
    let e = || expression();
    prop_oneof![
        4 => e().prop_map(|a| format!("{{{{ {a} }}}}")),
        1 => (e(), e()).prop_map(|(a, b)| format!("{{% if {a} %}}{{{{ {b} }}}}{{% endif %}}")),
        1 => (e(), e()).prop_map(|(a, b)| {
            format!("{{% for x in {a} %}}{{{{ x }}}}{{{{ {b} }}}}{{% if x %}}y{{% endif %}}{{% endfor %}}")
        }),
        1 => (e(), e()).prop_map(|(a, b)| {
            format!("{{% for x, y in {a} if x %}}{{{{ y or x }}}}{{{{ loop.changed({b}) }}}}{{% endfor %}}")
        }),
        1 => e().prop_map(|a| format!("{{% set ns.x = {a} %}}")),
        1 => e().prop_map(|a| format!("{{% set c = {a} %}}")),
        1 => (e(), e()).prop_map(|(a, b)| format!("{{% set x, d = {a} %}}{{{{ {b} }}}}")),
        1 => e().prop_map(|a| format!("{{% set d %}}{{{{ {a} }}}} {{% endset %}}")),
        1 => e().prop_map(|a| format!("{{% call m({a}) %}}{{{{ d }}}}{{% endcall %}}")),
        1 => e().prop_map(|a| format!("{{% filter trim %}} {{{{ {a} }}}}{{% endfilter %}}")),
        1 => e().prop_map(|a| format!("{{% with d = {a} %}}{{{{ d }}}}{{% endwith %}}")),
    ]
}
