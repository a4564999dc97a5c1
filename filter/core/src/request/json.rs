//! Body bytes -> a tree of JSON that borrows from them.
//!
//! Engines read bodies with Python's `json.loads`, and this reader accepts what that accepts:
//! `NaN` and `Infinity`, integers of any length, the last of equal keys, lone surrogates in
//! escapes. Strings and numbers stay slices of the body until someone asks for their value, so an
//! image of 20 MB in base64 costs nothing here, and a number that fits no machine type matters only
//! where it would be printed into a prompt.
//!
//! Bounds: nesting ([`JSON_DEPTH_MAX`]), values ([`JSON_VALUES_MAX`]) and token ids
//! ([`TOKEN_IDS_MAX`]). One pass, linear in the body; strings are passed over eight bytes at a time.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Number, Value};

use super::RequestError;
use crate::ids::TokenId;
use crate::limits::{JSON_DEPTH_MAX, JSON_VALUES_MAX, TOKEN_IDS_MAX};

/// A JSON value; strings and numbers are as the body has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node<'a> {
    Null,
    Bool(bool),
    /// A number's own text, or `NaN`, `Infinity`, `-Infinity`.
    Number(&'a str),
    String(Text<'a>),
    /// An array of nothing but plain integers that fit a token id; never empty.
    Ids(Vec<TokenId>),
    Array(Vec<Node<'a>>),
    Object(Object<'a>),
}

/// The members of an object in order, equal keys not yet merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object<'a>(Vec<(Text<'a>, Node<'a>)>);

/// A string between its quotes; its escapes are valid, except that surrogates may be lone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text<'a> {
    raw: &'a str,
    is_escaped: bool,
}

impl<'a> Text<'a> {
    /// The characters that the string stands for.
    pub(crate) fn decode(self) -> Result<Cow<'a, str>, RequestError> {
        if !self.is_escaped {
            return Ok(Cow::Borrowed(self.raw));
        }
        let mut text = String::with_capacity(self.raw.len());
        unescape_to(self.raw, |run| text.push_str(run))?;
        Ok(Cow::Owned(text))
    }

    /// The same, owned.
    pub(crate) fn string(self) -> Result<String, RequestError> {
        self.decode().map(Cow::into_owned)
    }

    /// Passes the same characters to `sink`, run by run, without a copy of the whole.
    pub(crate) fn decode_to(self, mut sink: impl FnMut(&str)) -> Result<(), RequestError> {
        if self.is_escaped {
            return unescape_to(self.raw, sink);
        }
        sink(self.raw);
        Ok(())
    }

    /// The string as the body has it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn raw(self) -> &'a str {
        self.raw
    }

    /// Whether the string stands for `other`.
    pub(crate) fn is(self, other: &str) -> bool {
        if self.is_escaped {
            self.decode().is_ok_and(|text| text == other)
        } else {
            self.raw == other
        }
    }
}

impl<'a> Object<'a> {
    /// The last member called `key`, even if it is null.
    pub(crate) fn given(&self, key: &str) -> Option<&Node<'a>> {
        self.0.iter().rev().find(|(name, _)| name.is(key)).map(|(_, value)| value)
    }

    /// The member called `key`; null counts as absent, as it does for optional fields.
    pub(crate) fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.given(key).filter(|value| !matches!(value, Node::Null))
    }

    /// All members, in order, repeated keys included.
    pub(crate) fn members(&self) -> impl Iterator<Item = (Text<'a>, &Node<'a>)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// The object as a template sees it.
    pub(crate) fn to_map(&self) -> Result<Map<String, Value>, RequestError> {
        let mut map = Map::with_capacity(self.0.len());
        for (key, value) in &self.0 {
            // A repeated key keeps its first place and takes the last value, as in Python.
            map.insert(key.string()?, value.to_value()?);
        }
        Ok(map)
    }
}

impl<'a> Node<'a> {
    pub(crate) fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<Text<'a>> {
        match self {
            Self::String(text) => Some(*text),
            _ => None,
        }
    }

    /// The items of an array that has no plain integers in it, or other things too.
    pub(crate) fn as_array(&self) -> Option<&[Node<'a>]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The value for a template.
    ///
    /// Numbers that JSON's machine types cannot carry as Python does are an error: they would be
    /// printed otherwise.
    pub(crate) fn to_value(&self) -> Result<Value, RequestError> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(text) => Value::Number(number(text).ok_or(RequestError::Number)?),
            Self::String(text) => Value::String(text.string()?),
            Self::Ids(ids) => ids.iter().map(|id| Value::from(*id)).collect(),
            Self::Array(items) => {
                Value::Array(items.iter().map(Node::to_value).collect::<Result<_, _>>()?)
            }
            Self::Object(object) => Value::Object(object.to_map()?),
        })
    }
}

/// The number that Python makes of `text`, if a machine type holds it.
fn number(text: &str) -> Option<Number> {
    if text.contains(['.', 'e', 'E', 'N', 'I']) {
        // Rust's conversion is correctly rounded, as Python's is.
        return text.parse::<f64>().ok().and_then(Number::from_f64);
    }
    text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from)).ok()
}

