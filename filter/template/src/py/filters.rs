//! Jinja2's filters.
//!
//! In: the piped value and the arguments. Out: a value, or an error where
//! Jinja2 raises. Those that Python writes as generators give a
//! [`Generator`](crate::value::Generator).

use std::cmp::Ordering;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::args::{bind, int_arg, opt_int_arg, opt_str_arg, split_keywords, str_arg};
use super::format::{Operand, printf};
use super::methods::{bound_method, charge_bytes, replace_checked};
use super::repr::{as_f64, check_len, to_str, write_str};
use super::text::{self, Ends};
use super::{json, ops};
use crate::value::{
    Generator, PyDict, check_depth, check_hashable, dict_entries, fail, iterate, text_bytes,
    type_name,
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

fn batch(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, size, fill] = bind(args, ["value", "linecount", "fill_with"], 2)?;
    let size = usize::try_from(int_arg(&size.unwrap_or_default())?).unwrap_or(0).max(1);
    let fill = fill.filter(|fill| !fill.is_none());
    let items = match iterate(&value.unwrap_or_default()) {
        Ok(items) => items,
        Err(error) => return Generator::lazy(Err(error)),
    };
    let mut rows = Vec::new();
    for chunk in items.chunks(size) {
        let mut row = chunk.to_vec();
        if let Some(fill) = &fill {
            charge_bytes(state, (size - row.len()).saturating_mul(size_of::<Value>()))?;
            row.resize(size, fill.clone());
        }
        let row = Value::from(row);
        check_depth(&row)?;
        rows.push(row);
    }
    Ok(Generator::value(rows))
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

fn dictsort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "by", "reverse"];
    let [value, case_sensitive, by, reverse] = bind(args, names, 1)?;
    let by_value = match by.as_ref().and_then(Value::as_str) {
        Some("value") => true,
        Some("key") => false,
        None if by.is_none() => false,
        _ => return Err(fail("you can only sort by either \"key\" or \"value\"")),
    };
    let entries = dict_entries(&value.unwrap_or_default())?;
    let case_sensitive = is_true(case_sensitive);
    let keyed = entries.into_iter().map(|(key, value)| {
        let sort_key = if by_value { &value } else { &key };
        let sort_key = ops::fold_case(sort_key, case_sensitive);
        (sort_key, Value::from(Tuple::from([key, value])))
    });
    Ok(Value::from(ops::sort_keyed(keyed.collect(), is_true(reverse))?))
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

fn first(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["seq"], 1)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        let first = text.chars().next().map(String::from);
        return Ok(first.map_or(Value::UNDEFINED, |first| like(Some(&value), first)));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.checked().next().unwrap_or(Ok(Value::UNDEFINED))
        }
        _ => Ok(iterate(&value)?.into_iter().next().unwrap_or_default()),
    }
}

fn last(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["seq"], 1)?;
    let value = value.unwrap_or_default();
    match (value.len().and_then(|len| len.checked_sub(1)), type_name(&value)) {
        (_, "generator") => Err(fail("object is not reversible")),
        (Some(at), "list" | "tuple") => value.get_item_by_index(at),
        _ => Ok(iterate(&value)?.pop().unwrap_or_default()),
    }
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

