//! The functions that every chat template sees.

use minijinja::value::{Object, ObjectRepr, Tuple};
use minijinja::{Error, State, Value};
use std::sync::Arc;

use super::args::{bind, int_arg, split_keywords, str_arg};
use super::filters::Native;
use super::repr::to_str;
use crate::time::CivilTime;
use crate::value::{PyDict, Range, as_dict, check_depth, dict_entries, fail, iterate};

/// The key of the time of the request in the root context; no template can name it.
pub(crate) const NOW_KEY: &str = "\u{1}now";

/// All functions by name.
pub(crate) const GLOBALS: [(&str, Native); 5] = [
    ("dict", dict),
    ("namespace", namespace),
    ("raise_exception", raise_exception),
    ("range", range),
    ("strftime_now", strftime_now),
];

/// Jinja2's sandbox allows no longer range.
const RANGE_ITEMS_MAX: i128 = 100_000;

/// The source of an error that `raise_exception` made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

/// Carries the time through minijinja's context.
#[derive(Debug)]
pub(crate) struct Now(pub(crate) CivilTime);

impl Object for Now {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

fn dict(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = PyDict::from_pairs(dict_pairs(args)?)?;
    check_depth(&value)?;
    Ok(value)
}

/// The arguments of `dict()` and `namespace()` as pairs.
fn dict_pairs(args: &[Value]) -> Result<Vec<Value>, Error> {
    let pair = |(key, value)| Value::from(Tuple::from([key, value]));
    let (positional, keywords) = split_keywords(args)?;
    let mut pairs: Vec<Value> = match positional {
        [] => Vec::new(),
        [source] if as_dict(source).is_some() => {
            dict_entries(source)?.into_iter().map(pair).collect()
        }
        [source] => iterate(source)?,
        _ => return Err(fail("dict() takes at most one positional argument")),
    };
    pairs.extend(keywords.into_iter().map(pair));
    Ok(pairs)
}

fn namespace(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let initial = PyDict::from_pairs(dict_pairs(args)?)?;
    check_depth(&initial)?;
    let Some(dict) = as_dict(&initial) else {
        return Err(fail("a namespace holds names"));
    };
    let names = dict.entries().iter().map(|(key, _)| key.as_str());
    if names.into_iter().any(|name| name.is_none_or(|name| name.starts_with('_'))) {
        return Err(fail("a namespace cannot hold this name"));
    }
    minijinja::functions::namespace(Some(initial.into()))
}

fn raise_exception(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [message] = bind(args, ["message"], 1)?;
    let message = to_str(&message.unwrap_or_default())?;
    Err(fail("raise_exception").with_source(Raised(message)))
}

fn range(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (start, stop, step) = match args {
        [stop] => (0, int_arg(stop)?, 1),
        [start, stop] => (int_arg(start)?, int_arg(stop)?, 1),
        [start, stop, step] => (int_arg(start)?, int_arg(stop)?, int_arg(step)?),
        _ => return Err(fail("range() takes one to three integers")),
    };
    let (from, to, by) = (i128::from(start), i128::from(stop), i128::from(step));
    let len = match step {
        0 => return Err(fail("range() step must not be zero")),
        1.. => (to - from + by - 1).div_euclid(by),
        _ => (from - to - by - 1).div_euclid(-by),
    };
    let len = len.max(0);
    if len > RANGE_ITEMS_MAX {
        return Err(fail("range too big"));
    }
    let len = usize::try_from(len).unwrap_or(0);
    Ok(Value::from_object(Range { start, stop, step, len }))
}

fn strftime_now(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [format] = bind(args, ["format"], 1)?;
    let now = state.lookup(NOW_KEY);
    let now = now.as_ref().and_then(|value| value.downcast_object_ref::<Now>());
    let Some(Now(now)) = now else {
        return Err(fail("no time was given"));
    };
    let format = format.unwrap_or_default();
    let text = now.strftime(str_arg(&format)?);
    text.map(Value::from).ok_or_else(|| fail("unsupported strftime code"))
}
