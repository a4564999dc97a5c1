//! Python's `str`: white space, case, searching, splitting.
//!
//! Positions are counted in characters, as Python counts them; byte offsets
//! stay inside this file.

use minijinja::{Error, Value};

use crate::value::{check_count, fail};

/// White space as `str.strip()` and `str.split()` see it: Unicode's, and the four separators of ASCII.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Which ends to strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Both,
    Left,
    Right,
}

/// `strip`, `lstrip` and `rstrip`; without `chars`, white space goes.
pub(crate) fn strip<'a>(text: &'a str, chars: Option<&str>, ends: Ends) -> &'a str {
    let matches = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let mut rest = text;
    if ends != Ends::Right {
        rest = rest.trim_start_matches(matches);
    }
    if ends != Ends::Left {
        rest = rest.trim_end_matches(matches);
    }
    rest
}

/// `str.split` and `str.rsplit`; `sep: None` splits at runs of white space.
pub(crate) fn split(
    text: &str,
    sep: Option<&str>,
    maxsplit: i64,
    from_right: bool,
) -> Result<Vec<Value>, Error> {
    let limit = usize::try_from(maxsplit).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match (sep, from_right) {
        (Some(""), _) => return Err(fail("empty separator")),
        (Some(sep), false) => text.splitn(limit.saturating_add(1), sep).collect(),
        (Some(sep), true) => text.rsplitn(limit.saturating_add(1), sep).collect(),
        (None, false) => split_space(text, limit),
        (None, true) => rsplit_space(text, limit),
    };
    check_count(parts.len())?;
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_space(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if parts.len() >= limit {
            parts.push(rest);
            break;
        }
        match rest.split_once(is_space) {
            Some((word, tail)) => {
                parts.push(word);
                rest = tail.trim_start_matches(is_space);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

/// The parts from right to left.
fn rsplit_space(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if parts.len() >= limit {
            parts.push(rest);
            break;
        }
        match rest.rsplit_once(is_space) {
            Some((head, word)) => {
                parts.push(word);
                rest = head.trim_end_matches(is_space);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

/// `str.splitlines`: all of Unicode's line boundaries.
pub(crate) fn splitlines(text: &str, keepends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let (line, tail) = rest.split_at(at);
        let end_bytes = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(1, char::len_utf8)
        };
        let kept = if keepends { at + end_bytes } else { line.len() };
        lines.push(rest.get(..kept).unwrap_or(line));
        rest = rest.get(at + end_bytes..).unwrap_or_default();
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `str.replace`: the first `count` occurrences, all when negative. An empty `old` is found between characters.
pub(crate) fn replace(text: &str, old: &str, new: &str, count: i64) -> String {
    match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    }
}

/// The part of `text` from character `start` to character `end`, with the offset of its first byte;
/// `None` when `start` lies past the end.
pub(crate) fn window(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    if start.is_none() && end.is_none() {
        return Some((0, text));
    }
    let len = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let clamp = |at: i64| if at < 0 { (at.saturating_add(len)).max(0) } else { at };
    let start = clamp(start.unwrap_or(0));
    let end = clamp(end.unwrap_or(len)).min(len);
    if start > len || start > end {
        return None;
    }
    let from = byte_offset(text, start);
    let to = byte_offset(text, end);
    Some((from, text.get(from..to)?))
}

/// Byte offset of character `at`, the length when past the end.
fn byte_offset(text: &str, at: i64) -> usize {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    text.char_indices().nth(at).map_or(text.len(), |(offset, _)| offset)
}

/// `str.find` and `str.rfind`: position in characters, -1 when absent.
pub(crate) fn find(
    text: &str,
    needle: &str,
    bounds: (Option<i64>, Option<i64>),
    from_right: bool,
) -> i64 {
    let Some((offset, part)) = window(text, bounds.0, bounds.1) else {
        return -1;
    };
    let found = if from_right { part.rfind(needle) } else { part.find(needle) };
    let found = found.and_then(|at| text.get(..offset + at));
    found.map_or(-1, |before| i64::try_from(before.chars().count()).unwrap_or(i64::MAX))
}

/// `str.count` of a needle: occurrences that do not overlap.
pub(crate) fn count(text: &str, needle: &str, bounds: (Option<i64>, Option<i64>)) -> usize {
    match window(text, bounds.0, bounds.1) {
        Some((_, part)) => part.matches(needle).count(),
        None => 0,
    }
}

/// `str.capitalize`: the first character in title case, the rest in lower case.
pub(crate) fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, (c, lower)) in with_lower(text).into_iter().enumerate() {
        if at == 0 {
            push_title(&mut out, c);
        } else {
            out.push_str(&lower);
        }
    }
    out
}

/// Each character with its lower case in its place: a capital sigma at the end of a word becomes ς.
fn with_lower(text: &str) -> Vec<(char, String)> {
    // Only the whole text tells where words end, so its lower case is dealt out to the characters.
    let whole = text.to_lowercase();
    let mut lower = whole.chars();
    let chars = text.chars();
    chars.map(|c| (c, lower.by_ref().take(c.to_lowercase().count()).collect())).collect()
}

/// `str.title`: each run of cased characters starts in title case.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_cased = false;
    for (c, lower) in with_lower(text) {
        if after_cased {
            out.push_str(&lower);
        } else {
            push_title(&mut out, c);
        }
        after_cased = is_cased(c);
    }
    out
}

/// `str.swapcase`.
pub(crate) fn swapcase(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (c, lower) in with_lower(text) {
        if c.is_uppercase() {
            out.push_str(&lower);
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

/// Whether a character has case.
pub(crate) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// Whether a character is of category Lt.
pub(crate) fn is_title(c: char) -> bool {
    matches!(
        c,
        '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}' | '\u{1f88}'..='\u{1f8f}'
            | '\u{1f98}'..='\u{1f9f}' | '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}'
    )
}

/// Appends a character in title case (Unicode's SpecialCasing and Titlecase_Mapping).
fn push_title(out: &mut String, c: char) {
    let single = match c {
        '\u{1c4}'..='\u{1c6}' => '\u{1c5}',
        '\u{1c7}'..='\u{1c9}' => '\u{1c8}',
        '\u{1ca}'..='\u{1cc}' => '\u{1cb}',
        '\u{1f1}'..='\u{1f3}' => '\u{1f2}',
        // Georgian letters have capitals, but no title case.
        '\u{10d0}'..='\u{10fa}' | '\u{10fd}'..='\u{10ff}' => c,
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => {
            char::from_u32(u32::from(c) + 8).unwrap_or(c)
        }
        '\u{1fb3}' => '\u{1fbc}',
        '\u{1fc3}' => '\u{1fcc}',
        '\u{1ff3}' => '\u{1ffc}',
        c if is_title(c) => c,
        _ => {
            push_title_expanded(out, c);
            return;
        }
    };
    out.push(single);
}

/// The general case: the capital, and where it expands to several letters, only the first stays capital.
fn push_title_expanded(out: &mut String, c: char) {
    let mut upper = c.to_uppercase();
    if let Some(first) = upper.next() {
        out.push(first);
    }
    for rest in upper {
        match rest {
            // The iota that Greek capitals write beside themselves stays beneath in title case.
            '\u{399}' if matches!(c, '\u{1fb2}'..='\u{1ff7}') => out.push('\u{345}'),
            rest if c == '\u{149}' || matches!(c, '\u{1f0}'..='\u{390}') => out.push(rest),
            rest => out.extend(rest.to_lowercase()),
        }
    }
}
