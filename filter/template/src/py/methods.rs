//! Methods of Python's str, dict, list and tuple.
//!
//! In: receiver, method name, arguments. Out: the value, or an error where
//! Python raises. The methods that change a list or dict are forbidden by the
//! sandbox that transformers uses, so they are errors here too.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::args::{bind, count_of, int_arg, opt_int_arg, opt_str_arg, split_keywords, str_arg};
use super::format::str_format;
use super::repr::check_len;
use super::text::{self, Ends};
use crate::value::{
    BoundMethod, DictView, DictViewKind, Generator, PyDict, check_count, dict_entries, fail,
    iterate, text_bytes, type_name,
};

const DICT_METHODS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_MUTATORS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const LIST_METHODS: [&str; 3] = ["copy", "count", "index"];
const LIST_MUTATORS: [&str; 8] =
    ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE_METHODS: [&str; 2] = ["count", "index"];
const STR_METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// What numbers have; no known template asks for it.
const NUMBER_ATTRIBUTES: [&str; 10] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "hex",
    "imag",
    "is_integer",
    "numerator",
    "real",
];
/// Methods of str that are not here. A call is refused at compile time.
const STR_METHODS_REFUSED: [&str; 9] = [
    "casefold",
    "encode",
    "expandtabs",
    "format_map",
    "isidentifier",
    "isprintable",
    "istitle",
    "maketrans",
    "translate",
];

/// Whether a call of this method is refused.
pub(crate) fn is_refused_method(name: &str) -> bool {
    STR_METHODS_REFUSED.contains(&name) || NUMBER_ATTRIBUTES.contains(&name)
}

/// Whether any type has a method of this name.
pub(crate) fn is_method_name(name: &str) -> bool {
    let dict = DICT_METHODS.iter().chain(&DICT_MUTATORS);
    let list = LIST_METHODS.iter().chain(&LIST_MUTATORS);
    dict.chain(list).chain(&STR_METHODS).chain(&NUMBER_ATTRIBUTES).any(|method| *method == name)
}

/// The method `name` of a value, if its type has it; undefined for those that the sandbox forbids.
pub(crate) fn bound_method(value: &Value, name: &str) -> Result<Option<Value>, Error> {
    let (methods, mutators): (&[&'static str], &[&'static str]) = match type_name(value) {
        "dict" => (&DICT_METHODS, &DICT_MUTATORS),
        "list" => (&LIST_METHODS, &LIST_MUTATORS),
        "tuple" => (&TUPLE_METHODS, &[]),
        "str" => (&STR_METHODS, &[]),
        _ => (&[], &[]),
    };
    if mutators.contains(&name) {
        // The sandbox gives an undefined value, which raises when it is called.
        return Ok(Some(Value::UNDEFINED));
    }
    let kind = type_name(value);
    if NUMBER_ATTRIBUTES.contains(&name) && matches!(kind, "int" | "float" | "bool") {
        return match (name, kind) {
            ("real" | "numerator", "int") | ("real", "float") => Ok(Some(value.clone())),
            _ => Err(fail(format!("the attribute {name} of a number is not supported"))),
        };
    }
    let found = methods.iter().find(|method| **method == name);
    Ok(found.map(|name| Value::from_object(BoundMethod { receiver: value.clone(), name })))
}

