//! Operations that may see a message's text, and what each may do with it.
//!
//! While a shape is learned, every text is a mark (see [`super::marks`]). Each
//! filter, test, function and method goes through here, and so do comparisons,
//! subscripts, attributes and loops, which the transpiler's strict output
//! writes with the filters of [`GUARDS`]. An operation passes when its result,
//! apart from the marks in it, does not depend on what the marks stand for;
//! a question with two answers becomes a condition of the shape (see
//! [`super::conditions`]); otherwise the render is marked as observed, and fails. The default is to
//! fail: a rule below has to admit what passes, and gives its reason.
//!
//! Cost: each operation walks its arguments; the walks of one render are
//! bounded by [`SHAPE_SCAN_MAX`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, State, Value};

use super::conditions::{Condition, Question};
use super::marks::{is_marked, single, stripped};
use crate::limits::{SHAPE_CONDITIONS_MAX, SHAPE_SCAN_MAX};
use crate::py::args::split_keywords;
use crate::py::filters::Native;
use crate::py::methods;
use crate::py::text::Ends;
use crate::value::{
    BoundMethod, DictView, Generator, Range, as_dict, dict_entries, fail, iterate, type_name,
};

/// Filters that only strict templates use. Each gives its argument back, or fails.
pub(crate) const GUARDS: [&str; 4] = ["__plain", "__text", "__base", "__addend"];

/// What happened in one render with marks.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    is_observed: AtomicBool,
    scanned: AtomicUsize,
    asked: Mutex<Asked>,
}

/// The texts that the marks stand for, and what was asked of them.
#[derive(Debug, Default)]
struct Asked {
    texts: Vec<String>,
    conditions: Vec<Condition>,
}

impl Probe {
    /// Starts a render with marks for these texts.
    pub(super) fn start(&self, texts: &[&str]) {
        self.is_observed.store(false, Ordering::Relaxed);
        self.scanned.store(0, Ordering::Relaxed);
        if let Ok(mut asked) = self.asked.lock() {
            asked.texts = texts.iter().map(|text| (*text).to_owned()).collect();
            asked.conditions.clear();
        }
    }

    /// Ends a render: the conditions under which it holds, or `None` when an operation asked for more.
    pub(super) fn finish(&self) -> Option<Vec<Condition>> {
        let asked = std::mem::take(&mut *self.asked.lock().ok()?);
        (!self.is_observed()).then_some(asked.conditions)
    }

    /// The answer of the text that a mark stands for, which becomes a condition; `None` when the string
    /// is not one mark, or too much was asked.
    fn ask(&self, mark: &Value, question: Question, other: &Value) -> Option<bool> {
        if !is_plain_text(mark) || !is_plain_text(other) || is_marked_text(other) {
            return None;
        }
        let (at, stripped) = single(mark.as_str()?)?;
        let other = other.as_str()?;
        let mut asked = self.asked.lock().ok()?;
        let answer = Condition::ask(question, asked.texts.get(at)?, stripped, other);
        let condition = Condition { at, stripped, question, other: other.into(), answer };
        if !asked.conditions.contains(&condition) {
            if asked.conditions.len() >= SHAPE_CONDITIONS_MAX {
                return None;
            }
            asked.conditions.push(condition);
        }
        Some(answer)
    }

    /// Whether an operation asked for what a mark stands for.
    fn is_observed(&self) -> bool {
        self.is_observed.load(Ordering::Relaxed)
    }

    fn observed(&self) -> Error {
        self.is_observed.store(true, Ordering::Relaxed);
        fail("an operation depends on a message's text")
    }

