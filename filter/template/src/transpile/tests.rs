//! What the transpiler refuses, and with which kind of error.

use super::*;

#[test]
fn what_jinja2_refuses_is_invalid() {
    for source in [
        "{% if %}",
        "{{ 1 + }}",
        "{% for x in y %}",
        "{{ x|nosuch }}",
        "{{ x is nosuch }}",
        "{% break %}",
        "{% nosuch %}",
        "{{ 'x }}",
        "{{ (1] }}",
        "{% macro m(a=1, b) %}{% endmacro %}",
        "{% call 1 %}{% endcall %}",
    ] {
        let error = transpile(source).unwrap_err();
        assert!(error.is_invalid, "{source}: {}", error.reason);
        assert_eq!(error.line, 1, "{source}");
    }
}

#[test]
fn what_would_differ_is_refused_with_its_reason() {
    for (source, reason) in [
        ("\n{% include 'x' %}", "the tag include"),
        ("\n{{ x|urlize }}", "the filter urlize"),
        ("\n{{ x.encode() }}", "the method encode"),
        ("\n{{ x.__class__ }}", "the attribute __class__"),
        ("\n{{ lipsum() }}", "the name lipsum"),
        ("\n{% set loop = 1 %}", "an assignment to loop"),
        ("\n{{ x[1, 2] }}", "a subscript with commas"),
        ("\n{% with a = 1, b = a %}{% endwith %}", "a with that uses its own names"),
        ("\n{% for x in y %}{% with %}{% break %}{% endwith %}{% endfor %}", "break within a set"),
        ("\n{{ '\\N{BULLET}' }}", "the escape \\N{...}"),
        ("\n{{ größe }}", "the name größe"),
    ] {
        let error = transpile(source).unwrap_err();
        assert!(!error.is_invalid, "{source}");
        assert!(error.reason.starts_with(reason), "{source}: {}", error.reason);
        assert_eq!(error.line, 2, "{source}");
    }
    assert!(!transpile("\u{1}").unwrap_err().is_invalid);
}

#[test]
fn unknown_filters_in_conditions_wait_until_they_are_reached() {
    assert!(transpile("{% if x %}{{ x|nosuch }}{% endif %}").is_ok());
    assert!(transpile("{{ x|nosuch if y else z }}").is_ok());
    assert!(transpile("{% if x %}{% for y in x %}{{ y|nosuch }}{% endfor %}{% endif %}").is_err());
}

#[test]
fn text_is_kept_whatever_it_looks_like() {
    let written = transpile("a {{ '{{' }} {% raw %}{% if %}{{ x }}{% endraw %} #}").unwrap();
    assert!(written.source.contains("{% if %}{{ x }} #}"), "{}", written.source);
}
