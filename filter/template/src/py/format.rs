//! `str.format` and `%`, with Python's format specifications.
//!
//! In: a template and its arguments. Out: text, or an error where Python
//! raises. Widths and precisions are bounded by [`WIDTH_MAX`].

mod number;

use minijinja::{Error, Value};

use super::args::{int_arg, split_keywords};
use super::methods::bound_method;
use super::ops;
use super::repr::{as_f64, check_len, to_str, write_repr};
use crate::limits::VALUE_DEPTH_MAX;
use crate::value::{as_dict, fail, type_name};
use number::{float_text, group, int_text};

/// Largest width and precision; more is an error, so that no template can ask for gigabytes.
const WIDTH_MAX: usize = 4096;

/// A parsed format specification: `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) fill: char,
    pub(super) align: Option<char>,
    pub(super) sign: char,
    pub(super) is_alternate: bool,
    pub(super) width: usize,
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    pub(super) kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: None,
            sign: '-',
            is_alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

fn bad_spec() -> Error {
    fail("invalid format specifier")
}

/// Reads digits from the start of `text`.
fn read_number(text: &mut &str) -> Result<Option<usize>, Error> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if digits == 0 {
        return Ok(None);
    }
    let (number, rest) = text.split_at_checked(digits).ok_or_else(bad_spec)?;
    *text = rest;
    let number = number.parse().ok().filter(|number| *number <= WIDTH_MAX);
    number.map(Some).ok_or_else(|| fail("a width or precision is too large"))
}

impl Spec {
    fn parse(text: &str) -> Result<Self, Error> {
        let mut spec = Self::default();
        let mut rest = text;
        let is_align = |c: char| matches!(c, '<' | '>' | '^' | '=');
        let mut chars = text.chars();
        let (first, second) = (chars.next(), chars.next());
        if let (Some(fill), Some(align)) = (first, second.filter(|c| is_align(*c))) {
            (spec.fill, spec.align) = (fill, Some(align));
            rest = chars.as_str();
        } else if let Some(align) = first.filter(|c| is_align(*c)) {
            spec.align = Some(align);
            rest = rest.get(1..).unwrap_or_default();
        }
        if let Some(sign) = rest.chars().next().filter(|c| matches!(c, '+' | '-' | ' ')) {
            spec.sign = sign;
            rest = rest.get(1..).unwrap_or_default();
        }
        if let Some(tail) = rest.strip_prefix('#') {
            (spec.is_alternate, rest) = (true, tail);
        }
        if let Some(tail) = rest.strip_prefix('0') {
            if spec.align.is_none() {
                // Numbers are padded behind their sign; `pad` turns this into `<` for text.
                (spec.fill, spec.align) = ('0', Some('0'));
            }
            rest = tail;
        }
        spec.width = read_number(&mut rest)?.unwrap_or(0);
        if let Some(grouping) = rest.chars().next().filter(|c| matches!(c, ',' | '_')) {
            spec.grouping = Some(grouping);
            rest = rest.get(1..).unwrap_or_default();
        }
        if let Some(tail) = rest.strip_prefix('.') {
            rest = tail;
            spec.precision = Some(read_number(&mut rest)?.ok_or_else(bad_spec)?);
        }
        let mut kind = rest.chars();
        spec.kind = kind.next();
        if kind.next().is_some() {
            return Err(bad_spec());
        }
        Ok(spec)
    }

    /// Pads `sign` and `body` to the width.
    pub(super) fn pad(&self, sign: &str, body: &str, default_align: char) -> String {
        let len = sign.chars().count() + body.chars().count();
        let missing = self.width.saturating_sub(len);
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(default_align) {
            '<' => format!("{sign}{body}{}", fill(missing)),
            '^' => format!("{}{sign}{body}{}", fill(missing / 2), fill(missing - missing / 2)),
            '=' => format!("{sign}{}{body}", fill(missing)),
            '0' if default_align == '<' => format!("{sign}{body}{}", fill(missing)),
            '0' => format!("{sign}{}{body}", fill(missing)),
            _ => format!("{}{sign}{body}", fill(missing)),
        }
    }
}

/// `format(value, spec)`.
fn format_value(value: &Value, spec_text: &str) -> Result<String, Error> {
    if spec_text.is_empty() {
        return to_str(value);
    }
    let spec = Spec::parse(spec_text)?;
    match type_name(value) {
        "str" => format_text(value.as_str().unwrap_or_default(), &spec),
        "bool" if spec.kind.is_none() || spec.kind == Some('s') => {
            if spec.kind.is_some() {
                return Err(bad_spec());
            }
            format_number(&Value::from(i64::from(value.is_true())), &spec)
        }
        "int" | "float" | "bool" => format_number(value, &spec),
        name => Err(fail(format!("unsupported format string passed to {name}.__format__"))),
    }
}

