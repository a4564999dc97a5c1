//! What two requests must share to have one shape: all of a request but its messages' texts.
//!
//! A text is a message's content, or the text of one of its parts.
//!
//! The key is the bytes of it, each part with its kind and length before it, so
//! that equal bytes mean equal requests. Of a text it holds what operations
//! may ask for without a look into it: whether it is empty, and whether it is
//! white space only. One walk over the request; texts are not copied.

use serde_json::{Map, Value as Json};

use crate::ChatRequest;
use crate::limits::{SHAPE_KEY_BYTES_MAX, SHAPE_MESSAGES_MAX, SHAPE_TEXTS_MAX, VALUE_DEPTH_MAX};
use crate::py::text::is_space;

/// The field whose text is no part of the shape.
pub(super) const CONTENT: &str = "content";

/// The same in a part of a content, whose type has this name too.
const TEXT: &str = "text";

/// A request as its shape sees it.
pub(crate) struct Keyed<'a> {
    /// The key.
    pub(super) bytes: Vec<u8>,
    /// The texts that are not empty, in the order of their messages.
    pub(super) texts: Vec<&'a str>,
}

/// Whether a text is white space only.
pub(super) fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

impl<'a> Keyed<'a> {
    /// Reads a request; `buffer` is reused. `None` where the request has no shape: a message whose
    /// content is neither text nor a list of parts nor absent, or more than the limits allow.
    pub(super) fn new(
        mut buffer: Vec<u8>,
        name: &str,
        chat: &ChatRequest<'a>,
        depth_max: usize,
    ) -> Option<Self> {
        buffer.clear();
        let messages = chat.messages.as_array()?;
        if messages.len() > SHAPE_MESSAGES_MAX {
            return None;
        }
        let mut writer = Writer { bytes: buffer };
        writer.text(name)?;
        writer.bytes.push(u8::from(chat.add_generation_prompt));
        writer.bytes.push(u8::try_from(depth_max).ok()?);
        let day = chat.now;
        writer.bytes.extend_from_slice(&day.year.to_le_bytes());
        writer.bytes.extend_from_slice(&[day.month, day.day]);
        writer.object(chat.kwargs, VALUE_DEPTH_MAX)?;
        for json in [chat.tools, chat.documents] {
            writer.json(json.unwrap_or(&Json::Null), VALUE_DEPTH_MAX)?;
        }
        writer.count(messages.len())?;
        let mut texts = Vec::with_capacity(messages.len());
        for message in messages {
            writer.message(message.as_object()?, &mut texts)?;
        }
        Some(Self { bytes: writer.bytes, texts })
    }
}

/// The request's messages, each text replaced by what `replacement` makes of its number and itself.
pub(super) fn with_texts(messages: &Json, replacement: impl Fn(usize, &str) -> String) -> Json {
    let mut replaced = messages.clone();
    let mut count = 0;
    let mut replace = |text: &mut Json| {
        if let Json::String(text) = text
            && !text.is_empty()
        {
            *text = replacement(count, text);
            count += 1;
        }
    };
    for message in replaced.as_array_mut().into_iter().flatten() {
        match message.get_mut(CONTENT) {
            Some(Json::Array(parts)) => {
                let parts = parts.iter_mut().filter_map(Json::as_object_mut);
                let texts = parts.filter(|part| is_text(part)).filter_map(|it| it.get_mut(TEXT));
                texts.for_each(&mut replace);
            }
            Some(content) => replace(content),
            None => {}
        }
    }
    replaced
}

