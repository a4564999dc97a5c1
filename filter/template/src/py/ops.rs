//! Operations that Python defines on values and minijinja defines otherwise:
//! ordering, attribute paths, `+` with Markup, `%` formatting, number parsing.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::args::{int_arg, str_arg};
use super::format::{Operand, printf};
use super::methods::bound_method;
use super::repr::{as_f64, to_str};
use super::text::{self, Ends};
use crate::value::{as_dict, check_hashable, fail, iterate, type_name};

/// `a < b`, `a == b` or `a > b` as Python orders; mixed types are errors.
pub(crate) fn compare(a: &Value, b: &Value) -> Result<Ordering, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if is_number(a) && is_number(b) {
        if [a, b].iter().any(|value| !value.is_integer() && as_f64(value).is_nan()) {
            return Err(fail("not a number has no order"));
        }
        return Ok(a.cmp(b));
    }
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => return Ok(a.cmp(b)),
        (None, None) => {}
        _ => return Err(unordered(a, b)),
    }
    let kind = type_name(a);
    if kind != type_name(b) || !matches!(kind, "list" | "tuple") {
        return Err(unordered(a, b));
    }
    let (left, right) = (iterate(a)?, iterate(b)?);
    for (a, b) in left.iter().zip(&right) {
        if a != b {
            return compare(a, b);
        }
    }
    Ok(left.len().cmp(&right.len()))
}

fn unordered(a: &Value, b: &Value) -> Error {
    fail(format!(
        "'<' not supported between instances of '{}' and '{}'",
        type_name(a),
        type_name(b)
    ))
}

/// Sorts by key, stable; gives the items.
pub(crate) fn sort_keyed(keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    let sorted = sort_pairs(keyed, reverse)?;
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

/// Sorts by key, stable also in reverse, as Python's `sorted` is.
pub(crate) fn sort_pairs(
    mut keyed: Vec<(Value, Value)>,
    reverse: bool,
) -> Result<Vec<(Value, Value)>, Error> {
    let mut failure = None;
    // A failed comparison counts as equal, so that the order stays total; the result is dropped then.
    keyed.sort_by(|(a, _), (b, _)| {
        let order = compare(a, b).unwrap_or_else(|error| {
            failure = Some(error);
            Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(keyed),
    }
}

/// The key that sorting and comparing use: strings in lower case unless case counts.
pub(crate) fn fold_case(value: &Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value.clone(),
    }
}

/// `"a.b.0"`, as `map(attribute=...)` and its kin read it.
pub(crate) struct AttributePath {
    parts: Vec<Value>,
    fallback: Option<Value>,
}

impl AttributePath {
    pub(crate) fn new(attribute: Option<&Value>, fallback: Option<Value>) -> Result<Self, Error> {
        let parts = match attribute.filter(|value| !value.is_none()) {
            None => Vec::new(),
            Some(attribute) => match attribute.as_str() {
                Some(path) => path.split('.').map(path_part).collect::<Result<_, _>>()?,
                None => vec![attribute.clone()],
            },
        };
        let fallback = fallback.filter(|value| !value.is_none());
        Ok(Self { parts, fallback })
    }

    /// Follows the path; a missing part takes the fallback, when there is one.
    pub(crate) fn get(&self, item: &Value) -> Result<Value, Error> {
        let mut value = item.clone();
        for part in &self.parts {
            value = get_item(&value, part)?;
            if let Some(fallback) = self.fallback.as_ref().filter(|_| value.is_undefined()) {
                value = fallback.clone();
            }
        }
        Ok(value)
    }
}

fn path_part(part: &str) -> Result<Value, Error> {
    if !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()) {
        return part.parse::<i64>().map(Value::from).map_err(|_| fail("index out of range"));
    }
    Ok(Value::from(part))
}

/// `sort(attribute="a,b")`: one path each.
pub(crate) fn split_attributes(attribute: Option<&Value>) -> Result<Vec<AttributePath>, Error> {
    match attribute.and_then(Value::as_str) {
        Some(paths) => paths
            .split(',')
            .map(|path| AttributePath::new(Some(&Value::from(path)), None))
            .collect(),
        None => Ok(vec![AttributePath::new(attribute, None)?]),
    }
}

/// `value[key]`: the entry, else the attribute, else undefined.
pub(crate) fn get_item(value: &Value, key: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(fail("cannot read an entry of an undefined value"));
    }
    if type_name(key) == "float" && as_dict(value).is_none() {
        return Ok(Value::UNDEFINED);
    }
    let found = value.get_item(key)?;
    if value.is_safe() && !found.is_undefined() {
        return to_str(&found).map(Value::from_safe_string);
    }
    match key.as_str() {
        Some(name) if found.is_undefined() => {
            Ok(bound_method(value, name)?.unwrap_or(Value::UNDEFINED))
        }
        _ => Ok(found),
    }
}

/// `&`, `<`, `>` and quotes as entities, as markupsafe writes them.
pub(crate) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `a + b`. A Markup string escapes what is added to it.
pub(crate) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return Ok(match (a.is_safe(), b.is_safe()) {
            (false, false) => Value::from([left, right].concat()),
            (true, false) => Value::from_safe_string(format!("{left}{}", escape_html(right))),
            (false, true) => Value::from_safe_string(format!("{}{right}", escape_html(left))),
            (true, true) => Value::from_safe_string(format!("{left}{right}")),
        });
    }
    if let Some(pair) = Pair::new(a, b) {
        return pair.compute(i128::checked_add, |a, b| a + b);
    }
    let kind = type_name(a);
    if kind == type_name(b) && matches!(kind, "list" | "tuple") {
        let mut items = iterate(a)?;
        items.extend(iterate(b)?);
        return Ok(if kind == "tuple" {
            Value::from(minijinja::value::Tuple::from(items))
        } else {
            Value::from(items)
        });
    }
    Err(unsupported("+", a, b))
}