fn format_text(text: &str, spec: &Spec) -> Result<String, Error> {
    let is_bad = spec.kind.is_some_and(|kind| kind != 's')
        || spec.sign != '-'
        || spec.is_alternate
        || spec.grouping.is_some()
        || spec.align == Some('=');
    if is_bad {
        return Err(bad_spec());
    }
    let cut: String = match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_owned(),
    };
    Ok(spec.pad("", &cut, '<'))
}

fn format_number(value: &Value, spec: &Spec) -> Result<String, Error> {
    let is_int = type_name(value) != "float";
    let int_kind =
        spec.kind.is_none_or(|kind| matches!(kind, 'd' | 'b' | 'o' | 'x' | 'X' | 'c' | 'n'));
    let (is_negative, body) = if is_int && int_kind {
        if spec.precision.is_some() {
            return Err(fail("precision not allowed in integer format specifier"));
        }
        let int = i128::try_from(value.clone()).map_err(|_| fail("integer out of range"))?;
        if spec.kind == Some('c') {
            let c = u32::try_from(int).ok().and_then(char::from_u32);
            let c = c.ok_or_else(|| fail("%c arg not in range"))?;
            return Ok(spec.pad("", &c.to_string(), '<'));
        }
        (int < 0, int_text(int.unsigned_abs(), spec))
    } else {
        let float = as_f64(value);
        (float.is_sign_negative() && !float.is_nan(), float_text(float.abs(), spec)?)
    };
    let sign = match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, '-') => "",
        (false, ' ') => " ",
        (false, _) => "+",
    };
    let (prefix, digits) = body;
    let sign = format!("{sign}{prefix}");
    Ok(spec.pad(&sign, &group(&digits, spec, sign.chars().count()), '>'))
}

/// `template.format(*args, **kwargs)`.
pub(crate) fn str_format(template: &str, args: &[Value]) -> Result<String, Error> {
    let (positional, keywords) = split_keywords(args)?;
    let mut fields = Fields { positional, keywords, next: 0, is_numbered: None };
    fields.render(template, 2)
}

/// The arguments of one call of `format`.
struct Fields<'a> {
    positional: &'a [Value],
    keywords: Vec<(Value, Value)>,
    /// Next automatic number.
    next: usize,
    /// Whether fields are numbered by hand; `None` until the first one.
    is_numbered: Option<bool>,
}

