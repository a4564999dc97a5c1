//! Binding of call arguments to parameters, as Python binds them.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::value::{dict_entries, fail, type_name};

/// The arguments, one slot a parameter; absent ones are `None`.
///
/// The first `required` parameters must be given. A keyword that is no
/// parameter, a parameter given twice and an argument too many are errors.
pub(crate) fn bind<const N: usize>(
    args: &[Value],
    names: [&str; N],
    required: usize,
) -> Result<[Option<Value>; N], Error> {
    let (positional, keywords) = split_keywords(args)?;
    if positional.len() > N {
        return Err(fail(format!("takes at most {N} arguments, {} were given", positional.len())));
    }
    let mut slots: [Option<Value>; N] = std::array::from_fn(|at| positional.get(at).cloned());
    for (key, value) in keywords {
        let name = key.as_str().unwrap_or_default();
        let slot = names.iter().position(|candidate| *candidate == name);
        match slot.and_then(|at| slots.get_mut(at)) {
            Some(slot @ None) => *slot = Some(value),
            Some(Some(_)) => return Err(fail(format!("argument {name} was given twice"))),
            None => return Err(fail(format!("unknown keyword argument {name}"))),
        }
    }
    if slots.iter().take(required).any(Option::is_none) {
        return Err(fail("a required argument is missing"));
    }
    Ok(slots)
}

/// Keyword arguments: names and values.
pub(crate) type Keywords = Vec<(Value, Value)>;

/// Splits positional arguments from keyword arguments.
pub(crate) fn split_keywords(args: &[Value]) -> Result<(&[Value], Keywords), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => Ok((rest, dict_entries(last)?)),
        _ => Ok((args, Vec::new())),
    }
}

/// An argument that must be a string.
pub(crate) fn str_arg(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| fail(format!("must be str, not {}", type_name(value))))
}

/// An optional argument that must be a string or None.
pub(crate) fn opt_str_arg(value: Option<&Value>) -> Result<Option<&str>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => str_arg(value).map(Some),
    }
}

/// An argument that must be an integer (or a bool, which is one in Python).
pub(crate) fn int_arg(value: &Value) -> Result<i64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => {
            value.as_i64().ok_or_else(|| fail("integer out of range"))
        }
        _ => {
            Err(fail(format!("'{}' object cannot be interpreted as an integer", type_name(value))))
        }
    }
}

/// An optional argument that must be an integer or None.
pub(crate) fn opt_int_arg(value: Option<&Value>) -> Result<Option<i64>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => int_arg(value).map(Some),
    }
}

/// An integer as a number of things: none when negative, and the most there can be when it does not fit.
pub(crate) fn count_of(int: i64) -> usize {
    usize::try_from(int.max(0)).unwrap_or(usize::MAX)
}
