//! Cuts a template into tokens, as Jinja2's lexer does under `trim_blocks` and `lstrip_blocks`.
//!
//! In: source. Out: tokens with their lines. White space around tags, comments
//! and raw blocks is resolved here: text tokens hold what will be printed.
//! Line ends are normalized to `\n`, and one at the end of the source is dropped.

use super::TranspileError;
use crate::py::text::is_space;

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) kind: TokenKind,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind {
    Text(String),
    BlockBegin,
    BlockEnd,
    PrintBegin,
    PrintEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

/// Operators, longest first.
const OPERATORS: [&str; 28] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";", "!", "&",
];

/// Which tag a piece of text ends at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Block,
    Print,
    Comment,
}

struct Lexer<'a> {
    /// What is not read yet.
    rest: &'a str,
    line: usize,
    /// Whether the last thing read ended with a line end; true at the start.
    at_line_start: bool,
    tokens: Vec<Token>,
}

/// Tokens of a whole template; the last one is [`TokenKind::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, TranspileError> {
    let normalized = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = normalized.strip_suffix('\n').unwrap_or(&normalized);
    let mut lexer = Lexer { rest: source, line: 1, at_line_start: true, tokens: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.text_and_tag()?;
    }
    lexer.push(TokenKind::End);
    Ok(lexer.tokens)
}