/// Reads one JSON text.
pub(crate) fn read(text: &str) -> Result<Node<'_>, RequestError> {
    let mut reader = Reader { text, at: 0, values_left: JSON_VALUES_MAX, ids_left: TOKEN_IDS_MAX };
    reader.skip_space();
    let node = reader.value(JSON_DEPTH_MAX)?;
    reader.skip_space();
    if reader.at == text.len() { Ok(node) } else { Err(RequestError::NotJson) }
}

/// A member of an object, and where it is written.
pub(crate) struct Member<'a> {
    /// Its key.
    pub(crate) key: Text<'a>,
    /// Its value.
    pub(crate) value: Node<'a>,
    /// Position of the key's opening quote, in bytes of the text that was read.
    pub(crate) key_at: usize,
    /// Where the value is, in bytes of the text that was read.
    pub(crate) value_at: Range<usize>,
}

/// Reads one JSON text that is an object; its members in order, equal keys not merged.
pub(crate) fn members(text: &str) -> Result<Vec<Member<'_>>, RequestError> {
    let mut reader = Reader { text, at: 0, values_left: JSON_VALUES_MAX, ids_left: TOKEN_IDS_MAX };
    reader.skip_space();
    let mut members = Vec::new();
    reader.each_member(JSON_DEPTH_MAX - 1, |member| members.push(member))?;
    reader.skip_space();
    if reader.at == text.len() { Ok(members) } else { Err(RequestError::NotJson) }
}

struct Reader<'a> {
    text: &'a str,
    /// Position in bytes.
    at: usize,
    values_left: usize,
    ids_left: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        let space =
            self.rest().iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        self.at += space.count();
    }

    /// Passes `byte`, if it is next.
    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), RequestError> {
        if self.eat(byte) { Ok(()) } else { Err(RequestError::NotJson) }
    }

    fn value(&mut self, depth_left: usize) -> Result<Node<'a>, RequestError> {
        self.values_left = self.values_left.checked_sub(1).ok_or(RequestError::TooManyValues)?;
        match self.peek().ok_or(RequestError::NotJson)? {
            b'"' => self.string().map(Node::String),
            b'{' => self.object(depth_left.checked_sub(1).ok_or(RequestError::TooDeep)?),
            b'[' => self.array(depth_left.checked_sub(1).ok_or(RequestError::TooDeep)?),
            b'n' => self.word("null", Node::Null),
            b't' => self.word("true", Node::Bool(true)),
            b'f' => self.word("false", Node::Bool(false)),
            b'N' => self.word("NaN", Node::Number("NaN")),
            b'I' => self.word("Infinity", Node::Number("Infinity")),
            b'-' if self.rest().starts_with(b"-I") => {
                self.word("-Infinity", Node::Number("-Infinity"))
            }
            _ => self.number().map(Node::Number),
        }
    }

    fn word(&mut self, word: &str, node: Node<'a>) -> Result<Node<'a>, RequestError> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(RequestError::NotJson);
        }
        self.at += word.len();
        Ok(node)
    }

    fn object(&mut self, depth_left: usize) -> Result<Node<'a>, RequestError> {
        let mut members = Vec::new();
        self.each_member(depth_left, |member| members.push((member.key, member.value)))?;
        Ok(Node::Object(Object(members)))
    }

    fn each_member(
        &mut self,
        depth_left: usize,
        mut sink: impl FnMut(Member<'a>),
    ) -> Result<(), RequestError> {
        self.expect(b'{')?;
        self.skip_space();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let key_at = self.at;
            let key = self.string()?;
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
            let start = self.at;
            let value = self.value(depth_left)?;
            sink(Member { key, value, key_at, value_at: start..self.at });
            self.skip_space();
            if self.eat(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
            self.skip_space();
        }
    }

    fn array(&mut self, depth_left: usize) -> Result<Node<'a>, RequestError> {
        self.expect(b'[')?;
        self.skip_space();
        if let Some(ids) = self.ids()? {
            return Ok(Node::Ids(ids));
        }
        let mut items = Vec::new();
        if self.eat(b']') {
            return Ok(Node::Array(items));
        }
        loop {
            items.push(self.value(depth_left)?);
            self.skip_space();
            if self.eat(b']') {
                return Ok(Node::Array(items));
            }
            self.expect(b',')?;
            self.skip_space();
        }
    }

    /// The rest of an array, if there is nothing but plain integers in it; else nothing is read.
    fn ids(&mut self) -> Result<Option<Vec<TokenId>>, RequestError> {
        let start = self.at;
        let mut ids = Vec::new();
        while let Some(id) = self.id() {
            self.ids_left = self.ids_left.checked_sub(1).ok_or(RequestError::TooManyValues)?;
            ids.push(id);
            self.skip_space();
            if self.eat(b']') {
                return Ok(Some(ids));
            }
            if !self.eat(b',') {
                break;
            }
            self.skip_space();
        }
        self.at = start;
        self.ids_left += ids.len();
        Ok(None)
    }

    fn id(&mut self) -> Option<TokenId> {
        let mut id: TokenId = 0;
        let mut digits = 0;
        for byte in self.rest().iter().take_while(|byte| byte.is_ascii_digit()) {
            id = id.checked_mul(10)?.checked_add(u32::from(byte - b'0'))?;
            digits += 1;
        }
        let has_leading_zero = digits > 1 && self.peek() == Some(b'0');
        if digits == 0 || has_leading_zero {
            return None;
        }
        self.at += digits;
        Some(id)
    }

    fn number(&mut self) -> Result<&'a str, RequestError> {
        let start = self.at;
        self.eat(b'-');
        if !self.eat(b'0') && self.digits() == 0 {
            return Err(RequestError::NotJson);
        }
        if self.eat(b'.') && self.digits() == 0 {
            return Err(RequestError::NotJson);
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            if self.digits() == 0 {
                return Err(RequestError::NotJson);
            }
        }
        self.text.get(start..self.at).ok_or(RequestError::NotJson)
    }

    fn digits(&mut self) -> usize {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    fn string(&mut self) -> Result<Text<'a>, RequestError> {
        self.expect(b'"')?;
        let rest = self.rest();
        let mut length = 0;
        let mut is_escaped = false;
        loop {
            let tail = rest.get(length..).unwrap_or_default();
            let plain = plain_bytes(tail);
            length += plain;
            match tail.get(plain) {
                Some(b'"') => break,
                Some(b'\\') => {
                    is_escaped = true;
                    let escape = tail.get(plain..).unwrap_or_default();
                    length += escape_bytes(escape).ok_or(RequestError::NotJson)?;
                }
                // A control character, or the end.
                _ => return Err(RequestError::NotJson),
            }
        }
        let raw = self.text.get(self.at..self.at + length).ok_or(RequestError::NotJson)?;
        self.at += length + 1;
        Ok(Text { raw, is_escaped })
    }
}

