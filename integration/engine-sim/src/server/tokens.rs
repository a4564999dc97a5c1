//! From a request body to the prompt's tokens: the one seam for a real tokenizer.
//!
//! What comes in: the path and the JSON body of a request. What goes out: token ids and the
//! namespace of their blocks. [`BytesTokenizer`] needs no vocabulary: a token is a byte of the
//! messages in a row.

use serde_json::Value;

/// A prompt as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Its tokens, at least one.
    pub tokens: Vec<u32>,
    /// What must not share blocks gets another namespace: model, adapter, cache salt.
    pub namespace: String,
}

/// Why a body has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The body lacks a prompt or has one of the wrong type.
    #[error("{reason}")]
    WrongShape {
        /// What is wrong, in words for the client.
        reason: String,
    },
    /// The prompt has no token.
    #[error("the prompt is empty")]
    Empty,
    /// The body is understood but cannot be rendered or tokenized.
    #[error("the prompt cannot be tokenized: {reason}")]
    Unsupported {
        /// Why not.
        reason: String,
    },
}

/// An output token and the text that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputWord {
    /// The token's id.
    pub token: u32,
    /// Its text.
    pub text: String,
}

/// Turns request bodies into tokens.
pub trait PromptTokenizer: Send + Sync {
    /// The tokens of the one prompt in `body`. `path` is the request's path without its query. For
    /// completions with several prompts it is called once for each, with `prompt` being one string
    /// or one list of token ids.
    ///
    /// # Errors
    /// [`PromptError`], which the client gets as a 400.
    fn tokens(&self, path: &str, body: &Value) -> Result<TokenizedPrompt, PromptError>;

    /// The words that the engine's output is made of. Their texts in a row should encode to their
    /// tokens again, so that an answer that a client sends back hits the blocks that decoding it
    /// filled. The default is the lower-case letters as bytes.
    fn output_words(&self) -> Vec<OutputWord> {
        (b'a'..=b'z')
            .map(|letter| OutputWord {
                token: u32::from(letter),
                text: char::from(letter).to_string(),
            })
            .collect()
    }
}

/// Bytes as tokens, over the messages in a row.
///
/// A message is `role: content` and a newline, tools come first, and `assistant: ` ends the
/// prompt: the prompt of a conversation's next turn begins with the prompt and the answer of this
/// one, as with a real template.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesTokenizer;

impl PromptTokenizer for BytesTokenizer {
    fn tokens(&self, path: &str, body: &Value) -> Result<TokenizedPrompt, PromptError> {
        let tokens = if path.ends_with("/chat/completions") {
            chat_text(body)?.bytes().map(u32::from).collect()
        } else {
            completion_tokens(body)?
        };
        if tokens.is_empty() {
            return Err(PromptError::Empty);
        }
        Ok(TokenizedPrompt { tokens, namespace: namespace(body) })
    }
}

fn namespace(body: &Value) -> String {
    let field = |name| body.get(name).and_then(Value::as_str).unwrap_or_default();
    // A zero byte is in no model name, so that the two cannot run into each other.
    format!("{}\0{}", field("model"), field("cache_salt"))
}

fn wrong(reason: &str) -> PromptError {
    PromptError::WrongShape { reason: reason.to_owned() }
}

fn completion_tokens(body: &Value) -> Result<Vec<u32>, PromptError> {
    match body.get("prompt") {
        Some(Value::String(text)) => Ok(text.bytes().map(u32::from).collect()),
        Some(Value::Array(ids)) => ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| wrong("`prompt` must hold token ids only")),
        _ => Err(wrong("`prompt` must be a string or a list of token ids")),
    }
}

fn chat_text(body: &Value) -> Result<String, PromptError> {
    let messages = body
        .get("messages")
        .and_then(Value::as_array)
        .filter(|messages| !messages.is_empty())
        .ok_or_else(|| wrong("`messages` must be a non-empty list"))?;
    let mut text = String::new();
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        text.push_str(&tools.to_string());
        text.push('\n');
    }
    for message in messages {
        let role = message
            .get("role")
            .and_then(Value::as_str)
            .ok_or_else(|| wrong("every message needs a `role`"))?;
        text.push_str(role);
        text.push_str(": ");
        push_content(&mut text, message.get("content"))?;
        text.push('\n');
    }
    text.push_str("assistant: ");
    Ok(text)
}

fn push_content(text: &mut String, content: Option<&Value>) -> Result<(), PromptError> {
    match content {
        None | Some(Value::Null) => {}
        Some(Value::String(content)) => text.push_str(content),
        Some(Value::Array(parts)) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(part) => text.push_str(part),
                    None => text.push_str(&part.to_string()),
                }
            }
        }
        Some(_) => return Err(wrong("`content` must be a string or a list of parts")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    fn text(body: &Value) -> String {
        let prompt = BytesTokenizer.tokens(CHAT, body).unwrap();
        prompt.tokens.iter().map(|&token| token as u8 as char).collect()
    }

    #[test]
    fn the_next_turn_begins_with_this_one_and_its_answer() {
        let turn = json!({"messages": [{"role": "user", "content": "hi"}]});
        let next = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "abc"},
            {"role": "user", "content": "more"},
        ]});
        assert_eq!(text(&turn), "user: hi\nassistant: ");
        assert!(text(&next).starts_with(&(text(&turn) + "abc")));
    }

    #[test]
    fn completions_take_text_and_ids() {
        let tokens = |body| BytesTokenizer.tokens("/v1/completions", &body);
        assert_eq!(tokens(json!({"prompt": "ab"})).unwrap().tokens, [97, 98]);
        assert_eq!(tokens(json!({"prompt": [5, 70_000]})).unwrap().tokens, [5, 70_000]);
        assert_eq!(tokens(json!({"prompt": ""})), Err(PromptError::Empty));
        for bad in
            [json!({}), json!({"prompt": 7}), json!({"prompt": [-1]}), json!({"prompt": [1, "a"]})]
        {
            assert!(matches!(tokens(bad), Err(PromptError::WrongShape { .. })));
        }
    }

    #[test]
    fn malformed_chats_are_refused() {
        for bad in [
            json!({}),
            json!({"messages": []}),
            json!({"messages": [{"content": "x"}]}),
            json!({"messages": [{"role": "user", "content": 3}]}),
        ] {
            assert!(matches!(
                BytesTokenizer.tokens(CHAT, &bad),
                Err(PromptError::WrongShape { .. })
            ));
        }
    }

    #[test]
    fn model_and_salt_make_the_namespace() {
        let of = |model: &str, salt: &str| {
            let body = json!({"prompt": "x", "model": model, "cache_salt": salt});
            BytesTokenizer.tokens("/v1/completions", &body).unwrap().namespace
        };
        assert_ne!(of("a", "b"), of("ab", ""));
        assert_eq!(of("a", "b"), of("a", "b"));
    }
}