fn groupby(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "attribute", "default", "case_sensitive"];
    let [value, attribute, fallback, case_sensitive] = bind(args, names, 2)?;
    let path = ops::AttributePath::new(attribute.as_ref(), fallback)?;
    let case_sensitive = is_true(case_sensitive);
    let mut keyed = Vec::new();
    for item in iterate(&value.unwrap_or_default())? {
        keyed.push((ops::fold_case(&path.get(&item)?, case_sensitive), item));
    }
    let sorted = ops::sort_pairs(keyed, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted {
        match groups.last_mut() {
            Some((last, items)) if *last == key => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut rows = Vec::new();
    for (key, items) in groups {
        // Without case, the group is named as its first item spells it.
        let name = match items.first() {
            Some(item) if !case_sensitive => path.get(item)?,
            _ => key,
        };
        let row = Value::from(Tuple::from([name, Value::from(items)]));
        check_depth(&row)?;
        rows.push(row);
    }
    Ok(Value::from(rows))
}

fn indent(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(args, ["s", "width", "first", "blank"], 1)?;
    let value = value.unwrap_or_default();
    let indention = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(int_arg(&width)?).unwrap_or(0);
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

fn items(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Ok(Generator::value(Vec::new()));
    }
    let pair = |(key, value)| Value::from(Tuple::from([key, value]));
    Generator::lazy(dict_entries(&value).map(|entries| entries.into_iter().map(pair).collect()))
}

fn join(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, separator, attribute] = bind(args, ["value", "d", "attribute"], 1)?;
    let separator = match separator {
        Some(separator) => to_str(&separator)?,
        None => String::new(),
    };
    let path = ops::AttributePath::new(attribute.as_ref(), None)?;
    let mut out = String::new();
    for (at, item) in iterate(&value.unwrap_or_default())?.iter().enumerate() {
        if at > 0 {
            out.push_str(&separator);
        }
        write_str(&mut out, &path.get(item)?)?;
        check_len(&out)?;
    }
    Ok(Value::from(out))
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

fn list(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    Ok(Value::from(iterate(&value.unwrap_or_default())?))
}

fn lower(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    Ok(like(value.as_ref(), soft(value.clone())?.to_lowercase()))
}

fn upper(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"], 1)?;
    Ok(like(value.as_ref(), soft(value.clone())?.to_uppercase()))
}

fn map(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(map_items(state, args))
}

fn map_items(state: &mut State<'_, '_>, args: &[Value]) -> Result<Vec<Value>, Error> {
    let (positional, keywords) = split_keywords(args)?;
    let Some((value, rest)) = positional.split_first() else {
        return Err(fail("map needs a value"));
    };
    let keyword = |name: &str| {
        let found = keywords.iter().find(|(key, _)| key.as_str() == Some(name));
        found.map(|(_, value)| value.clone())
    };
    let items = iterate(value)?;
    let Some((filter, filter_args)) = rest.split_first() else {
        let attribute = keyword("attribute");
        let known = usize::from(attribute.is_some()) + usize::from(keyword("default").is_some());
        if attribute.is_none() || known != keywords.len() {
            return Err(fail("map requires a filter argument"));
        }
        let path = ops::AttributePath::new(attribute.as_ref(), keyword("default"))?;
        return items.iter().map(|item| path.get(item)).collect();
    };
    let filter = str_arg(filter)?;
    let mut call = vec![Value::UNDEFINED];
    call.extend_from_slice(filter_args);
    if !keywords.is_empty() {
        call.extend(args.last().cloned());
    }
    let mut mapped = Vec::with_capacity(items.len());
    for item in items {
        if let Some(slot) = call.first_mut() {
            *slot = item;
        }
        let result = state.apply_filter(filter, &call)?;
        charge_bytes(state, text_bytes(&result))?;
        mapped.push(result);
    }
    Ok(mapped)
}

fn extreme(args: &[Value], wanted: Ordering) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "attribute"];
    let [value, case_sensitive, attribute] = bind(args, names, 1)?;
    let path = ops::AttributePath::new(attribute.as_ref(), None)?;
    let case_sensitive = is_true(case_sensitive);
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(&value.unwrap_or_default())? {
        let key = ops::fold_case(&path.get(&item)?, case_sensitive);
        let is_better = match &best {
            None => true,
            Some((best_key, _)) => ops::compare(&key, best_key)? == wanted,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

fn max(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(args, Ordering::Greater)
}

fn min(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(args, Ordering::Less)
}

/// `select`, `reject`, `selectattr` and `rejectattr`.
fn pick(
    state: &mut State<'_, '_>,
    args: &[Value],
    by_attribute: bool,
    keep: bool,
) -> Result<Vec<Value>, Error> {
    let Some((value, mut rest)) = args.split_first() else {
        return Err(fail("select needs a value"));
    };
    let mut path = ops::AttributePath::new(None, None)?;
    if by_attribute {
        let Some((attribute, tail)) = rest.split_first() else {
            return Err(fail("Missing parameter for attribute name"));
        };
        path = ops::AttributePath::new(Some(attribute), None)?;
        rest = tail;
    }
    let test = match rest.split_first() {
        Some((name, tail)) if !name.is_kwargs() => Some((str_arg(name)?, tail)),
        _ => None,
    };
    let mut picked = Vec::new();
    if !value.is_true() {
        return Ok(picked);
    }
    for item in iterate(value)? {
        let subject = path.get(&item)?;
        let holds = match test {
            None => subject.is_true(),
            Some((name, tail)) => {
                let mut call = vec![subject];
                call.extend_from_slice(tail);
                state.perform_test(name, &call)?
            }
        };
        if holds == keep {
            picked.push(item);
        }
    }
    Ok(picked)
}

fn select(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, false, true))
}

fn reject(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, false, false))
}