/// Calls `receiver.method(*args)`.
pub(crate) fn call_method(
    state: &mut State<'_, '_>,
    receiver: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match receiver.kind() {
        ValueKind::String => {
            let text = receiver.as_str().unwrap_or_default();
            let result = str_method(state, text, method, args)?;
            Ok(if receiver.is_safe() { mark_safe(result) } else { result })
        }
        ValueKind::Map if type_name(receiver) == "dict" => dict_method(receiver, method, args),
        ValueKind::Seq | ValueKind::Iterable => list_method(receiver, method, args),
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Methods of a Markup string return Markup strings, and lists of them.
fn mark_safe(value: Value) -> Value {
    let safe = |text: &str| Value::from_safe_string(text.to_owned());
    match (value.as_str(), type_name(&value)) {
        (Some(text), _) => safe(text),
        (None, "list" | "tuple") => {
            let items = iterate(&value).unwrap_or_default().into_iter();
            let items: Vec<Value> =
                items.map(|item| item.as_str().map_or(item.clone(), safe)).collect();
            if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
        }
        _ => value,
    }
}

fn str_method(
    state: &mut State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    Ok(match method {
        "strip" => strip(text, args, Ends::Both)?,
        "lstrip" => strip(text, args, Ends::Left)?,
        "rstrip" => strip(text, args, Ends::Right)?,
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => {
            let [keepends] = bind(args, ["keepends"], 0)?;
            let keepends = keepends.is_some_and(|value| value.is_true());
            let lines = text::splitlines(text, keepends);
            check_count(lines.len())?;
            Value::from(lines.into_iter().map(Value::from).collect::<Vec<_>>())
        }
        "replace" => replace(state, text, args)?,
        "startswith" => affix(text, args, |part, affix| part.starts_with(affix))?,
        "endswith" => affix(text, args, |part, affix| part.ends_with(affix))?,
        "find" => Value::from(find(text, args, false)?),
        "rfind" => Value::from(find(text, args, true)?),
        "index" => position(find(text, args, false)?)?,
        "rindex" => position(find(text, args, true)?)?,
        "count" => {
            let [needle, start, end] = bind(args, ["sub", "start", "end"], 1)?;
            let bounds = (opt_int_arg(start.as_ref())?, opt_int_arg(end.as_ref())?);
            Value::from(text::count(text, str_arg(&needle.unwrap_or_default())?, bounds))
        }
        "join" => join(text, args)?,
        "partition" => partition(text, args, false)?,
        "rpartition" => partition(text, args, true)?,
        "removeprefix" => {
            let [affix] = bind(args, ["prefix"], 1)?;
            let affix = affix.unwrap_or_default();
            Value::from(text.strip_prefix(str_arg(&affix)?).unwrap_or(text))
        }
        "removesuffix" => {
            let [affix] = bind(args, ["suffix"], 1)?;
            let affix = affix.unwrap_or_default();
            Value::from(text.strip_suffix(str_arg(&affix)?).unwrap_or(text))
        }
        "format" => Value::from(str_format(text, args)?),
        "zfill" | "ljust" | "rjust" | "center" => pad(state, text, method, args)?,
        _ => plain_str_method(text, method, args)?,
    })
}

/// The methods without arguments.
fn plain_str_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let value = match method {
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "title" => Value::from(text::title(text)),
        "capitalize" => Value::from(text::capitalize(text)),
        "swapcase" => Value::from(text::swapcase(text)),
        "isascii" => Value::from(text.is_ascii()),
        "isspace" => Value::from(!text.is_empty() && text.chars().all(text::is_space)),
        "islower" => Value::from(
            text.chars().any(char::is_lowercase)
                && !text.chars().any(|c| c.is_uppercase() || text::is_title(c)),
        ),
        "isupper" => Value::from(
            text.chars().any(char::is_uppercase)
                && !text.chars().any(|c| c.is_lowercase() || text::is_title(c)),
        ),
        "isdigit" | "isdecimal" | "isnumeric" => all_of(text, |c| c.is_ascii_digit())?,
        "isalpha" => all_of(text, |c| c.is_ascii_alphabetic())?,
        "isalnum" => all_of(text, |c| c.is_ascii_alphanumeric())?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    bind(args, [], 0).map(|[]| value)
}

/// Whether all characters are of an ASCII class. Beyond ASCII the answer needs Unicode's tables, and
/// no known template asks: an error is better than a guess.
fn all_of(text: &str, class: fn(char) -> bool) -> Result<Value, Error> {
    if text.chars().any(|c| c.is_ascii() && !class(c)) {
        return Ok(Value::from(false));
    }
    if text.is_ascii() {
        return Ok(Value::from(!text.is_empty()));
    }
    Err(fail("character classes beyond ASCII are not supported"))
}

fn strip(text: &str, args: &[Value], ends: Ends) -> Result<Value, Error> {
    let [chars] = bind(args, ["chars"], 0)?;
    Ok(Value::from(text::strip(text, opt_str_arg(chars.as_ref())?, ends)))
}

fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let [sep, maxsplit] = bind(args, ["sep", "maxsplit"], 0)?;
    let maxsplit = maxsplit.as_ref().map_or(Ok(-1), int_arg)?;
    let sep = opt_str_arg(sep.as_ref())?;
    Ok(Value::from(text::split(text, sep, maxsplit, from_right)?))
}

fn replace(state: &State<'_, '_>, text: &str, args: &[Value]) -> Result<Value, Error> {
    let [old, new, count] = bind(args, ["old", "new", "count"], 2)?;
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    let count = count.as_ref().map_or(Ok(-1), int_arg)?;
    replace_checked(state, text, (str_arg(&old)?, str_arg(&new)?), count).map(Value::from)
}

/// Replaces, and pays for the growth before it happens.
pub(crate) fn replace_checked(
    state: &State<'_, '_>,
    text: &str,
    (old, new): (&str, &str),
    count: i64,
) -> Result<String, Error> {
    if new.len() > old.len() {
        let found = text.matches(old).count();
        let found = found.min(usize::try_from(count).unwrap_or(usize::MAX));
        charge_bytes(state, found.saturating_mul(new.len() - old.len()))?;
    }
    Ok(text::replace(text, old, new, count))
}

/// Charges fuel for bytes that are about to be made.
pub(crate) fn charge_bytes(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    match bytes / 64 {
        0 => Ok(()),
        fuel => state.consume_fuel(u64::try_from(fuel).unwrap_or(u64::MAX)),
    }
}

/// Charges fuel for going through the items of a list or dict, and the strings among them.
pub(crate) fn charge_items(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let (items, bytes) = match value.kind() {
        ValueKind::Map => (value.len().unwrap_or(0), 0),
        ValueKind::Seq | ValueKind::Iterable => match value.downcast_object_ref::<Generator>() {
            Some(generator) => generator.weight(),
            None => {
                let bytes =
                    value.try_iter()?.map(|item| text_bytes(&item)).fold(0, usize::saturating_add);
                (value.len().unwrap_or(0), bytes)
            }
        },
        _ => (0, 0),
    };
    match items / 4 + bytes / 64 {
        0 => Ok(()),
        fuel => state.consume_fuel(u64::try_from(fuel).unwrap_or(u64::MAX)),
    }
}

fn affix(text: &str, args: &[Value], test: fn(&str, &str) -> bool) -> Result<Value, Error> {
    let [affixes, start, end] = bind(args, ["prefix", "start", "end"], 1)?;
    let affixes = affixes.unwrap_or_default();
    let start = opt_int_arg(start.as_ref())?;
    let part = text::window(text, start, opt_int_arg(end.as_ref())?);
    let test = |affix: &str| part.is_some_and(|(_, part)| test(part, affix));
    if affixes.is_tuple() {
        for affix in iterate(&affixes)? {
            if test(str_arg(&affix)?) {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    Ok(Value::from(test(str_arg(&affixes)?)))
}

fn find(text: &str, args: &[Value], from_right: bool) -> Result<i64, Error> {
    let [needle, start, end] = bind(args, ["sub", "start", "end"], 1)?;
    let bounds = (opt_int_arg(start.as_ref())?, opt_int_arg(end.as_ref())?);
    Ok(text::find(text, str_arg(&needle.unwrap_or_default())?, bounds, from_right))
}

fn position(found: i64) -> Result<Value, Error> {
    if found < 0 {
        return Err(fail("substring not found"));
    }
    Ok(Value::from(found))
}

fn join(separator: &str, args: &[Value]) -> Result<Value, Error> {
    let [items] = bind(args, ["iterable"], 1)?;
    let mut out = String::new();
    for (at, item) in iterate(&items.unwrap_or_default())?.iter().enumerate() {
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(str_arg(item)?);
        check_len(&out)?;
    }
    Ok(Value::from(out))
}

fn partition(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let [sep] = bind(args, ["sep"], 1)?;
    let sep = sep.unwrap_or_default();
    let sep = str_arg(&sep)?;
    if sep.is_empty() {
        return Err(fail("empty separator"));
    }
    let (found, absent) = if from_right {
        (text.rsplit_once(sep), ["", "", text])
    } else {
        (text.split_once(sep), [text, "", ""])
    };
    let parts = found.map_or(absent, |(head, tail)| [head, sep, tail]);
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn pad(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind(args, ["width", "fillchar"], 1)?;
    let width = count_of(int_arg(&width.unwrap_or_default())?);
    let fill = match fill {
        Some(fill) => {
            let mut chars = str_arg(&fill)?.chars();
            match (chars.next(), chars.next()) {
                (Some(fill), None) if method != "zfill" => fill,
                _ => return Err(fail("the fill character must be one character")),
            }
        }
        None if method == "zfill" => '0',
        None => ' ',
    };
    let missing = width.saturating_sub(text.chars().count());
    charge_bytes(state, missing.saturating_mul(fill.len_utf8()))?;
    let fill = |count: usize| fill.to_string().repeat(count);
    Ok(Value::from(match method {
        "ljust" => format!("{text}{}", fill(missing)),
        "rjust" => format!("{}{text}", fill(missing)),
        "zfill" => match text.strip_prefix(['+', '-']) {
            Some(digits) => {
                format!("{}{}{digits}", text.get(..1).unwrap_or_default(), fill(missing))
            }
            None => format!("{}{text}", fill(missing)),
        },
        _ => {
            // CPython puts the odd one left when both the padding and the width are odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
    }))
}

fn dict_method(receiver: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let view = |items: Vec<Value>, kind| Value::from_object(DictView { items, kind });
    match method {
        "get" => {
            let (positional, keywords) = split_keywords(args)?;
            let (key, default) = match (positional, keywords.is_empty()) {
                ([key], true) => (key, Value::from(())),
                ([key, default], true) => (key, default.clone()),
                _ => return Err(fail("get takes one or two arguments")),
            };
            let found = receiver.as_object().and_then(|dict| dict.get_value(key));
            Ok(found.unwrap_or(default))
        }
        "items" => {
            let [] = bind(args, [], 0)?;
            let entries = dict_entries(receiver)?.into_iter();
            let pairs = entries.map(|(key, value)| Value::from(Tuple::from([key, value])));
            Ok(view(pairs.collect(), DictViewKind::Items))
        }
        "keys" => {
            let [] = bind(args, [], 0)?;
            let entries = dict_entries(receiver)?.into_iter();
            Ok(view(entries.map(|(key, _)| key).collect(), DictViewKind::Keys))
        }
        "values" => {
            let [] = bind(args, [], 0)?;
            let entries = dict_entries(receiver)?.into_iter();
            Ok(view(entries.map(|(_, value)| value).collect(), DictViewKind::Values))
        }
        "copy" => {
            let [] = bind(args, [], 0)?;
            Ok(Value::from_object(PyDict::new(dict_entries(receiver)?)))
        }
        method if DICT_MUTATORS.contains(&method) => {
            Err(fail(format!("access to dict.{method} is unsafe")))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn list_method(receiver: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if !matches!(type_name(receiver), "list" | "tuple") {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    match method {
        "count" => {
            let [wanted] = bind(args, ["value"], 1)?;
            let wanted = wanted.unwrap_or_default();
            let items = iterate(receiver)?;
            Ok(Value::from(items.iter().filter(|item| **item == wanted).count()))
        }
        "index" => {
            let [wanted] = bind(args, ["value"], 1)?;
            let wanted = wanted.unwrap_or_default();
            let items = iterate(receiver)?;
            let found = items.iter().position(|item| *item == wanted);
            found.map(Value::from).ok_or_else(|| fail("value is not in list"))
        }
        "copy" if type_name(receiver) == "list" => {
            let [] = bind(args, [], 0)?;
            Ok(Value::from(iterate(receiver)?))
        }
        method if LIST_MUTATORS.contains(&method) => {
            Err(fail(format!("access to list.{method} is unsafe")))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
