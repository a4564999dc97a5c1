//! The fuzz target of the request parsers.

use std::fmt::Write as _;

use super::json::{Node, Text, read};
use super::{Api, parse};
use crate::limits::JSON_DEPTH_MAX;

/// Tries `data`: its first byte picks the API, the rest is the body.
///
/// A body that parses must parse to the same request when it is written with other spaces and with
/// every character escaped; and what serde_json reads, this reader reads alike.
///
/// # Panics
/// When one of these does not hold.
pub fn fuzz_request(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let Some(api) = Api::ALL.get(usize::from(*first) % Api::ALL.len()) else { return };
    let parsed = parse(*api, body);
    let Ok(text) = std::str::from_utf8(body) else {
        assert!(parsed.is_err(), "not UTF-8, and accepted");
        return;
    };
    let Ok(node) = read(text.strip_prefix('\u{feff}').unwrap_or(text)) else {
        assert!(parsed.is_err(), "not JSON, and accepted");
        return;
    };
    let mut rewritten = String::new();
    write(&node, &mut rewritten);
    assert_eq!(parse(*api, rewritten.as_bytes()), parsed, "written as {rewritten}");
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        // serde_json rounds some floats in the last digit.
        if let Ok(ours) = node.to_value() {
            assert!(is_close(&ours, &value), "{ours} is not {value}");
        }
    }
}

/// Writes `node` with spaces wherever they may be, and with all text escaped.
fn write(node: &Node<'_>, out: &mut String) {
    out.push_str("\r\n\t ");
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Node::Number(text) => out.push_str(text),
        Node::String(text) => write_text(*text, out),
        Node::Ids(ids) => {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            let _ = write!(out, "[ {} ]", ids.join(" , "));
        }
        Node::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                out.push(if index == 0 { '[' } else { ',' });
                write(item, out);
            }
            out.push_str(if items.is_empty() { "[ ]" } else { "]" });
        }
        Node::Object(object) => {
            out.push('{');
            for (index, (key, value)) in object.members().enumerate() {
                out.push_str(if index == 0 { " " } else { " , " });
                write_text(key, out);
                out.push_str(" :");
                write(value, out);
            }
            out.push('}');
        }
    }
    out.push(' ');
}

/// Writes every character as an escape; what cannot be decoded, as it is.
fn write_text(text: Text<'_>, out: &mut String) {
    out.push('"');
    match text.decode() {
        Ok(decoded) => {
            for unit in decoded.encode_utf16() {
                let _ = write!(out, "\\u{unit:04X}");
            }
        }
        Err(_) => out.push_str(text.raw()),
    }
    out.push('"');
}

fn is_close(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => match (ours.as_f64(), theirs.as_f64()) {
            (Some(ours), Some(theirs)) => (ours - theirs).abs() <= theirs.abs() * 1e-14,
            _ => false,
        },
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| is_close(a, b))
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(a, b)| a.0 == b.0 && is_close(a.1, b.1))
        }
        _ => ours == theirs,
    }
}

const _: () = assert!(JSON_DEPTH_MAX <= 128, "serde_json stops at 128 levels");