    fn demand(&self, holds: bool) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(self.observed()) }
    }

    /// Fails where a value is printed that is no string but holds a mark.
    pub(crate) fn check_print(&self, value: &Value) -> Result<(), Error> {
        self.demand(value.as_str().is_some() || self.is_clean(value))
    }

    /// Whether no mark is in a value, at any depth. What cannot be looked through is not clean.
    fn is_clean(&self, value: &Value) -> bool {
        let all = |items: &[Value]| items.iter().all(|item| self.is_clean(item));
        let bytes = value.as_str().map_or(0, str::len);
        if self.scanned.fetch_add(1 + bytes / 64, Ordering::Relaxed) > SHAPE_SCAN_MAX {
            return false;
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number => true,
            ValueKind::String => !is_marked_text(value),
            ValueKind::Map if as_dict(value).is_some() || value.is_kwargs() => dict_entries(value)
                .is_ok_and(|entries| {
                    entries.iter().all(|(key, item)| self.is_clean(key) && self.is_clean(item))
                }),
            ValueKind::Seq | ValueKind::Iterable => {
                if value.downcast_object_ref::<Range>().is_some() {
                    true
                } else if let Some(generator) = value.downcast_object_ref::<Generator>() {
                    all(&generator.items_left())
                } else if let Some(view) = value.downcast_object_ref::<DictView>() {
                    all(&view.items)
                } else {
                    iterate(value).is_ok_and(|items| all(&items))
                }
            }
            _ => match value.downcast_object_ref::<BoundMethod>() {
                Some(method) => self.is_clean(&method.receiver),
                None => false,
            },
        }
    }

    fn are_clean<'a>(&self, values: impl IntoIterator<Item = &'a Value>) -> bool {
        values.into_iter().all(|value| self.is_clean(value))
    }

    /// Whether a result of unmarked arguments is free of marks: a number can be formatted as a character.
    fn is_clean_result(&self, value: &Value) -> bool {
        let is_walked = matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
        );
        !is_walked || self.is_clean(value)
    }
}

/// Whether a value is a string with a mark in it.
fn is_marked_text(value: &Value) -> bool {
    value.as_str().is_some_and(is_marked)
}

/// A string whose text no operation escapes.
fn is_plain_text(value: &Value) -> bool {
    value.as_str().is_some() && !value.is_safe()
}

/// What an operation's arguments may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Anything: only the kind of the value counts, or whether it is empty, which the key holds.
    Free,
    /// No marks at all.
    Clean,
    /// The first is no marked string, but may be a container of them, whose items are not looked into.
    Base,
    /// `selectattr` and `rejectattr`: [`Rule::Base`], and the attribute leads into no marked string.
    Attribute,
    /// `map`: the same for an attribute; a filter comes through here itself.
    Map,
    /// [`Rule::Base`], and no item is a marked string, since each is unpacked.
    Unpacked,
    /// Strings, which are joined; what is printed first must be clean.
    Joined,
    /// The first is a list of strings to join, all others are clean.
    JoinedItems,
    /// Two strings or two lists; a Markup string escapes its neighbour.
    Sum,
    /// An item and a container that is asked for it; of a dict, only the keys are.
    Member,
    /// A list of pairs whose first items become keys.
    Pairs,
    /// Keyword arguments may be anything, since their names are the template's own.
    Keywords,
    /// A string, marked or not, or something clean.
    Text,
    /// No marked string, and nothing that a walk would use up.
    Addend,
    /// `trim` and its kin: a mark notes that it was stripped. Of characters that are named, whether they
    /// are there becomes a condition.
    Strip(Ends),
    /// A question to one text, whose answer becomes a condition.
    Ask(Question),
    /// A format that asks for the day at most, which the key holds.
    Day,
}

fn filter_rule(name: &str) -> Rule {
    match name {
        "__nest" | "__store" | "__pass" | "__passed" | "d" | "default" => Rule::Free,
        "__attr" | "__base" | "__item" | "__iter" | "__slice" | "__unpack" => Rule::Base,
        "count" | "first" | "items" | "last" | "length" | "list" | "reverse" => Rule::Base,
        // The test is one that comes through here itself.
        "reject" | "select" => Rule::Base,
        "rejectattr" | "selectattr" => Rule::Attribute,
        "map" => Rule::Map,
        "__iter_tuples" => Rule::Unpacked,
        "__cat" => Rule::Joined,
        "join" => Rule::JoinedItems,
        "__add" => Rule::Sum,
        "__in" => Rule::Member,
        "__dict" => Rule::Pairs,
        "__text" | "string" => Rule::Text,
        "__addend" => Rule::Addend,
        "trim" => Rule::Strip(Ends::Both),
        _ => Rule::Clean,
    }
}

