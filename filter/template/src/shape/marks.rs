//! Marks: what stands for a message's text while a shape is learned.
//!
//! A mark is a string between two noncharacters: a letter that says which of
//! the text's ends were stripped, the text's number, and filler. Operations
//! that keep it whole keep the text whole; [`parse`] reads the rendered prompt
//! back as pieces.

use crate::py::text::{Ends, strip};

/// Begins a mark. Both are noncharacters; where a request or template holds one, nothing is learned.
const OPEN: char = '\u{fdd0}';
/// Ends a mark.
const CLOSE: char = '\u{fdd1}';

/// Where the letter stands in a mark: behind [`OPEN`], which takes three bytes.
const LETTER_AT: usize = 3;
/// Digits of the number: 64 messages have at most two, a third for room.
const DIGITS: usize = 3;

/// White space only: what stripping leaves of it is empty, so that it must not be stripped.
const BLANK: &str = "s";
/// The text as it is.
const WHOLE: &str = "w";
const LEFT: &str = "l";
const RIGHT: &str = "r";
const BOTH: &str = "b";

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// What the template writes itself.
    Literal(Box<str>),
    /// A message's text.
    Content {
        /// Its number among the request's texts.
        at: usize,
        /// Which ends are stripped of white space.
        stripped: Option<Ends>,
    },
}

/// The mark of text number `at`, with `filler_bytes` of filler.
pub(super) fn mark(at: usize, is_blank: bool, filler_bytes: usize) -> String {
    let letter = if is_blank { BLANK } else { WHOLE };
    format!("{OPEN}{letter}{at:0DIGITS$}{}{CLOSE}", "x".repeat(filler_bytes))
}

/// Whether a mark, or a part of one, is in the text.
pub(crate) fn is_marked(text: &str) -> bool {
    text.contains([OPEN, CLOSE])
}

/// The same for bytes that are UTF-8 in part.
pub(super) fn is_marked_bytes(bytes: &[u8]) -> bool {
    bytes.windows(3).any(|window| matches!(window, [0xef, 0xb7, 0x90 | 0x91]))
}

/// Which text a string stands for, if it is one mark and nothing else: its number, and the ends that
/// are stripped.
pub(super) fn single(text: &str) -> Option<(usize, Option<Ends>)> {
    let inner = text.strip_prefix(OPEN)?.strip_suffix(CLOSE)?;
    let (letter, rest) = inner.split_at_checked(1)?;
    if is_marked(rest) {
        return None;
    }
    Some((rest.get(..DIGITS)?.parse().ok()?, ends_of(letter)?))
}

/// The stripped ends that a letter stands for.
fn ends_of(letter: &str) -> Option<Option<Ends>> {
    match letter {
        WHOLE | BLANK => Some(None),
        LEFT => Some(Some(Ends::Left)),
        RIGHT => Some(Some(Ends::Right)),
        BOTH => Some(Some(Ends::Both)),
        _ => None,
    }
}

/// A marked text without the white space at its ends; `None` where that depends on a text of white space only.
pub(super) fn stripped(text: &str, ends: Ends) -> Option<String> {
    let mut out = strip(text, None, ends).to_owned();
    if ends != Ends::Right && out.starts_with(OPEN) {
        strip_mark(&mut out, 0, Ends::Left)?;
    }
    if ends != Ends::Left && out.ends_with(CLOSE) {
        let at = out.rfind(OPEN)?;
        strip_mark(&mut out, at, Ends::Right)?;
    }
    Some(out)
}

/// Notes in the mark at byte `at` that one end is stripped.
fn strip_mark(text: &mut String, at: usize, end: Ends) -> Option<()> {
    let letter_at = at + LETTER_AT..at + LETTER_AT + 1;
    let letter = match (text.get(letter_at.clone())?, end) {
        (WHOLE | LEFT, Ends::Left) => LEFT,
        (WHOLE | RIGHT, Ends::Right) => RIGHT,
        (LEFT | RIGHT | BOTH, _) => BOTH,
        _ => return None,
    };
    text.replace_range(letter_at, letter);
    Some(())
}

/// The pieces of a rendered prompt, whose marks have no filler; `None` when a mark is broken.
pub(super) fn parse(rendered: &str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = rendered;
    while let Some((literal, marked)) = rest.split_once(OPEN) {
        push_literal(&mut pieces, literal)?;
        let (inner, after) = marked.split_once(CLOSE)?;
        let (letter, number) = inner.split_at_checked(1)?;
        let stripped = ends_of(letter)?;
        if number.len() != DIGITS {
            return None;
        }
        pieces.push(Piece::Content { at: number.parse().ok()?, stripped });
        rest = after;
    }
    push_literal(&mut pieces, rest)?;
    Some(pieces)
}

fn push_literal(pieces: &mut Vec<Piece>, literal: &str) -> Option<()> {
    if is_marked(literal) {
        return None;
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal.into()));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_read_back_as_pieces() {
        let (whole, blank) = (mark(0, false, 0), mark(12, true, 0));
        let left = stripped(&format!(" {whole} "), Ends::Left).unwrap();
        let both = stripped(&left, Ends::Both).unwrap();
        let pieces = parse(&format!("a{whole}{blank}{left}b{both}")).unwrap();
        let content = |at, stripped| Piece::Content { at, stripped };
        let expected = [
            Piece::Literal("a".into()),
            content(0, None),
            content(12, None),
            content(0, Some(Ends::Left)),
            Piece::Literal(" b".into()),
            content(0, Some(Ends::Both)),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn white_space_only_is_never_stripped() {
        let (text, blank) = (mark(0, false, 5), mark(1, true, 5));
        assert_eq!(stripped(&blank, Ends::Both), None);
        assert_eq!(stripped(&format!("{blank}{text}"), Ends::Left), None);
        assert_eq!(stripped(&format!("{text}{blank}"), Ends::Right), None);
        assert!(stripped(&format!("{text}{blank}{text}"), Ends::Both).is_some());
        assert!(stripped(&format!("a{blank}"), Ends::Left).is_some());
    }

    #[test]
    fn one_mark_stands_for_one_text() {
        let text = mark(7, false, 3);
        assert_eq!(single(&text), Some((7, None)));
        assert_eq!(single(&stripped(&text, Ends::Right).unwrap()), Some((7, Some(Ends::Right))));
        assert_eq!(single(&mark(1, true, 0)), Some((1, None)));
        for other in
            [format!("{text}{text}"), format!("{text} "), format!("a{text}"), String::new()]
        {
            assert_eq!(single(&other), None, "{other:?}");
        }
    }

    #[test]
    fn broken_marks_are_not_read() {
        for broken in ["\u{fdd0}", "a\u{fdd1}", "\u{fdd0}w01\u{fdd1}", "\u{fdd0}q001\u{fdd1}"] {
            assert_eq!(parse(broken), None, "{broken:?}");
        }
        assert!(is_marked_bytes("a\u{fdd0}".as_bytes()) && is_marked_bytes("\u{fdd1}".as_bytes()));
    }
}