impl<'a> Lexer<'a> {
    fn push(&mut self, kind: TokenKind) {
        self.tokens.push(Token { line: self.line, kind });
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(TokenKind::Text(text.to_owned()));
        }
    }

    /// Consumes `bytes` bytes, which must end at a character; gives them.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.rest = rest;
        self.line += taken.matches('\n').count();
        if let Some(last) = taken.chars().next_back() {
            self.at_line_start = last == '\n';
        }
        taken
    }

    fn take_spaces(&mut self) {
        let trimmed = self.rest.trim_start_matches(is_space);
        self.take(self.rest.len() - trimmed.len());
    }

    fn invalid(&self, reason: impl Into<String>) -> TranspileError {
        TranspileError::invalid(self.line, reason)
    }

    /// Reads text up to the next tag, and the tag.
    fn text_and_tag(&mut self) -> Result<(), TranspileError> {
        let found = self.rest.match_indices('{').find_map(|(at, _)| {
            let tail = self.rest.get(at + 1..)?;
            let tag = match tail.chars().next()? {
                '%' => Tag::Block,
                '{' => Tag::Print,
                '#' => Tag::Comment,
                _ => return None,
            };
            Some((at, tag))
        });
        let Some((at, tag)) = found else {
            let text = self.take(self.rest.len());
            self.push_text(text);
            return Ok(());
        };
        let starts_line = self.at_line_start;
        let text_line = self.line;
        let text = self.take(at);
        self.take(2);
        let sign = self.take_sign();
        let text = strip_before_tag(text, tag, sign, starts_line);
        if !text.is_empty() {
            self.tokens.push(Token { line: text_line, kind: TokenKind::Text(text.to_owned()) });
        }
        match tag {
            Tag::Comment => self.comment(),
            Tag::Print => {
                self.push(TokenKind::PrintBegin);
                self.code(Tag::Print)
            }
            Tag::Block => match self.raw_begin() {
                Some(()) => self.raw(),
                None => {
                    self.push(TokenKind::BlockBegin);
                    self.code(Tag::Block)
                }
            },
        }
    }

    fn take_sign(&mut self) -> Option<char> {
        let sign = self.rest.chars().next().filter(|c| matches!(c, '-' | '+'))?;
        self.take(1);
        Some(sign)
    }

    /// Consumes the end of a tag (after its sign) and the white space that goes with it.
    fn close(&mut self, sign: Option<char>, trims_line_end: bool) {
        self.take(2);
        if sign == Some('-') {
            self.take_spaces();
        } else if sign.is_none() && trims_line_end && self.rest.starts_with('\n') {
            self.take(1);
        }
    }

    fn comment(&mut self) -> Result<(), TranspileError> {
        let Some(at) = self.rest.find("#}") else {
            // Jinja2 looks for the end only when there is something left to look at.
            if self.rest.is_empty() {
                return Ok(());
            }
            return Err(self.invalid("a comment is not closed"));
        };
        let body = self.take(at);
        let sign = body.chars().next_back().filter(|c| matches!(c, '-' | '+'));
        self.close(sign, true);
        Ok(())
    }

    /// Consumes the rest of `{% raw %}`, if that is what follows `{%`.
    fn raw_begin(&mut self) -> Option<()> {
        let after = self.rest.trim_start_matches(is_space).strip_prefix("raw")?;
        let after = after.trim_start_matches(is_space);
        let (after, trims) = match after.strip_prefix("-%}") {
            Some(after) => (after, true),
            None => (after.strip_prefix("%}")?, false),
        };
        self.take(self.rest.len() - after.len());
        if trims {
            self.take_spaces();
        }
        Some(())
    }

    fn raw(&mut self) -> Result<(), TranspileError> {
        let starts_line = self.at_line_start;
        let mut from = 0;
        while let Some(found) = self.rest.get(from..).and_then(|tail| tail.find("{%")) {
            let at = from + found;
            from = at + 2;
            let tail = self.rest.get(from..).unwrap_or_default();
            let sign = tail.chars().next().filter(|c| matches!(c, '-' | '+'));
            let tail = tail.get(usize::from(sign.is_some())..).unwrap_or_default();
            let Some(tail) = tail.trim_start_matches(is_space).strip_prefix("endraw") else {
                continue;
            };
            let tail = tail.trim_start_matches(is_space);
            let end_sign = tail.chars().next().filter(|c| matches!(c, '-' | '+'));
            let tail = tail.get(usize::from(end_sign.is_some())..).unwrap_or_default();
            if !tail.starts_with("%}") {
                continue;
            }
            let tag_bytes = self.rest.len() - tail.len() - at;
            let text = self.take(at);
            let text = strip_before_tag(text, Tag::Block, sign, starts_line);
            self.push_text(text);
            self.take(tag_bytes);
            self.close(end_sign, true);
            return Ok(());
        }
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.invalid("a raw block is not closed"))
    }

    /// Reads the tokens of a tag up to its end.
    fn code(&mut self, tag: Tag) -> Result<(), TranspileError> {
        let mut open: Vec<char> = Vec::new();
        loop {
            if open.is_empty() && self.end_of_code(tag) {
                return Ok(());
            }
            let Some(first) = self.rest.chars().next() else {
                return Err(self.invalid("a tag is not closed"));
            };
            if is_space(first) {
                self.take_spaces();
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                self.name()?;
            } else if matches!(first, '"' | '\'') {
                self.string(first)?;
            } else {
                self.operator(&mut open)?;
            }
        }
    }

    fn end_of_code(&mut self, tag: Tag) -> bool {
        let sign = self.rest.chars().next().filter(|c| matches!(c, '-' | '+'));
        let tail = self.rest.get(usize::from(sign.is_some())..).unwrap_or_default();
        let (end, kind) = match tag {
            Tag::Block => ("%}", TokenKind::BlockEnd),
            _ => ("}}", TokenKind::PrintEnd),
        };
        if !tail.starts_with(end) || (tag == Tag::Print && sign == Some('+')) {
            return false;
        }
        self.push(kind);
        self.take(usize::from(sign.is_some()));
        self.close(sign, tag == Tag::Block);
        true
    }

    fn name(&mut self) -> Result<(), TranspileError> {
        let is_part = |c: char| c == '_' || c.is_alphanumeric();
        let after = self.rest.trim_start_matches(is_part);
        let name = self.take(self.rest.len() - after.len());
        if !name.is_ascii() {
            return Err(TranspileError::refused(self.line, format!("the name {name}")));
        }
        self.push(TokenKind::Name(name.to_owned()));
        Ok(())
    }

    fn operator(&mut self, open: &mut Vec<char>) -> Result<(), TranspileError> {
        let found = OPERATORS.iter().find(|op| self.rest.starts_with(**op));
        let Some(op) = found.filter(|op| !matches!(**op, "!" | "&")) else {
            let c = self.rest.chars().next().unwrap_or(' ');
            return Err(self.invalid(format!("unexpected character {c:?}")));
        };
        match *op {
            "(" => open.push(')'),
            "[" => open.push(']'),
            "{" => open.push('}'),
            ")" | "]" | "}" if open.pop().is_none_or(|wanted| !op.starts_with(wanted)) => {
                return Err(self.invalid(format!("unexpected {op}")));
            }
            _ => {}
        }
        self.push(TokenKind::Op(op));
        self.take(op.len());
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), TranspileError> {
        let mut is_escaped = false;
        let end = self.rest.char_indices().skip(1).find(|(_, c)| {
            let ends = *c == quote && !is_escaped;
            is_escaped = *c == '\\' && !is_escaped;
            ends
        });
        let Some((end, _)) = end else {
            return Err(self.invalid("a string is not closed"));
        };
        let line = self.line;
        let quoted = self.take(end + 1);
        let body = quoted.get(1..end).unwrap_or_default();
        let kind = TokenKind::Str(unescape(body, line)?);
        self.tokens.push(Token { line, kind });
        Ok(())
    }

    /// A float where one matches, else an integer: the order in which Jinja2 tries.
    fn number(&mut self) -> Result<(), TranspileError> {
        let after_dot = matches!(self.tokens.last(), Some(Token { kind: TokenKind::Op("."), .. }));
        let float_bytes = if after_dot { None } else { float_len(self.rest) };
        if let Some(bytes) = float_bytes {
            let text = self.take(bytes).replace('_', "");
            let value = text.parse().map_err(|_| self.invalid("bad float"))?;
            self.push(TokenKind::Float(value));
            return Ok(());
        }
        let bytes = integer_len(self.rest);
        let text = self.take(bytes).replace('_', "").to_ascii_lowercase();
        let radix = match text.get(..2) {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        let digits = if radix == 10 { Some(text.as_str()) } else { text.get(2..) };
        let value = i128::from_str_radix(digits.unwrap_or_default(), radix);
        let value = value.map_err(|_| TranspileError::refused(self.line, "a huge integer"))?;
        self.push(TokenKind::Int(value));
        Ok(())
    }
}