fn unsupported(op: &str, a: &Value, b: &Value) -> Error {
    fail(format!("unsupported operand type(s) for {op}: '{}' and '{}'", type_name(a), type_name(b)))
}

/// The operands of arithmetic: integers where both are (a bool is one), else floats.
#[derive(Debug, Clone, Copy)]
enum Pair {
    Ints(i128, i128),
    Floats(f64, f64),
}

impl Pair {
    /// `None` where an operand is no number.
    fn new(a: &Value, b: &Value) -> Option<Self> {
        let int = |value: &Value| match type_name(value) {
            "bool" => Some(i128::from(value.is_true())),
            "int" => i128::try_from(value.clone()).ok(),
            _ => None,
        };
        if let (Some(a), Some(b)) = (int(a), int(b)) {
            return Some(Self::Ints(a, b));
        }
        let float = |value: &Value| match type_name(value) {
            "bool" => Some(f64::from(u8::from(value.is_true()))),
            "int" | "float" => Some(as_f64(value)),
            _ => None,
        };
        Some(Self::Floats(float(a)?, float(b)?))
    }

    fn compute(
        self,
        ints: fn(i128, i128) -> Option<i128>,
        floats: fn(f64, f64) -> f64,
    ) -> Result<Value, Error> {
        match self {
            // Python's integers have no bounds; 128 bits are enough for prompts.
            Self::Ints(a, b) => match ints(a, b) {
                Some(int) => Ok(Value::from(int)),
                None => Err(fail("integer out of range")),
            },
            Self::Floats(a, b) => Ok(Value::from(floats(a, b))),
        }
    }

    fn as_floats(self) -> (f64, f64) {
        match self {
            Self::Ints(a, b) => (a as f64, b as f64),
            Self::Floats(a, b) => (a, b),
        }
    }
}

