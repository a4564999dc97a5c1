//! `str()` and `repr()` of Python, and its printing of floats.
//!
//! In: a value. Out: the text that `{{ value }}` prints. Values whose text
//! Python does not define (addresses of objects) are errors.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::limits::{TEXT_BYTES_MAX, VALUE_DEPTH_MAX};
use crate::value::{DictView, PyDict, Range, as_dict, fail, type_name};

/// Fails for text that has become too long.
pub(crate) fn check_len(out: &str) -> Result<(), Error> {
    if out.len() > TEXT_BYTES_MAX {
        return Err(Error::from(minijinja::ErrorKind::OutOfFuel));
    }
    Ok(())
}

/// Appends `str(value)`.
pub(crate) fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(out, value, VALUE_DEPTH_MAX)?,
    }
    Ok(())
}

/// `str(value)`.
pub(crate) fn to_str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_str(&mut out, value)?;
    Ok(out)
}

/// Appends `repr(value)`.
pub(crate) fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(fail("value nested too deep to print"));
    };
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => {
            write!(out, "{value}").map_err(|_| fail("int"))?
        }
        ValueKind::Number => write_float(out, as_f64(value)),
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            write_str_repr(out, value.as_str().unwrap_or_default());
            out.push(')');
        }
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Map if as_dict(value).is_some() => write_dict(out, value, depth)?,
        ValueKind::Seq | ValueKind::Iterable => write_seq(out, value, depth)?,
        _ => return Err(fail("this object has no defined text")),
    }
    Ok(())
}

fn write_dict(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    out.push('{');
    let entries = as_dict(value).map(PyDict::entries).unwrap_or_default();
    for (at, (key, item)) in entries.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        check_len(out)?;
        write_repr(out, key, depth)?;
        out.push_str(": ");
        write_repr(out, item, depth)?;
    }
    out.push('}');
    Ok(())
}

fn write_seq(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if let Some(range) = value.downcast_object_ref::<Range>() {
        let Range { start, stop, step, .. } = range;
        let text = match step {
            1 => format!("range({start}, {stop})"),
            _ => format!("range({start}, {stop}, {step})"),
        };
        out.push_str(&text);
        return Ok(());
    }
    let (open, close) = match type_name(value) {
        "tuple" => ("(", ")"),
        "list" => ("[", "]"),
        "generator" => return Err(fail("a generator has no defined text")),
        _ => ("[", "])"),
    };
    if let Some(view) = value.downcast_object_ref::<DictView>() {
        out.push_str(view.kind.type_name());
        out.push('(');
    }
    out.push_str(open);
    let mut count = 0_usize;
    for item in value.try_iter()?.checked() {
        if count > 0 {
            out.push_str(", ");
        }
        check_len(out)?;
        write_repr(out, &item?, depth)?;
        count += 1;
    }
    if count == 1 && open == "(" {
        out.push(',');
    }
    out.push_str(close);
    Ok(())
}

/// The value as a float; integers are rounded as Python rounds them.
pub(crate) fn as_f64(value: &Value) -> f64 {
    if let Some(int) = value.as_i64().filter(|_| value.is_integer()) {
        // Rounds to nearest, ties to even, as `float(int)` does.
        return int as f64;
    }
    f64::try_from(value.clone())
        .or_else(|_| i128::try_from(value.clone()).map(|int| int as f64))
        .unwrap_or(f64::NAN)
}

/// Appends the shortest text that reads back as the same float, in Python's layout:
/// an exponent below 1e-4 and from 1e16 on, `.0` for whole numbers.
pub(crate) fn write_float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("nan");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "inf" } else { "-inf" });
        return;
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        out.push_str(&scientific);
        return;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        // Writing to a string cannot fail.
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
}

/// Appends `repr` of a string.
pub(crate) fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Whether Python's `str.isprintable` holds: not in Cc, Cf, Cs, Co, Cn, Zl, Zp, and not in Zs but the space.
///
/// Rust's `Debug` of a string escapes exactly the characters that are not printable in that sense
/// (and a quote or backslash, and a combining mark at the start, which the leading letter avoids).
fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // Common scripts without gaps: skip the formatting machinery.
        '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{377}' | '\u{4e00}'..='\u{9fff}' => true,
        '\u{ac00}'..='\u{d7a3}' | '\u{3041}'..='\u{3096}' | '\u{30a0}'..='\u{30ff}' => true,
        _ => {
            let mut text = String::from("a");
            text.push(c);
            format!("{text:?}").chars().nth(2) == Some(c)
        }
    }
}