fn test_rule(name: &str) -> Rule {
    match name {
        "boolean" | "callable" | "defined" | "escaped" | "false" | "float" | "integer"
        | "iterable" | "mapping" | "none" | "number" | "sequence" | "string" | "true"
        | "undefined" => Rule::Free,
        _ => Rule::Clean,
    }
}

fn function_rule(name: &str) -> Rule {
    match name {
        "dict" | "namespace" => Rule::Keywords,
        "strftime_now" => Rule::Day,
        _ => Rule::Clean,
    }
}

impl Rule {
    fn admits(self, args: &[Value], probe: &Probe) -> bool {
        let first = args.first().unwrap_or(&Value::UNDEFINED);
        let rest = || args.iter().skip(1);
        let is_base = || !is_marked_text(first) && probe.are_clean(rest());
        let is_joinable =
            |items: &[Value]| items.iter().all(|item| is_plain_text(item) || probe.is_clean(item));
        match self {
            Self::Free => true,
            Self::Clean | Self::Strip(_) | Self::Ask(_) => probe.are_clean(args),
            Self::Base => is_base(),
            Self::Attribute => is_base() && is_step(first, args.get(1)) || probe.are_clean(args),
            Self::Map => is_base() && is_map_admitted(first, args) || probe.are_clean(args),
            Self::Unpacked => is_base() && !items_of(first).iter().any(is_marked_text),
            Self::Joined => is_joinable(args),
            Self::JoinedItems => {
                let is_simple = args.len() < 3 && !args.iter().any(Value::is_kwargs);
                is_base() && is_simple && is_joinable(&items_of(first)) || probe.are_clean(args)
            }
            Self::Sum => match args {
                [left, right] if is_plain_text(left) && is_plain_text(right) => true,
                [left, right] if is_sequence(left) && is_sequence(right) => true,
                _ => probe.are_clean(args),
            },
            Self::Member => match args {
                [item, container] if as_dict(container).is_some() => probe.is_clean(item),
                _ => probe.are_clean(args),
            },
            Self::Pairs => items_of(first)
                .iter()
                .all(|pair| pair.get_item_by_index(0).is_ok_and(|key| probe.is_clean(&key))),
            Self::Keywords => match split_keywords(args) {
                Ok((positional, _)) => probe.are_clean(positional),
                Err(_) => false,
            },
            Self::Text => is_plain_text(first) || probe.is_clean(first),
            Self::Addend => !is_marked_text(first) && type_name(first) != "generator",
            Self::Day => matches!(args, [format] if format.as_str().is_some_and(is_of_the_day)),
        }
    }
}

fn is_sequence(value: &Value) -> bool {
    matches!(type_name(value), "list" | "tuple")
}

/// The items of a list, tuple, view or generator, which is not used up.
fn items_of(value: &Value) -> Vec<Value> {
    match value.downcast_object_ref::<Generator>() {
        Some(generator) => generator.items_left(),
        None if value.as_str().is_some() => Vec::new(),
        None => iterate(value).unwrap_or_default(),
    }
}

/// Whether an attribute of each item is one step, and no step into a marked string.
fn is_step(items: &Value, attribute: Option<&Value>) -> bool {
    let is_one = attribute.and_then(Value::as_str).is_some_and(|name| !name.contains('.'));
    is_one && !items_of(items).iter().any(is_marked_text)
}

fn is_map_admitted(items: &Value, args: &[Value]) -> bool {
    match split_keywords(args) {
        Ok((positional, _)) if positional.len() > 1 => true,
        Ok((_, keywords)) => {
            let mut keywords = keywords.iter();
            let attribute = keywords.find(|(key, _)| key.as_str() == Some("attribute"));
            is_step(items, attribute.map(|(_, name)| name))
        }
        Err(_) => false,
    }
}