/// `a - b`.
pub(crate) fn sub(a: &Value, b: &Value) -> Result<Value, Error> {
    let pair = Pair::new(a, b).ok_or_else(|| unsupported("-", a, b))?;
    pair.compute(i128::checked_sub, |a, b| a - b)
}

/// `-a`.
pub(crate) fn neg(a: &Value) -> Result<Value, Error> {
    match Pair::new(a, a) {
        Some(Pair::Ints(a, _)) => {
            a.checked_neg().map(Value::from).ok_or_else(|| fail("integer out of range"))
        }
        Some(Pair::Floats(a, _)) => Ok(Value::from(-a)),
        None => Err(fail(format!("bad operand type for unary -: '{}'", type_name(a)))),
    }
}

/// `a * b` of numbers.
pub(crate) fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    let pair = Pair::new(a, b).ok_or_else(|| unsupported("*", a, b))?;
    pair.compute(i128::checked_mul, |a, b| a * b)
}

/// `a / b`, always a float.
pub(crate) fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    let pair = Pair::new(a, b).ok_or_else(|| unsupported("/", a, b))?;
    match pair.as_floats() {
        (_, 0.0) => Err(fail("division by zero")),
        (a, b) => Ok(Value::from(a / b)),
    }
}

/// The operands of a division that rounds down, whose divisor is not zero.
fn divisible(op: &str, a: &Value, b: &Value) -> Result<Pair, Error> {
    let pair = Pair::new(a, b).ok_or_else(|| unsupported(op, a, b))?;
    match pair {
        Pair::Ints(_, 0) | Pair::Floats(_, 0.0) => Err(fail("division by zero")),
        pair => Ok(pair),
    }
}

/// `a // b`, rounded down.
pub(crate) fn floor_div(a: &Value, b: &Value) -> Result<Value, Error> {
    divisible("//", a, b)?.compute(
        |a, b| {
            let quotient = a.checked_div(b)?;
            let is_inexact = a.checked_rem(b)? != 0;
            quotient.checked_sub(i128::from(is_inexact && (a < 0) != (b < 0)))
        },
        |a, b| ((a - float_modulo(a, b)) / b).round(),
    )
}

/// `a % b`: of numbers, with the sign of `b`; of a string, formatting.
pub(crate) fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    match a.as_str() {
        Some(_) if a.is_safe() => return Err(fail("% on Markup is not supported")),
        Some(template) if b.is_tuple() => {
            return printf(template, &Operand::Items(&iterate(b)?)).map(Value::from);
        }
        Some(template) => return printf(template, &Operand::Single(b)).map(Value::from),
        None => {}
    }
    divisible("%", a, b)?.compute(
        |a, b| {
            let rest = a.checked_rem(b)?;
            let is_other_sign = rest != 0 && (rest < 0) != (b < 0);
            if is_other_sign { rest.checked_add(b) } else { Some(rest) }
        },
        float_modulo,
    )
}

fn float_modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        return 0.0_f64.copysign(b);
    }
    if (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

/// `a ** b`.
pub(crate) fn pow(a: &Value, b: &Value) -> Result<Value, Error> {
    match Pair::new(a, b).ok_or_else(|| unsupported("**", a, b))? {
        Pair::Ints(base, power) if power >= 0 => {
            let power = u32::try_from(power).ok();
            let result = power.and_then(|power| base.checked_pow(power));
            result.map(Value::from).ok_or_else(|| fail("integer out of range"))
        }
        pair => match pair.as_floats() {
            (base, power) if base == 0.0 && power < 0.0 => Err(fail("zero to a negative power")),
            (base, power) if base < 0.0 && power.fract() != 0.0 => {
                Err(fail("complex numbers are not supported"))
            }
            (base, power) => Ok(Value::from(base.powf(power))),
        },
    }
}

/// `float(value)`; `None` where Python raises ValueError or TypeError.
pub(crate) fn parse_float(value: &Value) -> Result<Option<f64>, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(Some(f64::from(u8::from(value.is_true())))),
        ValueKind::Number => Ok(Some(as_f64(value))),
        ValueKind::String => {
            let text = text::strip(value.as_str().unwrap_or_default(), None, Ends::Both);
            Ok(parse_float_text(text))
        }
        // Undefined has __float__, which raises UndefinedError.
        ValueKind::Undefined => Err(fail("undefined value as a number")),
        _ => Ok(None),
    }
}

