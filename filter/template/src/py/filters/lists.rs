//! The filters of lists, dicts and iterables.

use std::cmp::Ordering;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::{is_true, like};
use crate::py::args::{bind, count_of, int_arg, split_keywords, str_arg};
use crate::py::methods::charge_bytes;
use crate::py::ops;
use crate::py::repr::{check_len, to_str, write_str};
use crate::value::{
    Generator, check_depth, check_hashable, dict_entries, fail, iterate, text_bytes, type_name,
};

pub(super) fn batch(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, size, fill] = bind(args, ["value", "linecount", "fill_with"], 2)?;
    let size = count_of(int_arg(&size.unwrap_or_default())?).max(1);
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

pub(super) fn dictsort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn first(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn groupby(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn items(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Ok(Generator::value(Vec::new()));
    }
    let pair = |(key, value)| Value::from(Tuple::from([key, value]));
    Generator::lazy(dict_entries(&value).map(|entries| entries.into_iter().map(pair).collect()))
}

pub(super) fn join(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn last(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["seq"], 1)?;
    let value = value.unwrap_or_default();
    match (value.len().and_then(|len| len.checked_sub(1)), type_name(&value)) {
        (_, "generator") => Err(fail("object is not reversible")),
        (Some(at), "list" | "tuple") => value.get_item_by_index(at),
        _ => Ok(iterate(&value)?.pop().unwrap_or_default()),
    }
}

pub(super) fn list(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"], 1)?;
    Ok(Value::from(iterate(&value.unwrap_or_default())?))
}

pub(super) fn map(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn max(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(args, Ordering::Greater)
}

pub(super) fn min(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn select(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, false, true))
}

pub(super) fn reject(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, false, false))
}

pub(super) fn selectattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, true, true))
}

pub(super) fn rejectattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Generator::lazy(pick(state, args, true, false))
}

pub(super) fn reverse(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn slice(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, slices, fill] = bind(args, ["value", "slices", "fill_with"], 2)?;
    let items = match iterate(&value.unwrap_or_default()) {
        Ok(items) => items,
        Err(error) => return Generator::lazy(Err(error)),
    };
    let slices = count_of(int_arg(&slices.unwrap_or_default())?);
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

pub(super) fn sort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn sum(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, attribute, start] = bind(args, ["iterable", "attribute", "start"], 1)?;
    let path = ops::AttributePath::new(attribute.as_ref(), None)?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in iterate(&value.unwrap_or_default())? {
        total = ops::add(&total, &path.get(&item)?)?;
    }
    Ok(total)
}

pub(super) fn unique(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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