/// Whether a format of strftime asks for no more than the day.
fn is_of_the_day(format: &str) -> bool {
    let mut rest = format;
    while let Some((_, code)) = rest.split_once('%') {
        let code = code.strip_prefix(['-', '_', '0', '^', '#']).unwrap_or(code);
        let Some(after) = code.strip_prefix(|c| "aAbBhdejmyYCDFxuwUWVGgnt%".contains(c)) else {
            return false;
        };
        rest = after;
    }
    !is_marked(format)
}

/// Applies an operation under its rule.
fn guarded(
    probe: &Probe,
    rule: Rule,
    args: &[Value],
    apply: impl FnOnce() -> Result<Value, Error>,
) -> Result<Value, Error> {
    if let (Rule::Strip(ends), [value]) = (rule, args)
        && is_plain_text(value)
        && is_marked_text(value)
    {
        let text = value.as_str().and_then(|text| stripped(text, ends));
        return text.map(Value::from).ok_or_else(|| probe.observed());
    }
    if let Some(answered) = answered(probe, rule, args) {
        return Ok(answered);
    }
    probe.demand(rule.admits(args, probe))?;
    let result = apply()?;
    let makes_marks = matches!(rule, Rule::Clean | Rule::Strip(_) | Rule::Ask(_))
        && !probe.is_clean_result(&result);
    probe.demand(!makes_marks)?;
    Ok(result)
}

/// The result of an operation that asks one text a question.
fn answered(probe: &Probe, rule: Rule, args: &[Value]) -> Option<Value> {
    match (rule, args) {
        (Rule::Ask(question), [text, other]) => probe.ask(text, question, other).map(Value::from),
        (Rule::Member, [other, text]) => {
            probe.ask(text, Question::Contains, other).map(Value::from)
        }
        (Rule::Strip(ends), [text, chars]) => {
            let is_kept = probe.ask(text, Question::Keeps(ends), chars)?;
            is_kept.then(|| text.clone())
        }
        _ => None,
    }
}

/// What a name stands for in a template.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    /// A filter, or a helper that is one.
    Filter,
    /// A test.
    Test,
    /// A function.
    Function,
}

/// A filter, test or function under its rule.
pub(crate) fn guard(
    probe: Arc<Probe>,
    operation: Operation,
    name: &'static str,
    function: Native,
    is_charged: bool,
) -> impl Fn(&mut State<'_, '_>, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static
{
    let rule = match operation {
        Operation::Filter => filter_rule(name),
        Operation::Test => test_rule(name),
        Operation::Function => function_rule(name),
    };
    move |state, args| {
        let args = args.into_values();
        guarded(&probe, rule, &args, || {
            if let Some(first) = args.first().filter(|_| is_charged) {
                methods::charge_items(state, first)?;
            }
            function(state, &args)
        })
    }
}

/// What the filters of [`GUARDS`] do: nothing, once their rule holds.
pub(crate) fn unchanged(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(args.first().cloned().unwrap_or_default())
}

/// `receiver.method(*args)` under its rule.
pub(crate) fn call_method(
    probe: &Probe,
    state: &mut State<'_, '_>,
    receiver: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let rule = match (type_name(receiver), method) {
        ("str", "strip") => Rule::Strip(Ends::Both),
        ("str", "lstrip") => Rule::Strip(Ends::Left),
        ("str", "rstrip") => Rule::Strip(Ends::Right),
        ("str", "startswith") => Rule::Ask(Question::StartsWith),
        ("str", "endswith") => Rule::Ask(Question::EndsWith),
        ("dict", "copy" | "get" | "items" | "keys" | "values") | ("list", "copy") => Rule::Base,
        // No type of Python: the engine looks for a function among its entries, whose arguments are clean.
        ("object", _) => Rule::Base,
        _ => Rule::Clean,
    };
    let mut all = vec![receiver.clone()];
    all.extend_from_slice(args);
    guarded(probe, rule, &all, || methods::call_method(state, receiver, method, args))
}