impl Fields<'_> {
    /// `depth` is 2 for the template and 1 for a specification, which may hold fields itself.
    fn render(&mut self, template: &str, depth: usize) -> Result<String, Error> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(fail("max string recursion exceeded"));
        };
        let mut out = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            let (text, tail) = rest.split_at_checked(at).unwrap_or((rest, ""));
            out.push_str(text);
            if let Some(after) = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")) {
                out.extend(tail.chars().next());
                rest = after;
                continue;
            }
            let Some(tail) = tail.strip_prefix('{') else {
                return Err(fail("single '}' encountered in format string"));
            };
            let end = field_end(tail).ok_or_else(|| fail("expected '}' before end of string"))?;
            let (field, tail) = tail.split_at_checked(end).unwrap_or((tail, ""));
            out.push_str(&self.field(field, depth)?);
            check_len(&out)?;
            rest = tail.get(1..).unwrap_or_default();
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let (name, spec) = match field.find([':', '!']).map(|at| field.split_at(at)) {
            Some(parts) => parts,
            None => (field, ""),
        };
        let mut value = self.lookup(name)?;
        let mut spec = spec;
        if let Some(tail) = spec.strip_prefix('!') {
            let mut chars = tail.chars();
            value = match chars.next() {
                Some('s') => Value::from(to_str(&value)?),
                Some('r') => Value::from(repr(&value)?),
                _ => return Err(fail("unsupported conversion")),
            };
            spec = chars.as_str();
            if !spec.is_empty() && !spec.starts_with(':') {
                return Err(fail("expected ':' after conversion specifier"));
            }
        }
        let spec = spec.strip_prefix(':').unwrap_or_default();
        let spec =
            if spec.contains(['{', '}']) { self.render(spec, depth)? } else { spec.to_owned() };
        format_value(&value, &spec)
    }

    fn lookup(&mut self, name: &str) -> Result<Value, Error> {
        let first_end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at_checked(first_end).unwrap_or((name, ""));
        let mut value = self.argument(first)?;
        while !path.is_empty() {
            if let Some(tail) = path.strip_prefix('.') {
                let end = tail.find(['.', '[']).unwrap_or(tail.len());
                let (attribute, rest) = tail.split_at_checked(end).unwrap_or((tail, ""));
                if attribute.is_empty() || attribute.starts_with("__") {
                    return Err(fail("empty or private attribute in format string"));
                }
                value = match bound_method(&value, attribute)? {
                    Some(method) => method,
                    None => value.get_attr(attribute)?,
                };
                path = rest;
            } else {
                let tail = path.strip_prefix('[').unwrap_or_default();
                let (key, rest) = tail.split_once(']').ok_or_else(|| fail("missing ']'"))?;
                let key = match key.parse::<i64>() {
                    Ok(index) if key.bytes().all(|byte| byte.is_ascii_digit()) => {
                        Value::from(index)
                    }
                    _ => Value::from(key),
                };
                value = ops::get_item(&value, &key)?;
                path = rest;
                if !path.is_empty() && !path.starts_with(['.', '[']) {
                    return Err(fail("only '.' or '[' may follow ']' in a format field"));
                }
            }
        }
        Ok(value)
    }

    fn argument(&mut self, name: &str) -> Result<Value, Error> {
        let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        if !name.is_empty() && !is_number {
            let mut keywords = self.keywords.iter();
            let found = keywords.find(|(key, _)| key.as_str() == Some(name));
            return found
                .map(|(_, value)| value.clone())
                .ok_or_else(|| fail("a format field names no argument"));
        }
        if self.is_numbered.is_some_and(|is_numbered| is_numbered != is_number) {
            return Err(fail("cannot mix automatic and manual field numbering"));
        }
        self.is_numbered = Some(is_number);
        let at = if is_number { name.parse().unwrap_or(usize::MAX) } else { self.next };
        self.next += usize::from(!is_number);
        let found = self.positional.get(at).cloned();
        found.ok_or_else(|| fail("replacement index out of range"))
    }
}

/// Where the field that starts `text` ends.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, VALUE_DEPTH_MAX)?;
    Ok(out)
}