fn selectattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, true, true))
}

fn rejectattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, true, false))
}

fn replace(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(args, ["s", "old", "new", "count"], 3)?;
    let count = opt_int_arg(count.as_ref())?.unwrap_or(-1);
    let (old, new) = (soft(old)?, soft(new)?);
    replace_checked(state, &soft(value)?, (&old, &new), count).map(Value::from)
}

fn reverse(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(like(Some(&value), text.chars().rev().collect()));
    }
    let mut items = iterate(&value)?;
    items.reverse();
    match type_name(&value) {
        "generator" => Ok(Value::from(items)),
        _ => Ok(Generator::value(items)),
    }
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

fn slice(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, slices, fill] = bind(args, ["value", "slices", "fill_with"], 2)?;
    let items = match iterate(&value.unwrap_or_default()) {
        Ok(items) => items,
        Err(error) => return Generator::lazy(Err(error)),
    };
    let slices = usize::try_from(int_arg(&slices.unwrap_or_default())?).unwrap_or(0);
    if slices == 0 || slices > 100_000 {
        return Err(fail("slice needs a number from 1 to 100000"));
    }
    let fill = fill.filter(|fill| !fill.is_none());
    let (per_slice, extra) = (items.len() / slices, items.len() % slices);
    let mut rest = items.into_iter();
    let mut rows = Vec::with_capacity(slices);
    for at in 0..slices {
        let mut row: Vec<Value> = rest.by_ref().take(per_slice + usize::from(at < extra)).collect();
        if let Some(fill) = fill.as_ref().filter(|_| at >= extra) {
            row.push(fill.clone());
        }
        let row = Value::from(row);
        check_depth(&row)?;
        rows.push(row);
    }
    Ok(Generator::value(rows))
}

fn sort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "reverse", "case_sensitive", "attribute"];
    let [value, reverse, case_sensitive, attribute] = bind(args, names, 1)?;
    let case_sensitive = is_true(case_sensitive);
    let attributes = ops::split_attributes(attribute.as_ref())?;
    let mut keyed = Vec::new();
    for item in iterate(&value.unwrap_or_default())? {
        let keys = attributes
            .iter()
            .map(|path| path.get(&item).map(|key| ops::fold_case(&key, case_sensitive)));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        keyed.push((Value::from(keys), item));
    }
    Ok(Value::from(ops::sort_keyed(keyed, is_true(reverse))?))
}

fn string(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    match value {
        Some(value) if value.as_str().is_some() => Ok(value),
        value => soft(value).map(Value::from),
    }
}

fn sum(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, attribute, start] = bind(args, ["iterable", "attribute", "start"], 1)?;
    let path = ops::AttributePath::new(attribute.as_ref(), None)?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in iterate(&value.unwrap_or_default())? {
        total = ops::add(&total, &path.get(&item)?)?;
    }
    Ok(total)
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
    let length = usize::try_from(length.as_ref().map_or(Ok(255), int_arg)?).unwrap_or(0);
    let leeway = usize::try_from(opt_int_arg(leeway.as_ref())?.unwrap_or(5)).unwrap_or(0);
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

fn unique(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(unique_items(args))
}

fn unique_items(args: &[Value]) -> Result<Vec<Value>, Error> {
    let names = ["value", "case_sensitive", "attribute"];
    let [value, case_sensitive, attribute] = bind(args, names, 1)?;
    let path = ops::AttributePath::new(attribute.as_ref(), None)?;
    let case_sensitive = is_true(case_sensitive);
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for item in iterate(&value.unwrap_or_default())? {
        let key = ops::fold_case(&path.get(&item)?, case_sensitive);
        check_hashable(&key)?;
        if seen.insert(key) {
            kept.push(item);
        }
    }
    Ok(kept)
}
