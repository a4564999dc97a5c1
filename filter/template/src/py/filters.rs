//! Jinja2's filters: the table, and those of texts and numbers; `lists` has the rest.
//!
//! In: the piped value and the arguments. Out: a value, or an error where
//! Jinja2 raises. Those that Python writes as generators give a
//! [`Generator`](crate::value::Generator).

mod lists;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::args::{bind, count_of, int_arg, opt_int_arg, opt_str_arg, split_keywords, str_arg};
use super::format::{Operand, printf};
use super::methods::{bound_method, charge_bytes, replace_checked};
use super::repr::{as_f64, check_len, to_str};
use super::text::{self, Ends};
use super::{json, ops};
use crate::value::{PyDict, fail, type_name};
use lists::{
    batch, dictsort, first, groupby, items, join, last, list, map, max, min, reject, rejectattr,
    reverse, select, selectattr, slice, sort, sum, unique,
};

/// A filter or test: state, and the arguments with the piped value first.
pub(crate) type Native = fn(&mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// All filters by name. Those of Jinja2 that are not here are refused when the template is compiled.
pub(crate) const FILTERS: [(&str, Native); 45] = [
    ("abs", abs),
    ("attr", attr),
    ("batch", batch),
    ("capitalize", capitalize),
    ("center", center),
    ("count", length),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", escape),
    ("escape", escape),
    ("first", first),
    ("float", float),
    ("forceescape", forceescape),
    ("format", format_filter),
    ("groupby", groupby),
    ("indent", indent),
    ("int", int),
    ("items", items),
    ("join", join),
    ("last", last),
    ("length", length),
    ("list", list),
    ("lower", lower),
    ("map", map),
    ("max", max),
    ("min", min),
    ("reject", reject),
    ("rejectattr", rejectattr),
    ("replace", replace),
    ("reverse", reverse),
    ("round", round),
    ("safe", safe),
    ("select", select),
    ("selectattr", selectattr),
    ("slice", slice),
    ("sort", sort),
    ("string", string),
    ("sum", sum),
    ("title", title),
    ("tojson", json::tojson),
    ("trim", trim),
    ("truncate", truncate),
    ("unique", unique),
    ("upper", upper),
];

/// Filters that do not go through all items of a list, or whose result is charged by its size.
const FILTERS_FREE: [&str; 8] =
    ["count", "d", "default", "first", "last", "length", "string", "tojson"];

/// Whether a filter is charged for the items of its list.
pub(crate) fn is_charged(name: &str) -> bool {
    !name.starts_with("__") && !FILTERS_FREE.contains(&name)
}

/// Filters of Jinja2 that are valid but refused.
pub(crate) const FILTERS_REFUSED: [&str; 9] = [
    "filesizeformat",
    "pprint",
    "random",
    "striptags",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// `soft_str`: the text of the value, Markup or not.
fn soft(value: Option<Value>) -> Result<String, Error> {
    to_str(&value.unwrap_or_default())
}

/// Makes text a Markup string where the input was one.
fn like(input: Option<&Value>, text: String) -> Value {
    if input.is_some_and(Value::is_safe) {
        Value::from_safe_string(text)
    } else {
        Value::from(text)
    }
}

fn is_true(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

fn abs(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["x"], 1)?;
    let value = value.unwrap_or_default();
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => match value.as_i64() {
            Some(int) => Ok(Value::from(i128::from(int).abs())),
            None => Ok(value),
        },
        ValueKind::Number => Ok(Value::from(as_f64(&value).abs())),
        _ => Err(fail("bad operand type for abs()")),
    }
}

fn attr(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, name] = bind(args, ["obj", "name"], 2)?;
    let (value, name) = (value.unwrap_or_default(), name.unwrap_or_default());
    if value.is_undefined() {
        return Err(fail("attribute of undefined"));
    }
    // Only attributes, never entries, and all of the plain types' attributes are methods.
    match type_name(&value) {
        "object" => value.get_item(&name),
        _ => Ok(bound_method(&value, str_arg(&name)?)?.unwrap_or(Value::UNDEFINED)),
    }
}

fn capitalize(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    Ok(like(value.as_ref(), text::capitalize(&soft(value.clone())?)))
}

fn center(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind(args, ["value", "width"], 1)?;
    let width = width.unwrap_or_else(|| Value::from(80));
    let text = Value::from(soft(value)?);
    super::methods::call_method(state, &text, "center", &[width])
}

fn default(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, fallback, boolean] = bind(args, ["value", "default_value", "boolean"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() || (is_true(boolean) && !value.is_true()) {
        return Ok(fallback.unwrap_or_else(|| Value::from("")));
    }
    Ok(value)
}

fn escape(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_safe() {
        return Ok(value);
    }
    Ok(Value::from_safe_string(ops::escape_html(&to_str(&value)?)))
}

fn forceescape(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    Ok(Value::from_safe_string(ops::escape_html(&soft(value)?)))
}

fn float(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, fallback] = bind(args, ["value", "default"], 1)?;
    let parsed = ops::parse_float(&value.unwrap_or_default())?;
    Ok(match parsed {
        Some(float) => Value::from(float),
        None => fallback.unwrap_or_else(|| Value::from(0.0)),
    })
}

