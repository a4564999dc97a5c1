//! Hostile templates and values end in an error: no hang, no trap, no stack overflow.

mod support;

use serde_json::{Map, Value, json};
use warmpath_template::{
    ChatRequest, ChatTemplates, MessageRules, RenderError, RenderLimits, TemplateError,
};

fn render_with(
    source: &str,
    kwargs: &Map<String, Value>,
    limits: &RenderLimits,
) -> Result<String, RenderError> {
    let templates = support::compile(source, MessageRules::V5).unwrap();
    let messages = json!([{"role": "user", "content": "hello"}]);
    let chat = ChatRequest {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs,
        template_name: None,
        now: support::NOW,
    };
    templates.render(&chat, limits)
}

fn render(source: &str) -> Result<String, RenderError> {
    render_with(source, &Map::new(), &RenderLimits::default())
}

fn compile(source: &str) -> Result<ChatTemplates, TemplateError> {
    support::compile(source, MessageRules::V5)
}

#[test]
fn endless_work_runs_out_of_fuel() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for x in range(99999) %}{{ x }}{% endfor %}{% endmacro %}\
         {% for a in range(99999) %}{% set x = m() %}{% endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [1] * 1000000000000 }}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x' * 1000) %}{% for a in range(99) %}\
         {% set ns.s = ns.s.replace('x', 'xxxxxxxx') %}{% endfor %}",
        "{{ 'a'.ljust(1000000000000) }}",
        "{{ ' '.join(['x' * 100000] * 100000) }}",
        "{{ (['x' * 100000] * 100000) | join(',') }}",
        "{% set l = [1] * 90000 %}{% set m = l|map('string')|list %}{% for a in range(9999) %}\
         {% set x = l|sort|list|tojson %}{% endfor %}",
        "{% for a in range(99999) %}{% set x = messages|tojson(indent=1000)|length %}{% endfor %}",
        "{{ ['x' * 100000] * 100000 }}",
        "{{ (['x' * 100000] * 100000)|tojson }}",
        "{{ (['x' * 100000] * 100000)|map('upper')|list|length }}",
        "{{ (['x' * 100000] * 100000)|sort|length }}",
        "{{ ('x' * 9000000)|list|length }}",
        "{{ ('x' * 9000000).split('x')|length }}",
        "{{ ('a\\n' * 900000)|indent(60) }}",
        "{{ ('{:4000}' * 9000).format(*([1] * 9000)) }}",
        "{{ [1]|batch(1000000000000, 0)|list }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = [1] + (ns.x + ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = [1] + ns.x + ns.x %}{% endfor %}",
    ] {
        let result = render(source);
        assert!(matches!(result, Err(RenderError::OutOfFuel)), "{source}: {result:?}");
    }
}

#[test]
fn namespaces_hold_nothing_that_holds_them() {
    let hold = |what: &str| {
        render(&format!(
            "{{% set ns = namespace(x=1) %}}{{% set ns.x = {what} %}}{{{{ {{ns.x: 1}} }}}}"
        ))
    };
    for what in ["ns", "[ns]", "(ns, 1)", "{'a': ns}", "{ns: 1}", "{(1, ns): 1}", "dict([(ns, 1)])"]
    {
        let result = hold(what);
        assert!(matches!(result, Err(RenderError::Operation(_))), "{what}: {result:?}");
    }
    assert_eq!(hold("(1, 2)").unwrap(), "{(1, 2): 1}");
}

#[test]
fn long_ranges_and_widths_are_refused() {
    for source in [
        "{% for x in range(10 ** 9) %}{% endfor %}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ 10 ** 10 ** 10 }}",
    ] {
        assert!(matches!(render(source), Err(RenderError::Operation(_))), "{source}");
    }
}

#[test]
fn deep_recursion_is_refused() {
    for source in [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% for x in [1] %}{% with y = 1 %}{{ f(n + 1) }}{% endwith %}{% endfor %}\
         {% endmacro %}{{ f(1) }}",
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
        "{% for x in [[]] recursive %}{{ loop([[x]]) }}{% endfor %}",
        "{% macro f() %}{{ [1]|map('string')|list }}{{ caller() }}{% endmacro %}\
         {% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
}

#[test]
fn deep_values_are_refused_where_they_grow() {
    for source in [
        "{% set ns = namespace(x=1) %}{% for a in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for a in range(99999) %}{% set ns.x = (ns.x,) %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for a in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for a in range(99999) %}{% set ns.x = dict(a=ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}\
         {% set ns.x = ns.x|batch(1)|list %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}\
         {% set ns.x = ns.x|groupby(0)|list %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}\
         {% set ns.x = ns.x|map('list')|list %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.x = ns %}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}",
    ] {
        assert!(matches!(render(source), Err(RenderError::Operation(_))), "{source}");
    }
}