/// Whether a part of a content is a text.
fn is_text(part: &Map<String, Json>) -> bool {
    part.get("type").is_some_and(|kind| kind == TEXT)
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn count(&mut self, count: usize) -> Option<()> {
        self.bytes.extend_from_slice(&u32::try_from(count).ok()?.to_le_bytes());
        Some(())
    }

    fn text(&mut self, text: &str) -> Option<()> {
        if self.bytes.len().saturating_add(text.len()) > SHAPE_KEY_BYTES_MAX {
            return None;
        }
        self.count(text.len())?;
        self.bytes.extend_from_slice(text.as_bytes());
        Some(())
    }

    fn message<'a>(
        &mut self,
        fields: &'a Map<String, Json>,
        texts: &mut Vec<&'a str>,
    ) -> Option<()> {
        self.count(fields.len())?;
        for (name, value) in fields {
            self.text(name)?;
            match value {
                Json::String(text) if name == CONTENT => self.left_out(text, texts)?,
                Json::Array(parts) if name == CONTENT => self.parts(parts, texts)?,
                Json::Null => self.bytes.push(b'n'),
                _ if name == CONTENT => return None,
                value => self.json(value, VALUE_DEPTH_MAX)?,
            }
        }
        Some(())
    }

    /// A text, of which the key holds only what may be asked without a look into it.
    fn left_out<'a>(&mut self, text: &'a str, texts: &mut Vec<&'a str>) -> Option<()> {
        if text.is_empty() {
            self.bytes.push(b'e');
            return Some(());
        }
        if texts.len() >= SHAPE_TEXTS_MAX {
            return None;
        }
        self.bytes.push(if is_blank(text) { b'b' } else { b't' });
        texts.push(text);
        Some(())
    }

    fn parts<'a>(&mut self, parts: &'a [Json], texts: &mut Vec<&'a str>) -> Option<()> {
        self.bytes.push(b'[');
        self.count(parts.len())?;
        for part in parts {
            let Some(fields) = part.as_object().filter(|fields| is_text(fields)) else {
                self.json(part, VALUE_DEPTH_MAX)?;
                continue;
            };
            self.bytes.push(b'{');
            self.count(fields.len())?;
            for (name, value) in fields {
                self.text(name)?;
                match value {
                    Json::String(text) if name == TEXT => self.left_out(text, texts)?,
                    value => self.json(value, VALUE_DEPTH_MAX)?,
                }
            }
        }
        Some(())
    }

    fn object(&mut self, entries: &Map<String, Json>, depth: usize) -> Option<()> {
        self.bytes.push(b'{');
        self.count(entries.len())?;
        for (name, value) in entries {
            self.text(name)?;
            self.json(value, depth)?;
        }
        Some(())
    }

    /// Any JSON, to at most `depth` levels.
    fn json(&mut self, json: &Json, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        if self.bytes.len() > SHAPE_KEY_BYTES_MAX {
            return None;
        }
        match json {
            Json::Null => self.bytes.push(b'n'),
            Json::Bool(value) => self.bytes.push(if *value { b'1' } else { b'0' }),
            Json::Number(number) => self.number(number),
            Json::String(text) => {
                self.bytes.push(b's');
                self.text(text)?;
            }
            Json::Array(items) => {
                self.bytes.push(b'[');
                self.count(items.len())?;
                for item in items {
                    self.json(item, depth)?;
                }
            }
            Json::Object(entries) => self.object(entries, depth)?,
        }
        Some(())
    }

    fn number(&mut self, number: &serde_json::Number) {
        let (kind, bits) = match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(int), ..) => (b'i', int.to_le_bytes()),
            (None, Some(int), _) => (b'u', int.to_le_bytes()),
            (None, None, float) => (b'f', float.unwrap_or(f64::NAN).to_le_bytes()),
        };
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&bits);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::CivilTime;

    fn key(messages: &Json, kwargs: &Json, tools: Option<&Json>) -> Option<Vec<u8>> {
        let chat = ChatRequest {
            messages,
            tools,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: kwargs.as_object().unwrap(),
            template_name: None,
            now: CivilTime::from_unix(0, 0, 0),
        };
        Keyed::new(Vec::new(), "default", &chat, VALUE_DEPTH_MAX).map(|keyed| keyed.bytes)
    }

    #[test]
    fn only_texts_are_left_out() {
        let message = |fields: Json| key(&json!([fields]), &json!({}), None).unwrap();
        let base = message(json!({"role": "user", "content": "a"}));
        assert_eq!(base, message(json!({"role": "user", "content": "a longer text"})));
        let others = [
            json!({"role": "user", "content": ""}),
            json!({"role": "user", "content": " \n"}),
            json!({"role": "user", "content": null}),
            json!({"role": "user"}),
            json!({"role": "usera", "content": ""}),
            json!({"content": "a", "role": "user"}),
            json!({"role": "user", "content": "a", "name": "x"}),
            json!({"role": "user", "content": "a", "x": 1}),
            json!({"role": "user", "content": "a", "x": 1.0}),
            json!({"role": "user", "content": "a", "x": true}),
            json!({"role": "user", "content": "a", "x": [1, 2]}),
            json!({"role": "user", "content": "a", "x": [[1], 2]}),
            json!({"role": "user", "content": "a", "x": {"content": "a"}}),
            json!({"role": "user", "content": "a", "x": {"content": "b"}}),
            json!({"role": "user", "content": "a", "x": u64::MAX}),
            json!({"role": "user", "content": "a", "x": -1}),
            json!({"role": "user", "content": []}),
            json!({"role": "user", "content": [{"type": "text", "text": ""}]}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"}]}),
            json!({"role": "user", "content": [{"text": "a", "type": "text"}]}),
            json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}),
            json!({"role": "user", "content": [{"type": "other", "text": "a"}]}),
            json!({"role": "user", "content": [{"type": "other", "text": "b"}]}),
            json!({"role": "user", "content": ["a"]}),
        ];
        let parts = |text: &str| {
            message(json!({"role": "user", "content": [{"type": "text", "text": text}]}))
        };
        assert_eq!(parts("a"), parts("a longer text"));
        let mut keys: Vec<_> = others.into_iter().map(message).chain([base]).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn what_has_no_shape_has_no_key() {
        let empty = json!({});
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let long = "x".repeat(SHAPE_KEY_BYTES_MAX);
        for messages in [
            json!({}),
            json!([1]),
            json!([{"content": 1}]),
            json!([{"content": vec![json!({"type": "text", "text": "a"}); SHAPE_TEXTS_MAX + 1]}]),
            json!([{"x": deep}]),
            json!([{"x": long}]),
            Json::from(vec![json!({}); SHAPE_MESSAGES_MAX + 1]),
        ] {
            assert!(key(&messages, &empty, None).is_none());
        }
        assert!(key(&json!([{"content": long}]), &empty, None).is_some());
    }
}
