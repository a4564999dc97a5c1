//! Request body -> the same body, asking for the usage of a streamed answer.
//!
//! In: a chat or text completion in OpenAI's API. Out: the body with `include_usage` spliced in,
//! every other byte as the client wrote it, or nothing where there is nothing to ask or where the
//! body is unusual. What the answer then has more than the client asked for, [`crate::withhold`]
//! takes out again.
//!
//! One pass over the body, and one copy where it changes.

use std::ops::Range;

use crate::request::Api;
use crate::request::json::{self, Member, Node};

const STREAM_OPTIONS: &str = "stream_options";
const INCLUDE_USAGE: &str = "include_usage";

/// vLLM's option of an usage in each chunk, which it follows only together with `include_usage`.
const CONTINUOUS_USAGE: &str = "continuous_usage_stats";

/// The body that asks for usage; `None` where the request is to go on as it is: its answer is not
/// streamed or has the usage anyway, or the body is not what clients write (equal keys, values of
/// other types, a byte order mark, no JSON).
#[must_use]
pub fn for_usage(api: Api, body_bytes: &[u8]) -> Option<Vec<u8>> {
    if !matches!(api, Api::ChatCompletions | Api::Completions) {
        return None;
    }
    let body = std::str::from_utf8(body_bytes).ok()?;
    let members = json::members(body).ok()?;
    let stream = single(&members, "stream").ok()??;
    if stream.value != Node::Bool(true) {
        return None;
    }
    let (place, text) = match single(&members, STREAM_OPTIONS).ok()? {
        None => {
            let start = members.first()?.key_at;
            (start..start, r#""stream_options":{"include_usage":true},"#)
        }
        Some(options) => in_options(body, options)?,
    };
    let mut asking = Vec::with_capacity(body.len() + text.len());
    asking.extend_from_slice(body.get(..place.start)?.as_bytes());
    asking.extend_from_slice(text.as_bytes());
    asking.extend_from_slice(body.get(place.end..)?.as_bytes());
    Some(asking)
}

/// What is replaced in a body that has stream options, and by what.
fn in_options(body: &str, options: &Member<'_>) -> Option<(Range<usize>, &'static str)> {
    let place = options.value_at.clone();
    match options.value {
        Node::Null => return Some((place, r#"{"include_usage":true}"#)),
        Node::Object(_) => {}
        _ => return None,
    }
    let members = json::members(body.get(place.clone())?).ok()?;
    if members.iter().any(|member| member.key.is(CONTINUOUS_USAGE)) {
        return None;
    }
    let at = |position: usize| place.start + position;
    match single(&members, INCLUDE_USAGE).ok()? {
        Some(asked) => match asked.value {
            Node::Null | Node::Bool(false) => {
                Some((at(asked.value_at.start)..at(asked.value_at.end), "true"))
            }
            _ => None,
        },
        None => match members.first() {
            Some(first) => Some((at(first.key_at)..at(first.key_at), r#""include_usage":true,"#)),
            None => Some((place, r#"{"include_usage":true}"#)),
        },
    }
}

/// A key that is there more than once.
struct Repeated;

/// The member called `key`, if any.
fn single<'m, 'a>(
    members: &'m [Member<'a>],
    key: &str,
) -> Result<Option<&'m Member<'a>>, Repeated> {
    let mut found = members.iter().filter(|member| member.key.is(key));
    let first = found.next();
    if found.next().is_some() { Err(Repeated) } else { Ok(first) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn asking(body: &str) -> Option<String> {
        let asking = for_usage(Api::ChatCompletions, body.as_bytes());
        asking.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_option_is_spliced_in_and_all_else_stays() {
        for (body, expected) in [
            (
                r#"{"model":"m", "stream" : true}"#,
                r#"{"stream_options":{"include_usage":true},"model":"m", "stream" : true}"#,
            ),
            (
                " {\n \"stream\":true,\"stream_options\": null ,\"x\":1.0e5}\n",
                " {\n \"stream\":true,\"stream_options\": {\"include_usage\":true} ,\"x\":1.0e5}\n",
            ),
            (
                r#"{"stream_options":{ },"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{ "include_obfuscation":false},"stream":true}"#,
                r#"{"stream_options":{ "include_usage":true,"include_obfuscation":false},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"a":[1],"include_usage" : false },"stream":true}"#,
                r#"{"stream_options":{"a":[1],"include_usage" : true },"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":null},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"messages":[{"stream_options":{"include_usage":false}}],"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"messages":[{"stream_options":{"include_usage":false}}],"stream":true}"#,
            ),
        ] {
            assert_eq!(asking(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn what_is_unusual_or_needs_no_question_is_left_alone() {
        for body in [
            r#"{"model":"m"}"#,
            r#"{"stream":false}"#,
            r#"{"stream":null}"#,
            r#"{"stream":"true"}"#,
            r#"{"stream":1}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":"yes"}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":false,"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
            r#"{"stream":true,"stream_options":[]}"#,
            r#"{"stream":true,"stream_options":true}"#,
            r#"{"stream":true,"stream_options":null,"stream_options":{}}"#,
            r#"{"stream":true,"stream_option\u0073":null,"stream_options":{}}"#,
            r#"{"stream":true,"stream":true}"#,
            "\u{feff}{\"stream\":true}",
            r#"{"stream":true}}"#,
            r#"{"stream":true"#,
            r#"[{"stream":true}]"#,
            "",
        ] {
            assert_eq!(asking(body), None, "{body}");
        }
        assert_eq!(for_usage(Api::ChatCompletions, b"{\"stream\":true,\"x\":\"\xff\"}"), None);
        for api in Api::ALL {
            let is_asked = matches!(api, Api::ChatCompletions | Api::Completions);
            assert_eq!(for_usage(api, br#"{"stream":true}"#).is_some(), is_asked);
        }
    }

    fn stream_options() -> impl Strategy<Value = Option<Value>> {
        let usage = prop_oneof![Just(None), Just(Some(Value::Null)), Just(Some(json!(false)))];
        let object = (usage, any::<bool>()).prop_map(|(usage, has_more)| {
            let mut options = json!({});
            if has_more {
                options["include_obfuscation"] = json!(false);
            }
            if let Some(usage) = usage {
                options["include_usage"] = usage;
            }
            options
        });
        prop_oneof![Just(None), Just(Some(Value::Null)), object.prop_map(Some)]
    }

    proptest! {
        #[test]
        fn only_the_option_differs(
            texts in prop::collection::vec(".{0,20}", 0..4),
            options in stream_options(),
            is_pretty: bool,
        ) {
            let mut body = json!({"messages": texts, "stream": true, "seed": 1});
            if let Some(options) = options {
                body["stream_options"] = options;
            }
            let text = if is_pretty { format!("{body:#}") } else { body.to_string() };
            let asking: Value = serde_json::from_str(&asking(&text).unwrap()).unwrap();
            if !body["stream_options"].is_object() {
                body["stream_options"] = json!({});
            }
            body["stream_options"]["include_usage"] = json!(true);
            prop_assert_eq!(asking, body);
        }
    }
}
