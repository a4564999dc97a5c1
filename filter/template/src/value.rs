//! The request's JSON as template values, and the value kinds that Python has and minijinja lacks.
//!
//! [`to_value`] copies each string once. All dicts are [`PyDict`]s, also those
//! that templates make, so that they can be told from minijinja's own maps
//! (namespaces, the loop variable). Results of `map`, `select` and the like are
//! [`Generator`]s: always true, without a length, and empty on the second pass.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::limits::{ITEMS_MAX, VALUE_DEPTH_MAX};

/// From this size on a dict has a hash index; below, a scan is faster and smaller.
const INDEX_FROM_ENTRIES: usize = 12;

/// The error of any operation that raises in Python.
pub(crate) fn fail(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// A dict: the entries in order, immutable.
pub(crate) struct PyDict {
    entries: Vec<(Value, Value)>,
    /// Positions of the entries by their string keys in order, when there are many.
    index: Option<Vec<usize>>,
    /// Levels of containers, this one included.
    depth: usize,
}

impl PyDict {
    /// Keys must be distinct.
    pub(crate) fn new(entries: Vec<(Value, Value)>) -> Self {
        let has_index = entries.len() >= INDEX_FROM_ENTRIES
            && entries.iter().all(|(key, _)| key.as_str().is_some());
        let index = has_index.then(|| {
            let mut order: Vec<usize> = (0..entries.len()).collect();
            order.sort_unstable_by_key(|at| entries.get(*at).and_then(|(key, _)| key.as_str()));
            order
        });
        let parts = entries.iter().flat_map(|(key, value)| [key, value]);
        let depth =
            parts.map(|part| depth_of(part, VALUE_DEPTH_MAX)).max().unwrap_or(0).saturating_add(1);
        Self { entries, index, depth }
    }

    /// A dict of `(key, value)` sequences; later keys win, at the first one's place.
    pub(crate) fn from_pairs(pairs: Vec<Value>) -> Result<Value, Error> {
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
        let mut seen: HashMap<Value, usize> = HashMap::new();
        for pair in pairs {
            let [key, value]: [Value; 2] =
                iterate(&pair)?.try_into().map_err(|_| fail("a dict is made of pairs"))?;
            check_hashable(&key)?;
            match seen.get(&key).and_then(|at| entries.get_mut(*at)) {
                Some((_, slot)) => *slot = value,
                None => {
                    seen.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
        }
        Ok(Value::from_object(Self::new(entries)))
    }

    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// Levels of containers, this one included.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    fn key_at(&self, at: usize) -> &str {
        let entry = self.entries.get(at);
        entry.and_then(|(key, _)| key.as_str()).unwrap_or_default()
    }

    fn lookup(&self, key: &str) -> Option<Value> {
        let at = match &self.index {
            Some(index) => {
                let found = index.binary_search_by(|at| self.key_at(*at).cmp(key));
                *index.get(found.ok()?)?
            }
            None => {
                let mut keys = self.entries.iter();
                keys.position(|(candidate, _)| candidate.as_str() == Some(key))?
            }
        };
        self.entries.get(at).map(|(_, value)| value.clone())
    }
}

impl fmt::Debug for PyDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(key, value)| (key, value));
        f.debug_map().entries(entries).finish()
    }
}