/// The text before a tag, less the white space that the tag takes away.
fn strip_before_tag(text: &str, tag: Tag, sign: Option<char>, starts_line: bool) -> &str {
    if sign == Some('-') {
        return text.trim_end_matches(is_space);
    }
    if sign == Some('+') || tag == Tag::Print {
        return text;
    }
    let line_at = text.rfind('\n').map_or(0, |at| at + 1);
    let (before, indent) = text.split_at_checked(line_at).unwrap_or((text, ""));
    if (line_at > 0 || starts_line) && !indent.is_empty() && indent.chars().all(is_space) {
        return before;
    }
    text
}

/// Bytes of a run of digits with single underscores between them.
fn digits_len(text: &str, is_digit: fn(char) -> bool) -> usize {
    let mut len = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if is_digit(c) {
            len = at + 1;
        } else if c != '_' || len != at || !chars.peek().is_some_and(|(_, next)| is_digit(*next)) {
            break;
        }
    }
    len
}

/// Bytes of the float at the start of `text`.
fn float_len(text: &str) -> Option<usize> {
    let is_digit = |c: char| c.is_ascii_digit();
    let whole = digits_len(text, is_digit);
    let tail = text.get(whole..)?;
    let fraction = match tail.strip_prefix('.') {
        Some(digits) => match digits_len(digits, is_digit) {
            0 => 0,
            len => len + 1,
        },
        None => 0,
    };
    let tail = tail.get(fraction..)?;
    let exponent = match tail.strip_prefix(['e', 'E']) {
        Some(power) => {
            let digits = power.strip_prefix(['+', '-']).unwrap_or(power);
            match digits_len(digits, is_digit) {
                0 => 0,
                len => 1 + power.len() - digits.len() + len,
            }
        }
        None => 0,
    };
    (fraction + exponent > 0).then_some(whole + fraction + exponent)
}

/// Bytes of the integer at the start of `text`, which is a digit.
fn integer_len(text: &str) -> usize {
    let lower = text.get(..2).unwrap_or_default().to_ascii_lowercase();
    let is_digit: fn(char) -> bool = match lower.as_str() {
        "0x" => |c| c.is_ascii_hexdigit(),
        "0o" => |c| matches!(c, '0'..='7'),
        "0b" => |c| matches!(c, '0' | '1'),
        _ if text.starts_with('0') => return digits_len(text, |c| c == '0'),
        _ => return digits_len(text, |c| c.is_ascii_digit()),
    };
    // An underscore may follow the prefix.
    let digits = text.get(2..).unwrap_or_default();
    let body = digits.strip_prefix('_').unwrap_or(digits);
    match digits_len(body, is_digit) {
        0 => 1,
        len => 2 + digits.len() - body.len() + len,
    }
}

/// Python's `unicode-escape`, as Jinja2 applies it to string literals.
fn unescape(body: &str, line: usize) -> Result<String, TranspileError> {
    let mut out = String::with_capacity(body.len());
    let mut chars = body.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(code) = chars.next() else {
            return Err(TranspileError::invalid(line, "a backslash ends the string"));
        };
        match code {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(code),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'v' => out.push('\u{b}'),
            'x' => out.push(hex_escape(&mut chars, 2, line)?),
            'u' => out.push(hex_escape(&mut chars, 4, line)?),
            'U' => out.push(hex_escape(&mut chars, 8, line)?),
            '0'..='7' => {
                let mut value = code.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = chars.clone().next().and_then(|c| c.to_digit(8)) else {
                        break;
                    };
                    chars.next();
                    value = value * 8 + digit;
                }
                out.extend(char::from_u32(value));
            }
            'N' => return Err(TranspileError::refused(line, "the escape \\N{...}")),
            c if c.is_ascii() => {
                out.push('\\');
                out.push(c);
            }
            _ => {
                return Err(TranspileError::refused(
                    line,
                    "a backslash before a non-ASCII character",
                ));
            }
        }
    }
    Ok(out)
}

fn hex_escape(
    chars: &mut std::str::Chars<'_>,
    digits: usize,
    line: usize,
) -> Result<char, TranspileError> {
    let mut value = 0_u32;
    for _ in 0..digits {
        let digit = chars.next().and_then(|c| c.to_digit(16));
        let digit = digit.ok_or_else(|| TranspileError::invalid(line, "a bad escape"))?;
        value = value.wrapping_mul(16).wrapping_add(digit);
    }
    match char::from_u32(value) {
        Some('\u{1}') | None => {
            Err(TranspileError::refused(line, "an escaped surrogate or U+0001"))
        }
        Some(c) => Ok(c),
    }
}
