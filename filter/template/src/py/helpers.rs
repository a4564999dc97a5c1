//! Helpers that only the transpiler calls: the operators and subscripts of Python.
//!
//! Each is a filter; its name starts with two underscores, which no template
//! can write.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::args::{bind, count_of, int_arg, opt_int_arg, str_arg};
use super::filters::Native;
use super::methods::{bound_method, charge_bytes, charge_items};
use super::ops;
use super::repr::{check_len, write_str};
use crate::value::{
    Generator, PyDict, Range, as_dict, check_depth, fail, iterate, text_bytes, type_name,
};

/// All helpers by name.
pub(crate) const HELPERS: [(&str, Native); 27] = [
    ("__add", |_, args| with_two(args, ops::add)),
    ("__sub", |_, args| with_two(args, ops::sub)),
    ("__mul", mul),
    ("__div", |_, args| with_two(args, ops::div)),
    ("__floordiv", |_, args| with_two(args, ops::floor_div)),
    ("__mod", |_, args| with_two(args, ops::modulo)),
    ("__pow", |_, args| with_two(args, ops::pow)),
    ("__neg", |_, args| with_two(args, |value, _| ops::neg(value))),
    ("__pos", |_, args| with_two(args, |value, _| ops::sub(value, &Value::from(0)))),
    ("__lt", |_, args| with_two(args, |a, b| ordered(a, b, Ordering::is_lt))),
    ("__le", |_, args| with_two(args, |a, b| ordered(a, b, Ordering::is_le))),
    ("__gt", |_, args| with_two(args, |a, b| ordered(a, b, Ordering::is_gt))),
    ("__ge", |_, args| with_two(args, |a, b| ordered(a, b, Ordering::is_ge))),
    ("__in", is_in),
    ("__cat", cat),
    ("__attr", attr),
    ("__item", item),
    ("__slice", slice),
    ("__iter", iter),
    ("__nest", nest),
    ("__dict", dict),
    ("__store", store),
    ("__unknown", unknown),
    ("__iter_tuples", iter_tuples),
    ("__unpack", unpack),
    ("__pass", pass),
    ("__passed", passed),
];

/// Applies an operation to the first argument and, where there is one, the second.
fn with_two(
    args: &[Value],
    operation: fn(&Value, &Value) -> Result<Value, Error>,
) -> Result<Value, Error> {
    match args {
        [value] => operation(value, &Value::UNDEFINED),
        [left, right] => operation(left, right),
        _ => Err(fail("a helper was called wrongly")),
    }
}

fn ordered(a: &Value, b: &Value, test: fn(Ordering) -> bool) -> Result<Value, Error> {
    Ok(Value::from(test(ops::compare(a, b)?)))
}

fn is_in(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [item, container] = args else {
        return Err(fail("a helper was called wrongly"));
    };
    charge_items(state, container)?;
    ops::contains(container, item).map(Value::from)
}

fn mul(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [left, right] = args else {
        return Err(fail("a helper was called wrongly"));
    };
    let is_count = |value: &Value| matches!(type_name(value), "int" | "bool");
    let is_repeatable = |value: &Value| matches!(type_name(value), "str" | "list" | "tuple");
    let (repeated, count) = match (is_repeatable(left), is_repeatable(right)) {
        (true, false) if is_count(right) => (left, right),
        (false, true) if is_count(left) => (right, left),
        _ => return ops::mul(left, right),
    };
    let count = count_of(int_arg(count)?);
    if let Some(text) = repeated.as_str() {
        charge_bytes(state, text.len().saturating_mul(count))?;
        let text = text.repeat(count);
        return Ok(match repeated.is_safe() {
            true => Value::from_safe_string(text),
            false => Value::from(text),
        });
    }
    let items = iterate(repeated)?;
    charge_bytes(state, items.len().saturating_mul(count).saturating_mul(size_of::<Value>()))?;
    let len = items.len().saturating_mul(count);
    let items: Vec<Value> = items.iter().cycle().take(len).cloned().collect();
    Ok(match repeated.is_tuple() {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    })
}

fn cat(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let bytes = args.iter().map(text_bytes).fold(0, usize::saturating_add);
    charge_bytes(state, bytes)?;
    let mut out = String::with_capacity(bytes);
    for value in args {
        write_str(&mut out, value)?;
        check_len(&out)?;
    }
    Ok(Value::from(out))
}

/// `value.name`, where `name` is a method of some type: the method first, then the entry.
fn attr(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, name] = args else {
        return Err(fail("a helper was called wrongly"));
    };
    if value.is_undefined() {
        return Err(fail("attribute of an undefined value"));
    }
    match bound_method(value, str_arg(name)?)? {
        Some(method) => Ok(method),
        None => value.get_item(name),
    }
}

/// `value["name"]`, where `name` is a method of some type: the entry first, then the method.
fn item(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, key] = args else {
        return Err(fail("a helper was called wrongly"));
    };
    ops::get_item(value, key)
}

