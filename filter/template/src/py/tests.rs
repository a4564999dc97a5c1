//! Jinja2's tests (`is ...`).

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::args::{bind, str_arg};
use super::filters::{FILTERS, Native};
use super::ops;
use super::repr::to_str;
use super::text;
use crate::value::{as_dict, fail, type_name};

/// All tests by name. Operator names (`==`) are written by their words.
pub(crate) const TESTS: [(&str, Native); 37] = [
    ("boolean", boolean),
    ("callable", callable),
    ("defined", defined),
    ("divisibleby", divisibleby),
    ("eq", eq),
    ("equalto", eq),
    ("==", eq),
    ("escaped", escaped),
    ("even", even),
    ("false", is_false),
    ("filter", filter),
    ("float", float),
    ("ge", ge),
    (">=", ge),
    ("greaterthan", gt),
    ("gt", gt),
    (">", gt),
    ("in", is_in),
    ("integer", integer),
    ("iterable", iterable),
    ("le", le),
    ("<=", le),
    ("lessthan", lt),
    ("lower", lower),
    ("lt", lt),
    ("<", lt),
    ("mapping", mapping),
    ("ne", ne),
    ("!=", ne),
    ("none", none),
    ("number", number),
    ("odd", odd),
    ("sameas", sameas),
    ("sequence", sequence),
    ("string", string),
    ("test", test),
    ("true", is_true),
];
/// The rest of [`TESTS`], apart because `undefined` and `upper` sort last.
pub(crate) const MORE_TESTS: [(&str, Native); 2] = [("undefined", undefined), ("upper", upper)];

/// Whether there is a test of this name.
pub(crate) fn is_test_name(name: &str) -> bool {
    TESTS.iter().chain(&MORE_TESTS).any(|(known, _)| *known == name)
}

fn one(args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    Ok(value.unwrap_or_default())
}

fn two(args: &[Value]) -> Result<(Value, Value), Error> {
    let [value, other] = bind(args, ["value", "other"], 2)?;
    Ok((value.unwrap_or_default(), other.unwrap_or_default()))
}

fn boolean(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(one(args)?.kind() == ValueKind::Bool))
}

fn callable(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    // Undefined has __call__, which raises when called.
    let value = one(args)?;
    Ok(Value::from(matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)))
}

fn defined(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(!one(args)?.is_undefined()))
}

fn undefined(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(one(args)?.is_undefined()))
}

/// Whether `value % divisor` equals `rest`.
fn leaves(value: &Value, divisor: &Value, rest: i64) -> Result<Value, Error> {
    Ok(Value::from(ops::modulo(value, divisor)? == Value::from(rest)))
}

fn divisibleby(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, divisor) = two(args)?;
    leaves(&value, &divisor, 0)
}

fn even(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    leaves(&one(args)?, &Value::from(2), 0)
}

fn odd(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    leaves(&one(args)?, &Value::from(2), 1)
}

fn eq(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, other) = two(args)?;
    Ok(Value::from(value == other))
}

fn ne(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, other) = two(args)?;
    Ok(Value::from(value != other))
}

fn order(args: &[Value], test: fn(Ordering) -> bool) -> Result<Value, Error> {
    let (value, other) = two(args)?;
    Ok(Value::from(test(ops::compare(&value, &other)?)))
}

fn lt(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    order(args, Ordering::is_lt)
}

fn le(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    order(args, Ordering::is_le)
}

fn gt(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    order(args, Ordering::is_gt)
}

fn ge(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    order(args, Ordering::is_ge)
}

fn escaped(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(one(args)?.is_safe()))
}

fn is_true(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = one(args)?;
    Ok(Value::from(value.kind() == ValueKind::Bool && value.is_true()))
}

fn is_false(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = one(args)?;
    Ok(Value::from(value.kind() == ValueKind::Bool && !value.is_true()))
}

fn filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let name = one(args)?;
    let name = name.as_str().unwrap_or_default();
    Ok(Value::from(FILTERS.iter().any(|(known, _)| *known == name)))
}

fn test(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let name = one(args)?;
    Ok(Value::from(is_test_name(name.as_str().unwrap_or_default())))
}

fn float(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(type_name(&one(args)?) == "float"))
}

fn integer(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(type_name(&one(args)?) == "int"))
}

fn number(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = one(args)?;
    Ok(Value::from(matches!(value.kind(), ValueKind::Number | ValueKind::Bool)))
}

fn is_in(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, container) = two(args)?;
    Ok(Value::from(ops::contains(&container, &value)?))
}

fn iterable(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = one(args)?;
    let is_iterable = match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Iterable => true,
        _ => as_dict(&value).is_some(),
    };
    Ok(Value::from(is_iterable))
}

fn mapping(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(as_dict(&one(args)?).is_some()))
}

fn none(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(one(args)?.is_none()))
}

fn sameas(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, other) = two(args)?;
    if value.kind() != other.kind() || value != other {
        return Ok(Value::from(false));
    }
    match value.kind() {
        ValueKind::None | ValueKind::Bool => Ok(Value::from(true)),
        _ => Err(fail("identity of equal objects is not defined here")),
    }
}

fn sequence(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = one(args)?;
    // Anything with a length and an index operator, so mappings and undefined too.
    Ok(Value::from(match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq => true,
        ValueKind::Iterable => type_name(&value) == "list",
        _ => as_dict(&value).is_some(),
    }))
}

fn string(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(one(args)?.kind() == ValueKind::String))
}

fn lower(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    cased(args, char::is_lowercase, char::is_uppercase)
}

fn upper(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    cased(args, char::is_uppercase, char::is_lowercase)
}

fn cased(
    args: &[Value],
    wanted: fn(char) -> bool,
    unwanted: fn(char) -> bool,
) -> Result<Value, Error> {
    let value = one(args)?;
    let text = Value::from(to_str(&value)?);
    let text = str_arg(&text)?;
    let is_wrong = |c: char| unwanted(c) || text::is_title(c);
    Ok(Value::from(text.chars().any(wanted) && !text.chars().any(is_wrong)))
}