impl Object for PyDict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if let Some(key) = key.as_str() {
            return self.lookup(key);
        }
        let mut entries = self.entries.iter();
        let (_, value) = entries.find(|(candidate, _)| candidate == key)?;
        Some(value.clone())
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.lookup(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.entries.iter().map(|(key, _)| key.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// Fails for the types that Python cannot hash.
pub(crate) fn check_hashable(key: &Value) -> Result<(), Error> {
    match type_name(key) {
        name @ ("dict" | "list") => Err(fail(format!("unhashable type: '{name}'"))),
        _ => Ok(()),
    }
}

/// The dict behind a value.
pub(crate) fn as_dict(value: &Value) -> Option<&PyDict> {
    value.downcast_object_ref()
}

/// Levels of containers in a value, at most `limit` and one. A container that could hold itself
/// (a namespace) counts as endless.
pub(crate) fn depth_of(value: &Value, limit: usize) -> usize {
    match value.kind() {
        ValueKind::Map => as_dict(value).map_or(usize::MAX, PyDict::depth),
        ValueKind::Seq | ValueKind::Iterable => {
            let Some(limit) = limit.checked_sub(1) else {
                return 1;
            };
            let items = match type_name(value) {
                "list" | "tuple" => value.try_iter().ok(),
                _ => None,
            };
            let depths = items.into_iter().flatten().map(|item| depth_of(&item, limit));
            depths.max().unwrap_or(0).saturating_add(1)
        }
        _ => 0,
    }
}

/// Fails for values nested too deep.
///
/// Values are compared, printed and dropped recursively, so the depth is bounded where it grows.
pub(crate) fn check_depth(value: &Value) -> Result<(), Error> {
    if depth_of(value, VALUE_DEPTH_MAX) > VALUE_DEPTH_MAX {
        return Err(fail("values nested too deep, or a namespace within another value"));
    }
    Ok(())
}

/// A method that was looked up but not called.
#[derive(Debug)]
pub(crate) struct BoundMethod {
    pub(crate) receiver: Value,
    pub(crate) name: &'static str,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(
        self: &Arc<Self>,
        state: &mut minijinja::State<'_, '_>,
        args: &[Value],
    ) -> Result<Value, Error> {
        self.receiver.call_method(state, self.name, args)
    }
}

/// An iterator of Python: passes once, is always true, has no length.
#[derive(Debug)]
pub(crate) struct Generator {
    items: Mutex<Option<Vec<Value>>>,
}

impl Generator {
    pub(crate) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self { items: Mutex::new(Some(items)) })
    }

    /// The items left, which stay.
    pub(crate) fn items_left(&self) -> Vec<Value> {
        match self.items.lock() {
            Ok(items) => items.clone().unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// The number of items left, and the bytes of those that are strings.
    pub(crate) fn weight(&self) -> (usize, usize) {
        match self.items.lock() {
            Ok(items) => items.as_ref().map_or((0, 0), |items| {
                (items.len(), items.iter().map(text_bytes).fold(0, usize::saturating_add))
            }),
            Err(_) => (0, 0),
        }
    }

    /// A generator whose items were computed at once. What went wrong shows when it is iterated, as in
    /// Python, where nothing is computed before.
    pub(crate) fn lazy(items: Result<Vec<Value>, Error>) -> Result<Value, Error> {
        match items {
            Ok(items) => Ok(Self::value(items)),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(error),
            Err(error) => Ok(Self::value(vec![Value::from(error)])),
        }
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// Subscripts are undefined; minijinja would iterate to find them.
    fn get_value(self: &Arc<Self>, _key: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let items = match self.items.lock() {
            Ok(mut items) => items.take(),
            Err(_) => None,
        };
        Enumerator::Iter(Box::new(items.unwrap_or_default().into_iter()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        let items = self.items.lock().ok()?;
        Some(items.as_ref().map_or(0, Vec::len))
    }
}

/// `dict.keys()`, `dict.values()` and `dict.items()`: sized, iterable again and again, not indexable.
#[derive(Debug)]
pub(crate) struct DictView {
    pub(crate) items: Vec<Value>,
    pub(crate) kind: DictViewKind,
}

/// Which view it is, for its `repr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DictViewKind {
    Keys,
    Values,
    Items,
}

impl DictViewKind {
    /// The name that `repr` prints.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Keys => "dict_keys",
            Self::Values => "dict_values",
            Self::Items => "dict_items",
        }
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// Subscripts are undefined; minijinja would iterate to find them.
    fn get_value(self: &Arc<Self>, _key: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.items.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// `range(...)`: a sequence that is never laid out in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: i64,
    pub(crate) stop: i64,
    pub(crate) step: i64,
    pub(crate) len: usize,
}

impl Range {
    /// `range(...)[start:stop:step]`, with the bounds that `slice.indices` gives.
    pub(crate) fn sliced(self, start: i64, stop: i64, step: i64, len: usize) -> Option<Self> {
        let at = |position: i64| self.start.checked_add(position.checked_mul(self.step)?);
        Some(Self { start: at(start)?, stop: at(stop)?, step: self.step.checked_mul(step)?, len })
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = key.as_usize().filter(|at| *at < self.len)?;
        let offset = i64::try_from(at).ok()?.checked_mul(self.step)?;
        Some(Value::from(self.start.checked_add(offset)?))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// Converts JSON, to at most `depth` further levels. `None` when it is nested deeper.
pub(crate) fn to_value(json: &serde_json::Value, depth: usize) -> Option<Value> {
    use serde_json::Value as Json;
    let depth = depth.checked_sub(1)?;
    Some(match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => number_to_value(number),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => {
            let items = items.iter().map(|item| to_value(item, depth));
            Value::from(items.collect::<Option<Vec<_>>>()?)
        }
        Json::Object(entries) => {
            let entries = entries.iter();
            let entries = entries
                .map(|(key, item)| Some((Value::from(key.as_str()), to_value(item, depth)?)));
            Value::from_object(PyDict::new(entries.collect::<Option<Vec<_>>>()?))
        }
    })
}

fn number_to_value(number: &serde_json::Number) -> Value {
    if let Some(value) = number.as_i64() {
        Value::from(value)
    } else if let Some(value) = number.as_u64() {
        Value::from(value)
    } else {
        Value::from(number.as_f64().unwrap_or(f64::NAN))
    }
}

/// The bytes of a value that is a string.
pub(crate) fn text_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// Fails for more items than one operation may make of a string.
pub(crate) fn check_count(items: usize) -> Result<(), Error> {
    if items > ITEMS_MAX {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    Ok(())
}

/// Python's name of a value's type, for error messages and tests.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Map if as_dict(value).is_some() => "dict",
        ValueKind::Seq if value.downcast_object_ref::<Range>().is_some() => "range",
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Iterable => {
            if value.downcast_object_ref::<Generator>().is_some() {
                "generator"
            } else if let Some(view) = value.downcast_object_ref::<DictView>() {
                view.kind.type_name()
            } else {
                // Slices, sums and products of lists, which minijinja keeps lazy.
                "list"
            }
        }
        _ => "object",
    }
}

/// The entries of a mapping, in order.
pub(crate) fn dict_entries(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if let Some(dict) = as_dict(value) {
        return Ok(dict.entries.clone());
    }
    match value.as_object().filter(|_| value.is_kwargs()) {
        Some(object) => Ok(object.try_iter_pairs().into_iter().flatten().collect()),
        None => Err(fail("can only get item pairs from a mapping")),
    }
}

/// Iterates as Python's `iter()`: strings by character, mappings by key, undefined as nothing.
pub(crate) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let items: Vec<Value> = text.chars().take(ITEMS_MAX + 1).map(Value::from).collect();
            check_count(items.len())?;
            Ok(items)
        }
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.checked().collect(),
        ValueKind::Map if as_dict(value).is_some() => value.try_iter()?.checked().collect(),
        _ => Err(fail(format!("'{}' object is not iterable", type_name(value)))),
    }
}
