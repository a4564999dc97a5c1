//! Metrics text -> samples.
//!
//! In: the body of a metrics endpoint, in Prometheus' text format 0.0.4 or OpenMetrics 1.0. Out: its
//! samples, one a line, with names and labels borrowed from the text. Families (`# HELP`, `# TYPE`)
//! are not needed and passed over, as is every line that is not a sample. Linear; allocates nothing.
//!
//! A sample is read in two steps: the iterator yields its name, and [`Sample::read`] the rest, so that
//! names of no interest cost a search for the line's end.
//!
//! A line counts once its line feed is there. What follows the last one may be half a number, in a
//! body that was cut.

use crate::limits::LABEL_BYTES_MAX;

/// The samples of `text`, in order.
#[derive(Clone, Debug)]
pub struct Samples<'a> {
    rest: &'a [u8],
}

impl<'a> Samples<'a> {
    /// The samples of `text`.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Sample<'a>;

    fn next(&mut self) -> Option<Sample<'a>> {
        loop {
            let end = self.rest.iter().position(|&byte| byte == b'\n')?;
            let (line, rest) = self.rest.split_at_checked(end)?;
            self.rest = rest.get(1..)?;
            if let Some(sample) = Sample::at_start_of(line) {
                return Some(sample);
            }
        }
    }
}

/// One line that begins with a metric's name. Whether the rest is sound shows when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// The metric's name: ASCII letters, digits, `_` and `:`.
    pub name: &'a [u8],
    /// Labels, value and what follows.
    rest: &'a [u8],
}

impl<'a> Sample<'a> {
    /// `None` for comments, empty lines and whatever else starts with no name.
    fn at_start_of(line: &'a [u8]) -> Option<Self> {
        let line = skip_blanks(line.strip_suffix(b"\r").unwrap_or(line));
        let (name, rest) = split_name(line)?;
        Some(Self { name, rest })
    }

    /// Labels and value. `None` when the line is malformed; then it says nothing.
    #[must_use]
    pub fn read(&self) -> Option<Reading<'a>> {
        let rest = skip_blanks(self.rest);
        let (labels, rest) = match rest.strip_prefix(b"{") {
            Some(list) => split_labels(list)?,
            // A value must not touch the name.
            None if rest.len() < self.rest.len() => (Labels::default(), rest),
            None => return None,
        };
        let (value, rest) = split_word(skip_blanks(rest));
        let value = number(value)?;
        let rest = skip_blanks(rest);
        let (time, after_time) = split_word(rest);
        let rest = if number(time).is_some() { skip_blanks(after_time) } else { rest };
        // An exemplar stands behind `#`.
        (rest.is_empty() || rest.starts_with(b"#")).then_some(Reading { labels, value })
    }
}

/// What a sample says.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value; may be NaN or infinite.
    pub value: f64,
}

/// The labels of one sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels<'a> {
    /// What is between the braces, known to be well-formed; the closing one may follow.
    list: &'a [u8],
}

impl<'a> Labels<'a> {
    /// The value of the label `name` as it is written, without quotes and with its escapes. `None`
    /// when there is no such label, or its value is longer than [`LABEL_BYTES_MAX`].
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut rest = self.list;
        while let Some(label) = split_label(rest) {
            if label.name == name {
                return Some(label.value).filter(|value| value.len() <= LABEL_BYTES_MAX);
            }
            rest = label.rest;
        }
        None
    }
}

struct Label<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// What follows it, and the comma.
    rest: &'a [u8],
}

/// The labels of a list that starts behind its brace, and what follows the closing one.
fn split_labels(list: &[u8]) -> Option<(Labels<'_>, &[u8])> {
    let mut rest = list;
    loop {
        if let Some(after) = skip_blanks(rest).strip_prefix(b"}") {
            return Some((Labels { list }, after));
        }
        rest = split_label(rest)?.rest;
    }
}

/// The first label of a list. `None` at the list's end, and where it is malformed.
fn split_label(list: &[u8]) -> Option<Label<'_>> {
    let (name, rest) = split_name(skip_blanks(list))?;
    let quoted = skip_blanks(skip_blanks(rest).strip_prefix(b"=")?).strip_prefix(b"\"")?;
    let (value, rest) = quoted.split_at_checked(closing_quote(quoted)?)?;
    let rest = skip_blanks(rest.strip_prefix(b"\"")?);
    let rest = match rest.first()? {
        b',' => rest.get(1..)?,
        b'}' => rest,
        _ => return None,
    };
    Some(Label { name, value, rest })
}

/// Where the quote is that no backslash escapes.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    text.iter().position(|&byte| {
        let closes = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        closes
    })
}

fn split_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    let end = text.iter().position(|byte| !is_name(byte)).unwrap_or(text.len());
    let starts = text.first().is_some_and(|first| is_name(first) && !first.is_ascii_digit());
    text.split_at_checked(end).filter(|_| starts)
}

/// All before the next blank, and from there on.
fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| is_blank(*byte)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, b""))
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// The format's own blanks; line feeds are gone.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// A number as the format has them: decimal, scientific, `NaN`, `Inf` with or without a sign.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