/// What `%` takes its values from.
pub(crate) enum Operand<'a> {
    /// A tuple's items.
    Items(&'a [Value]),
    /// Any other value; a dict serves `%(name)s` too.
    Single(&'a Value),
}

/// `template % operand`.
pub(crate) fn printf(template: &str, operand: &Operand<'_>) -> Result<String, Error> {
    let items = match operand {
        Operand::Items(items) => items,
        Operand::Single(value) => std::slice::from_ref(*value),
    };
    let mapping = match operand {
        Operand::Single(value) => as_dict(value).map(|_| *value),
        Operand::Items(_) => None,
    };
    let mut args = items.iter();
    let mut out = String::new();
    let mut rest = template;
    while let Some((text, tail)) = rest.split_once('%') {
        out.push_str(text);
        rest = tail;
        let mut keyed = None;
        if let Some(tail) = rest.strip_prefix('(') {
            let (key, tail) = tail.split_once(')').ok_or_else(|| fail("incomplete format key"))?;
            let mapping = mapping.ok_or_else(|| fail("format requires a mapping"))?;
            let value = mapping.get_item(&Value::from(key))?;
            if value.is_undefined() {
                return Err(fail("a format key is missing"));
            }
            (keyed, rest) = (Some(value), tail);
        }
        let mut next =
            || args.next().cloned().ok_or_else(|| fail("not enough arguments for format string"));
        let spec = printf_spec(&mut rest, &mut next)?;
        let kind = spec.kind.ok_or_else(|| fail("incomplete format"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match keyed {
            Some(value) => value,
            None => next()?,
        };
        out.push_str(&printf_value(&value, spec, kind)?);
        check_len(&out)?;
    }
    out.push_str(rest);
    // Python lets a single operand that can be indexed go unused.
    let may_stay = match operand {
        Operand::Single(value) => matches!(type_name(value), "dict" | "list" | "range"),
        Operand::Items(_) => false,
    };
    if !may_stay && args.next().is_some() {
        return Err(fail("not all arguments converted during string formatting"));
    }
    Ok(out)
}

/// `[flags][width][.precision][length]type` of a `%` field.
fn printf_spec(
    rest: &mut &str,
    next: &mut dyn FnMut() -> Result<Value, Error>,
) -> Result<Spec, Error> {
    let mut spec = Spec::default();
    let mut is_zero = false;
    while let Some(flag) = rest.chars().next().filter(|c| matches!(c, '#' | '0' | '-' | ' ' | '+'))
    {
        match flag {
            '#' => spec.is_alternate = true,
            '0' => is_zero = true,
            '-' => spec.align = Some('<'),
            '+' => spec.sign = '+',
            _ if spec.sign == '-' => spec.sign = ' ',
            _ => {}
        }
        *rest = rest.get(1..).unwrap_or_default();
    }
    let mut number = |rest: &mut &str| -> Result<Option<i64>, Error> {
        if let Some(tail) = rest.strip_prefix('*') {
            *rest = tail;
            return int_arg(&next()?).map(Some);
        }
        Ok(read_number(rest)?.and_then(|number| i64::try_from(number).ok()))
    };
    let bounded = |number: i64| {
        let number = usize::try_from(number.unsigned_abs()).ok();
        let number = number.filter(|number| *number <= WIDTH_MAX);
        number.ok_or_else(|| fail("a width or precision is too large"))
    };
    if let Some(width) = number(rest)? {
        if width < 0 {
            spec.align = Some('<');
        }
        spec.width = bounded(width)?;
    }
    if let Some(tail) = rest.strip_prefix('.') {
        *rest = tail;
        spec.precision = Some(bounded(number(rest)?.unwrap_or(0).max(0))?);
    }
    *rest = rest.trim_start_matches(['h', 'l', 'L']);
    let mut chars = rest.chars();
    spec.kind = chars.next();
    *rest = chars.as_str();
    if is_zero && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('0'));
    }
    Ok(spec)
}

fn printf_value(value: &Value, mut spec: Spec, kind: char) -> Result<String, Error> {
    let is_number = matches!(type_name(value), "int" | "float" | "bool");
    match kind {
        's' | 'r' => {
            let text = if kind == 's' { to_str(value)? } else { repr(value)? };
            let cut: String = match spec.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text,
            };
            (spec.fill, spec.align) = (' ', spec.align.filter(|align| *align == '<'));
            Ok(spec.pad("", &cut, '>'))
        }
        'c' => {
            let text = match value.as_str() {
                Some(text) if text.chars().count() == 1 => text.to_owned(),
                Some(_) => return Err(fail("%c requires int or char")),
                None => {
                    let c = u32::try_from(int_arg(value)?).ok().and_then(char::from_u32);
                    c.ok_or_else(|| fail("%c arg not in range"))?.to_string()
                }
            };
            (spec.fill, spec.align) = (' ', spec.align.filter(|align| *align == '<'));
            Ok(spec.pad("", &text, '>'))
        }
        'd' | 'i' | 'u' if is_number => {
            let int = match type_name(value) {
                "float" => ops::truncate_float(as_f64(value))
                    .ok_or_else(|| fail("cannot convert float"))?,
                "bool" => i128::from(value.is_true()),
                _ => i128::try_from(value.clone()).map_err(|_| fail("integer out of range"))?,
            };
            printf_int(int, spec, 'd')
        }
        'o' | 'x' | 'X' if matches!(type_name(value), "int" | "bool") => {
            let int = match type_name(value) {
                "bool" => i128::from(value.is_true()),
                _ => i128::try_from(value.clone()).map_err(|_| fail("integer out of range"))?,
            };
            printf_int(int, spec, kind)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' if is_number => {
            spec.kind = Some(kind);
            spec.precision = spec.precision.or(Some(6));
            let value = Value::from(match type_name(value) {
                "bool" => f64::from(u8::from(value.is_true())),
                _ => as_f64(value),
            });
            format_number(&value, &spec)
        }
        _ => Err(fail("a format field does not fit its argument")),
    }
}

/// Integers of `%` take a precision: the least number of digits.
fn printf_int(int: i128, mut spec: Spec, kind: char) -> Result<String, Error> {
    let digits_min = spec.precision.take().unwrap_or(0);
    spec.kind = Some(kind);
    let (prefix, digits) = int_text(int.unsigned_abs(), &spec);
    let zeros = "0".repeat(digits_min.saturating_sub(digits.len()));
    let sign = match (int < 0, spec.sign) {
        (true, _) => "-",
        (false, '-') => "",
        (false, ' ') => " ",
        (false, _) => "+",
    };
    Ok(spec.pad(&format!("{sign}{prefix}"), &format!("{zeros}{digits}"), '>'))
}