/// Length of the escape at the start of `bytes`, if it is one.
fn escape_bytes(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' if bytes.get(2..6)?.iter().all(u8::is_ascii_hexdigit) => Some(6),
        _ => None,
    }
}

/// Bytes before the first quote, backslash or control character.
fn plain_bytes(bytes: &[u8]) -> usize {
    let mut count = 0;
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let found = ends_plain(u64::from_le_bytes(*word));
        if found != 0 {
            return count + (found.trailing_zeros() / 8) as usize;
        }
        count += 8;
    }
    count + tail.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f)).count()
}

/// Marks the top bit of bytes that end a plain run; the lowest mark is right, higher ones may not
/// be, as a borrow runs upwards.
fn ends_plain(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let is_zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let quote = is_zero(word ^ (ONES * b'"' as u64));
    let backslash = is_zero(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | backslash | control) & TOPS
}

/// Passes the characters that `raw` stands for to `sink`, run by run.
fn unescape_to(raw: &str, mut sink: impl FnMut(&str)) -> Result<(), RequestError> {
    let mut rest = raw;
    loop {
        // Nothing but a backslash ends a run inside a string that was read.
        let (plain, escape) =
            rest.split_at_checked(plain_bytes(rest.as_bytes())).ok_or(RequestError::NotJson)?;
        sink(plain);
        let unescaped = match escape.as_bytes().get(1) {
            None => return Ok(()),
            Some(b'n') => "\n",
            Some(b'"') => "\"",
            Some(b'\\') => "\\",
            Some(b'/') => "/",
            Some(b't') => "\t",
            Some(b'r') => "\r",
            Some(b'b') => "\u{8}",
            Some(b'f') => "\u{c}",
            Some(_) => {
                let (unescaped, used_bytes) = unicode_escape(escape)?;
                sink(unescaped.encode_utf8(&mut [0; 4]));
                rest = escape.get(used_bytes..).unwrap_or_default();
                continue;
            }
        };
        sink(unescaped);
        rest = escape.get(2..).unwrap_or_default();
    }
}

/// The character at the start of `escape`, which begins with `\u`, and the bytes it takes.
fn unicode_escape(escape: &str) -> Result<(char, usize), RequestError> {
    let high = hex(escape, 2)?;
    if let Some(plain) = char::from_u32(high) {
        return Ok((plain, 6));
    }
    let low = match (high, escape.get(6..8)) {
        (0xd800..=0xdbff, Some("\\u")) => hex(escape, 8)?,
        _ => return Err(RequestError::LoneSurrogate),
    };
    let joined = low.checked_sub(0xdc00).filter(|low| *low < 0x400);
    let joined = joined.and_then(|low| char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + low));
    joined.map(|plain| (plain, 12)).ok_or(RequestError::LoneSurrogate)
}

fn hex(text: &str, at: usize) -> Result<u32, RequestError> {
    let digits = text.get(at..at + 4).ok_or(RequestError::NotJson)?;
    u32::from_str_radix(digits, 16).map_err(|_| RequestError::NotJson)
}

#[cfg(test)]
#[path = "json/tests.rs"]
mod tests;
