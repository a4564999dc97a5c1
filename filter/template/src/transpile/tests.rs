//! What the transpiler writes and refuses.

use super::*;

#[test]
fn refuses_what_jinja2_refuses() {
    for source in ["{% if %}", "{{ 1 + }}", "{% for x in y %}", "{{ x|nosuch }}", "{% break %}"] {
        assert!(transpile(source).unwrap_err().is_invalid, "{source}");
    }
}
