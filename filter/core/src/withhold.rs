//! Answer chunks -> the same without the usage that only the filter asked for.
//!
//! In: the chunks of an event stream in OpenAI's API, cut anywhere. Out: the bytes that the client
//! is to get. With `include_usage` an engine's stream has one event more, whose `choices` are empty
//! and which carries the usage; some also add `"usage":null` to all others. Both are taken out, and
//! every other byte passes.
//!
//! Held back is no more than one line that begins as data does and is not whole yet, up to
//! [`SSE_LINE_BYTES_MAX`], or the extra event until its end is seen. What an engine moves to the
//! extra event goes with it (vLLM's `system_fingerprint`), and engines that write `"usage":null`
//! unasked lose it (SGLang's text completions); clients read an absent member as null. Linear in
//! the answer.

use std::ops::Range;

use crate::answer::SSE_DATA;
use crate::limits::SSE_LINE_BYTES_MAX;
use crate::request::json::{self, Node};

/// Takes the usage out of one answer.
#[derive(Debug, Default)]
pub struct Withholder {
    state: State,
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// In an event's first line, which is held.
    #[default]
    First,
    /// After the extra event's line of so many bytes, which is held until an empty line ends the
    /// event.
    Extra { line_bytes: usize },
    /// Further on in an event that passes.
    Passing { line: Line },
}

/// How far a line that passes has come.
#[derive(Clone, Copy, Debug)]
enum Line {
    Start,
    /// A carriage return, and nothing else.
    Return,
    Inside,
}

/// What is to become of an event's first line.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Pass,
    /// It is the extra event's.
    Withhold,
    /// It passes without these bytes.
    PassWithout(Range<usize>),
}

impl Withholder {
    /// Takes the next chunk; returns what passes by it.
    #[must_use]
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.held.len() + chunk.len());
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            self.state = match self.state {
                State::First => self.first(piece, &mut out),
                State::Extra { line_bytes } => self.after_extra(line_bytes, piece, &mut out),
                State::Passing { line } => {
                    out.extend_from_slice(piece);
                    passing(line, piece)
                }
            };
        }
        out
    }

    /// The answer ended; returns what passes of what was held.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if matches!(self.state, State::First) {
            // The extra event without its end stays behind.
            self.release_line(&mut out);
        }
        out
    }

    fn first(&mut self, piece: &[u8], out: &mut Vec<u8>) -> State {
        self.held.extend_from_slice(piece);
        let may_be_data = self.held.starts_with(SSE_DATA) || SSE_DATA.starts_with(&self.held);
        if may_be_data && self.held.len() <= SSE_LINE_BYTES_MAX {
            return if piece.ends_with(b"\n") { self.release_line(out) } else { State::First };
        }
        let state = passing(Line::Start, &self.held);
        out.append(&mut self.held);
        state
    }

    /// Passes the held line, or what is to pass of it.
    fn release_line(&mut self, out: &mut Vec<u8>) -> State {
        match judge(&self.held) {
            Judgement::Withhold => return State::Extra { line_bytes: self.held.len() },
            Judgement::Pass => {}
            Judgement::PassWithout(range) => drop(self.held.drain(range)),
        }
        out.append(&mut self.held);
        State::Passing { line: Line::Start }
    }

    fn after_extra(&mut self, line_bytes: usize, piece: &[u8], out: &mut Vec<u8>) -> State {
        self.held.extend_from_slice(piece);
        let next = passing(Line::Start, self.held.get(line_bytes..).unwrap_or_default());
        match next {
            State::First => self.held.clear(),
            State::Passing { line: Line::Return } => return State::Extra { line_bytes },
            // An event of several lines is not the one that was asked for.
            State::Passing { .. } | State::Extra { .. } => out.append(&mut self.held),
        }
        next
    }
}

/// The state after `piece`, which ends a line or leaves it open, of an event that passes.
fn passing(line: Line, piece: &[u8]) -> State {
    match (line, piece) {
        (Line::Start, b"\n" | b"\r\n") | (Line::Return, b"\n") => State::First,
        (_, [.., b'\n']) => State::Passing { line: Line::Start },
        (Line::Start, b"\r") => State::Passing { line: Line::Return },
        _ => State::Passing { line: Line::Inside },
    }
}

/// Judges a line by its JSON.
fn judge(line: &[u8]) -> Judgement {
    judge_data(line).unwrap_or(Judgement::Pass)
}

fn judge_data(line: &[u8]) -> Option<Judgement> {
    const KEY: &[u8] = b"\"usage\"";
    let data = line.strip_prefix(SSE_DATA)?;
    if !data.windows(KEY.len()).any(|window| window == KEY) {
        return None;
    }
    let data_at = line.len() - data.len();
    let members = json::members(std::str::from_utf8(data).ok()?).ok()?;
    let mut usages = members.iter().enumerate().filter(|(_, member)| member.key.is("usage"));
    let (at, usage) = usages.next().filter(|_| usages.next().is_none())?;
    match &usage.value {
        Node::Object(_) => {
            let mut choices = members.iter().filter(|member| member.key.is("choices"));
            let is_empty = |node: &Node<'_>| matches!(node, Node::Array(items) if items.is_empty());
            let is_extra = choices.next().is_some_and(|choices| is_empty(&choices.value));
            (is_extra && choices.next().is_none()).then_some(Judgement::Withhold)
        }
        Node::Null => {
            let before = at.checked_sub(1).and_then(|before| members.get(before));
            let range = match (before, members.get(at + 1)) {
                (Some(before), _) => before.value_at.end..usage.value_at.end,
                (None, Some(after)) => usage.key_at..after.key_at,
                (None, None) => usage.key_at..usage.value_at.end,
            };
            Some(Judgement::PassWithout(data_at + range.start..data_at + range.end))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
