//! Questions about a text that a template asks before it passes the text on.
//!
//! Templates ask whether an answer holds `</think>`, or whether a user's text
//! begins like a tool's response. Such a question has one of two answers, and a
//! shape that was learned with one holds for all texts with the same one. So
//! the answer that the teaching text gives becomes a condition of the shape.
//!
//! Cost: each condition of a shape searches its text at each lookup, which the
//! engine would do as well.

use crate::py::text::{Ends, strip};

/// What is asked of a text; the other string is the template's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// `text.startswith(other)`.
    StartsWith,
    /// `text.endswith(other)`.
    EndsWith,
    /// `other in text`.
    Contains,
    /// Whether stripping the other's characters at these ends leaves the text as it is.
    Keeps(Ends),
}

/// A question about one text, and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    /// The text's number.
    pub(super) at: usize,
    /// The ends of the text that were stripped of white space before.
    pub(super) stripped: Option<Ends>,
    pub(super) question: Question,
    pub(super) other: Box<str>,
    pub(super) answer: bool,
}

impl Condition {
    /// Asks a text with its ends stripped so.
    pub(super) fn ask(question: Question, text: &str, stripped: Option<Ends>, other: &str) -> bool {
        let text = stripped.map_or(text, |ends| strip(text, None, ends));
        match question {
            Question::StartsWith => text.starts_with(other),
            Question::EndsWith => text.ends_with(other),
            Question::Contains => text.contains(other),
            Question::Keeps(ends) => strip(text, Some(other), ends).len() == text.len(),
        }
    }

    /// Whether texts give the same answer.
    pub(super) fn holds(&self, texts: &[&str]) -> bool {
        texts.get(self.at).is_some_and(|text| {
            Self::ask(self.question, text, self.stripped, &self.other) == self.answer
        })
    }
}