fn slice(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, start, stop, step] = bind(args, ["value", "start", "stop", "step"], 4)?;
    let value = value.unwrap_or_default();
    let (start, stop) = (opt_int_arg(start.as_ref())?, opt_int_arg(stop.as_ref())?);
    let step = opt_int_arg(step.as_ref())?.unwrap_or(1);
    if step == 0 {
        return Err(fail("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        return Ok(slice_text(&value, text, (start, stop, step)));
    }
    match type_name(&value) {
        "list" | "tuple" | "range" => {}
        name => return Err(fail(format!("'{name}' object cannot be sliced"))),
    }
    if let Some(range) = value.downcast_object_ref::<Range>() {
        let (from, to) = slice_bounds(range.len, start, stop, step);
        let len = slice_positions(range.len, start, stop, step).count();
        let sliced = range.sliced(from, to, step, len);
        return sliced.map(Value::from_object).ok_or_else(|| fail("range out of bounds"));
    }
    let items = iterate(&value)?;
    let at = slice_positions(items.len(), start, stop, step);
    let picked: Vec<Value> = at.filter_map(|at| items.get(at).cloned()).collect();
    Ok(match value.is_tuple() {
        true => Value::from(Tuple::from(picked)),
        false => Value::from(picked),
    })
}

fn slice_text(
    value: &Value,
    text: &str,
    (start, stop, step): (Option<i64>, Option<i64>, i64),
) -> Value {
    let picked = if step == 1 {
        let window = super::text::window(text, start, stop);
        window.map_or("", |(_, part)| part).to_owned()
    } else {
        let chars: Vec<char> = text.chars().collect();
        let at = slice_positions(chars.len(), start, stop, step);
        at.filter_map(|at| chars.get(at)).collect()
    };
    match value.is_safe() {
        true => Value::from_safe_string(picked),
        false => Value::from(picked),
    }
}

/// The first position of `[start:stop:step]` in a sequence of `len` items, and the one to stop before,
/// as `slice.indices` gives them.
fn slice_bounds(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, i64) {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |at: i64| {
        let at = if at < 0 { at.saturating_add(len) } else { at };
        at.clamp(low, high)
    };
    let from = start.map_or(if step > 0 { low } else { high }, bound);
    let to = stop.map_or(if step > 0 { high } else { low }, bound);
    (from, to)
}

/// All positions of a slice.
fn slice_positions(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let (from, to) = slice_bounds(len, start, stop, step);
    let mut at = from;
    std::iter::from_fn(move || {
        let is_inside = if step > 0 { at < to } else { at > to };
        let current = usize::try_from(at).ok().filter(|_| is_inside)?;
        at = at.saturating_add(step);
        Some(current)
    })
}

/// What a `for` loops over: fails where Python's `iter()` does.
fn iter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    match value.kind() {
        ValueKind::Undefined | ValueKind::Seq | ValueKind::Iterable => Ok(value),
        // A list, since minijinja does not know which character is the last.
        ValueKind::String => iterate(&value).map(Value::from),
        ValueKind::Map if as_dict(&value).is_some() => Ok(value),
        _ => Err(fail(format!("'{}' object is not iterable", type_name(&value)))),
    }
}

/// What a `for` with several targets loops over: strings and dicts among the items become lists,
/// which minijinja can unpack.
fn iter_tuples(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = iter(state, args)?;
    let mut items = iterate(&value)?;
    let needs_list = |item: &Value| matches!(type_name(item), "str" | "dict");
    if !items.iter().any(needs_list) {
        return Ok(if type_name(&value) == "generator" { Generator::value(items) } else { value });
    }
    for item in &mut items {
        if needs_list(item) {
            *item = Value::from(iterate(item)?);
        }
    }
    Ok(Value::from(items))
}

/// What `set a, b = value` unpacks.
fn unpack(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    iterate(&value.unwrap_or_default()).map(Value::from)
}

/// Stands for an undefined value that was passed to a macro: not the same as no value.
#[derive(Debug)]
struct PassedUndefined;

impl Object for PassedUndefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// An argument of a macro that has defaults.
fn pass(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    Ok(match value {
        Some(value) if !value.is_undefined() => value,
        _ => Value::from_object(PassedUndefined),
    })
}

/// The value that [`pass`] took, within the macro.
fn passed(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    Ok(match value.downcast_object_ref::<PassedUndefined>() {
        Some(_) => Value::UNDEFINED,
        None => value,
    })
}

/// Checks a list or tuple literal for its depth.
fn nest(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    check_depth(&value)?;
    Ok(value)
}

/// Makes a dict of a list of pairs.
fn dict(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [pairs] = bind(args, ["pairs"], 1)?;
    let value = PyDict::from_pairs(iterate(&pairs.unwrap_or_default())?)?;
    check_depth(&value)?;
    Ok(value)
}

/// What a namespace may hold: no namespace, so that there are no cycles. Lists and dicts that hold one
/// cannot be made.
fn store(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    if value.kind() == ValueKind::Map && as_dict(&value).is_none() {
        return Err(fail("a namespace within another is not supported"));
    }
    Ok(value)
}

/// A filter or test that does not exist, where Jinja2 finds out only when it gets there.
fn unknown(_: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
    Err(fail("no filter or test of that name"))
}