#[test]
fn sums_of_lists_do_not_nest() {
    let source = "{% set ns = namespace(x=[]) %}{% for a in range(20000) %}\
                  {% set ns.x = ns.x + [a] %}{% endfor %}{{ ns.x|length }}";
    let limits = RenderLimits { fuel: 100_000_000, ..RenderLimits::default() };
    assert_eq!(render_with(source, &Map::new(), &limits).unwrap(), "20000");
}

#[test]
fn deep_json_is_refused() {
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let kwargs = Map::from_iter([("deep".to_owned(), deep)]);
    let result = render_with("{{ deep|tojson }}", &kwargs, &RenderLimits::default());
    assert!(matches!(result, Err(RenderError::TooDeep { .. })), "{result:?}");
}

#[test]
fn json_at_the_limit_renders() {
    let limits = RenderLimits::default();
    let mut deep = json!(1);
    for _ in 0..limits.value_depth_max - 1 {
        deep = json!([deep]);
    }
    let kwargs = Map::from_iter([("deep".to_owned(), deep)]);
    let source = "{{ deep|tojson|length }} {{ deep|string|length }} {{ deep == deep[:] }}";
    assert_eq!(render_with(source, &kwargs, &limits).unwrap(), "127 127 True");
}

#[test]
fn long_output_is_refused() {
    let limits = RenderLimits { output_bytes_max: 10, ..RenderLimits::default() };
    assert_eq!(render_with("0123456789", &Map::new(), &limits).unwrap(), "0123456789");
    let result = render_with("0123456789x", &Map::new(), &limits);
    assert_eq!(result, Err(RenderError::OutputTooLong { bytes_max: 10 }));
}

#[test]
fn less_fuel_than_the_default_holds() {
    let source = "{% for x in range(1000) %}{{ x }}{% endfor %}";
    assert!(render(source).is_ok());
    let limits = RenderLimits { fuel: 100, ..RenderLimits::default() };
    assert_eq!(render_with(source, &Map::new(), &limits), Err(RenderError::OutOfFuel));
}

#[test]
fn deep_sources_are_refused() {
    let nested = |open: &str, middle: &str, close: &str, count: usize| {
        format!("{}{middle}{}", open.repeat(count), close.repeat(count))
    };
    for source in [
        format!("{{{{ {} }}}}", nested("(", "1", ")", 5000)),
        format!("{{{{ {} }}}}", nested("[", "", "]", 5000)),
        format!("{{{{ {} }}}}", nested("{1:", "1", "}", 5000)),
        format!("{{{{ {} }}}}", nested("not ", "x", "", 5000)),
        format!("{{{{ {} }}}}", nested("-", "1", "", 5000)),
        format!("{{{{ {} }}}}", nested("f(", "", ")", 5000)),
        format!("{{{{ {} }}}}", nested("x[", "1", "]", 5000)),
        format!("{{{{ x{} }}}}", ".a".repeat(5000)),
        format!("{{{{ x{} }}}}", "|list".repeat(5000)),
        format!("{{{{ x{} }}}}", "()".repeat(5000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(5000)),
        format!("{{{{ 1{} }}}}", " ~ 1".repeat(5000)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(5000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(5000)),
        format!("{{{{ 1{} }}}}", " == 1".repeat(5000)),
        nested("{% if x %}", "", "{% endif %}", 5000),
        nested("{% for x in y %}", "", "{% endfor %}", 5000),
        nested("{% set x %}", "", "{% endset %}", 5000),
        nested("{% macro m() %}", "", "{% endmacro %}", 5000),
        format!("{{% set {} = 1 %}}", nested("(", "x", ")", 5000)),
    ] {
        let result = compile(&source);
        assert!(result.is_err(), "{}", &source[..40]);
    }
}

#[test]
fn sources_at_the_limit_render() {
    let sum = format!("{{{{ 1{} }}}}", " + 1".repeat(190));
    assert_eq!(render(&sum).unwrap(), "191");
    let text = format!("{{{{ 'a'{} }}}}", " ~ 'b'".repeat(190));
    assert_eq!(render(&text).unwrap().len(), 191);
    let blocks = format!("{}x{}", "{% if 1 %}".repeat(35), "{% endif %}".repeat(35));
    assert_eq!(render(&blocks).unwrap(), "x");
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(30), ")".repeat(30));
    assert_eq!(render(&parens).unwrap(), "1");
}

#[test]
fn long_sources_and_many_templates_are_refused() {
    let long = "x".repeat(warmpath_template::limits::SOURCE_BYTES_MAX + 1);
    assert!(matches!(compile(&long), Err(TemplateError::TooLong { .. })));
    let none = ChatTemplates::compile(&[], support::special_tokens());
    assert!(matches!(none, Err(TemplateError::NoTemplate)));
    let many: Vec<_> = (0..99).map(|at| (format!("t{at}"), String::new())).collect();
    assert!(ChatTemplates::compile(&many, support::special_tokens()).is_err());
}