fn int(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, fallback, base] = bind(args, ["value", "default", "base"], 1)?;
    let base = base.as_ref().map_or(Ok(10), int_arg)?;
    let value = value.unwrap_or_default();
    let parsed = match value.as_str() {
        Some(text) => ops::parse_int(text, base)?,
        None if value.kind() == ValueKind::Bool => Some(i128::from(value.is_true())),
        None if value.is_integer() => i128::try_from(value.clone()).ok(),
        None => None,
    };
    let truncated = match parsed {
        Some(int) => Some(int),
        None => ops::parse_float(&value)?.and_then(ops::truncate_float),
    };
    Ok(match truncated {
        Some(int) => Value::from(int),
        None => fallback.unwrap_or_else(|| Value::from(0)),
    })
}

fn format_filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (positional, keywords) = split_keywords(args)?;
    let Some((value, rest)) = positional.split_first() else {
        return Err(fail("format needs a value"));
    };
    let template = to_str(value)?;
    if keywords.is_empty() {
        return printf(&template, &Operand::Items(rest)).map(Value::from);
    }
    if !rest.is_empty() {
        return Err(fail("can't handle positional and keyword arguments at the same time"));
    }
    let pairs = keywords.into_iter().map(|(key, value)| Value::from(Tuple::from([key, value])));
    let mapping = PyDict::from_pairs(pairs.collect())?;
    printf(&template, &Operand::Single(&mapping)).map(Value::from)
}

fn indent(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(args, ["s", "width", "first", "blank"], 1)?;
    let value = value.unwrap_or_default();
    let indention = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = count_of(int_arg(&width)?);
                charge_bytes(state, width)?;
                " ".repeat(width)
            }
        },
    };
    let text = str_arg(&value)?;
    let is_blank = is_true(blank);
    let mut out = String::with_capacity(text.len());
    if is_true(first) {
        out.push_str(&indention);
    }
    let with_end = format!("{text}\n");
    for (at, line) in text::splitlines(&with_end, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if is_blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
        check_len(&out)?;
    }
    Ok(like(Some(&value), out))
}

fn length(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["obj"], 1)?;
    len(&value.unwrap_or_default()).map(Value::from)
}

/// Python's `len()`.
fn len(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    if let Some(text) = value.as_str() {
        return Ok(text.chars().count());
    }
    match (value.len(), type_name(value)) {
        (Some(len), kind) if !matches!(kind, "generator" | "object") => Ok(len),
        (_, kind) => Err(fail(format!("object of type '{kind}' has no len()"))),
    }
}

fn lower(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    Ok(like(value.as_ref(), soft(value.clone())?.to_lowercase()))
}

fn upper(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    Ok(like(value.as_ref(), soft(value.clone())?.to_uppercase()))
}

fn replace(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(args, ["s", "old", "new", "count"], 3)?;
    let count = opt_int_arg(count.as_ref())?.unwrap_or(-1);
    let (old, new) = (soft(old)?, soft(new)?);
    replace_checked(state, &soft(value)?, (&old, &new), count).map(Value::from)
}

fn round(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind(args, ["value", "precision", "method"], 1)?;
    let precision = precision.as_ref().map_or(Ok(0), int_arg)?;
    let value = value.unwrap_or_default();
    let method = opt_str_arg(method.as_ref())?.unwrap_or("common").to_owned();
    ops::round(&value, precision, &method)
}

fn safe(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    Ok(Value::from_safe_string(soft(value)?))
}

fn string(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    match value {
        Some(value) if value.as_str().is_some() => Ok(value),
        value => soft(value).map(Value::from),
    }
}

fn title(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    let text = soft(value)?;
    let mut out = String::with_capacity(text.len());
    let mut at_start = true;
    for c in text.chars() {
        let is_break = text::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        if is_break || at_start {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        at_start = is_break;
    }
    Ok(Value::from(out))
}

fn trim(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind(args, ["value", "chars"], 1)?;
    let value = value.unwrap_or_default();
    let chars = opt_str_arg(chars.as_ref())?;
    if let Some(text) = value.as_str() {
        let stripped = text::strip(text, chars, Ends::Both);
        if stripped.len() == text.len() {
            return Ok(value);
        }
        return Ok(like(Some(&value), stripped.to_owned()));
    }
    Ok(Value::from(text::strip(&to_str(&value)?, chars, Ends::Both)))
}

fn truncate(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["s", "length", "killwords", "end", "leeway"];
    let [value, length, killwords, end, leeway] = bind(args, names, 1)?;
    let value = value.unwrap_or_default();
    let length = count_of(length.as_ref().map_or(Ok(255), int_arg)?);
    let leeway = count_of(opt_int_arg(leeway.as_ref())?.unwrap_or(5));
    let end = opt_str_arg(end.as_ref())?.unwrap_or("...");
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(fail("truncate: the length is less than that of the end"));
    };
    if len(&value)? <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let text = str_arg(&value)?;
    let mut head: String = text.chars().take(kept).collect();
    let words = head.rsplit_once(' ').map(|(words, _)| words.to_owned());
    if let Some(words) = words.filter(|_| !is_true(killwords)) {
        head = words;
    }
    head.push_str(end);
    Ok(Value::from(head))
}