fn parse_float_text(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    if matches!(lower.as_str(), "inf" | "infinity" | "nan") {
        return text.parse().ok();
    }
    let digits = strip_underscores(text)?;
    let is_plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !is_plain || !digits.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Removes underscores between digits; `None` where one stands elsewhere.
fn strip_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit =
        |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric);
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'_' && !(is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1))) {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

/// `int(text, base)`; `None` where Python raises ValueError.
pub(crate) fn parse_int(text: &str, base: i64) -> Result<Option<i128>, Error> {
    let text = text::strip(text, None, Ends::Both);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let radix = u32::try_from(base).unwrap_or(1);
    if base != 0 && !(2..=36).contains(&base) {
        return Ok(None);
    }
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match (lower.get(..2), radix) {
        (Some("0x"), 0 | 16) => (16, lower.get(2..)),
        (Some("0o"), 0 | 8) => (8, lower.get(2..)),
        (Some("0b"), 0 | 2) => (2, lower.get(2..)),
        (_, 0) => (10, Some(lower.as_str())),
        (_, radix) => (radix, Some(lower.as_str())),
    };
    let Some(digits) = digits.and_then(strip_underscores) else {
        return Ok(None);
    };
    if digits.is_empty() || digits.starts_with(['+', '-']) {
        return Ok(None);
    }
    if !digits.is_ascii() {
        return Err(fail("digits beyond ASCII are not supported"));
    }
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return Ok(None);
    }
    let Ok(value) = i128::from_str_radix(&digits, radix) else {
        return Err(fail("integer out of range"));
    };
    Ok(Some(sign * value))
}

/// `int(float)`; `None` for infinities and NaN.
pub(crate) fn truncate_float(float: f64) -> Option<i128> {
    (float.is_finite() && float.abs() < 1e38).then_some(float.trunc() as i128)
}

/// `round`, `ceil` and `floor` as the `round` filter has them.
pub(crate) fn round(value: &Value, precision: i64, method: &str) -> Result<Value, Error> {
    if !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) {
        return Err(fail("a number is required"));
    }
    let power = 10_f64.powi(i32::try_from(precision).unwrap_or(i32::MAX));
    let scaled = as_f64(value) * power;
    match method {
        "common" if value.is_integer() || value.kind() == ValueKind::Bool => {
            if precision >= 0 {
                return int_arg(value).map(Value::from);
            }
            Err(fail("rounding integers to tens is not supported"))
        }
        "common" => {
            let precision = usize::try_from(precision)
                .map_err(|_| fail("a negative precision is not supported"))?;
            // Formatting rounds the exact binary value to nearest, ties to even, as Python does.
            let text = format!("{:.*}", precision.min(400), as_f64(value));
            text.parse::<f64>().map(Value::from).map_err(|_| fail("not a number"))
        }
        "ceil" => Ok(Value::from(scaled.ceil() / power)),
        "floor" => Ok(Value::from(scaled.floor() / power)),
        _ => Err(fail("method must be common, ceil or floor")),
    }
}

/// `a in b`.
pub(crate) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        return Ok(text.contains(str_arg(item)?));
    }
    if as_dict(container).is_some() {
        check_hashable(item)?;
        let dict = container.as_object();
        return Ok(dict.is_some_and(|dict| dict.get_value(item).is_some()));
    }
    Ok(iterate(container)?.contains(item))
}
