//! Request bytes -> what the engine is asked.
//!
//! In: the path and the whole body. Out: a [`Request`] with the prompt still in the API's own
//! form. Parsing is bounded by the caller's body limit and by serde_json's nesting limit of 128;
//! linear in the body.

use serde_json::{Map, Value};

use crate::ids::TokenId;

/// The APIs whose prompts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `POST /v1/chat/completions`.
    ChatCompletions,
    /// `POST /v1/completions`.
    Completions,
}

impl Api {
    /// The API behind a request path, its query left out; `None` for all others.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        match path.split('?').next()? {
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            "/v1/completions" => Some(Self::Completions),
            _ => None,
        }
    }
}

/// A request, as far as routing needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The model's name as the client wrote it; `None` when left out.
    pub model: Option<String>,
    /// What is to be tokenized.
    pub prompt: PromptInput,
    /// The tenant's salt, empty without one.
    pub cache_salt: String,
    /// Most tokens the client wants back; `None` when left to the engine.
    pub output_tokens_max: Option<u32>,
}

/// A prompt in the form that its API gives.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptInput {
    /// Messages for the model's chat template.
    Chat(Box<Chat>),
    /// Text, tokenized with the model's special tokens around it if `special_tokens`.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its own special tokens (BOS).
        special_tokens: bool,
    },
    /// Token ids given by the client.
    Tokens(Vec<TokenId>),
}

/// The inputs of a chat template.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The messages: an array of objects.
    pub messages: Value,
    /// Tool definitions.
    pub tools: Option<Value>,
    /// Documents for retrieval templates.
    pub documents: Option<Value>,
    /// Whether the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is continued instead of closed.
    pub continue_final_message: bool,
    /// Extra variables of the template.
    pub kwargs: Map<String, Value>,
}

/// Why a body was not understood. None of these is a reason to refuse the request: the engine
/// answers for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is empty.
    #[error("the body is empty")]
    Empty,
    /// The body is not UTF-8.
    #[error("the body is not UTF-8")]
    NotUtf8,
    /// The body is not JSON, or nested deeper than 128 levels.
    #[error("the body is not JSON")]
    NotJson,
    /// The JSON lacks a field that the API requires, or has it with another type.
    #[error("field `{0}` is missing or of the wrong type")]
    WrongShape(&'static str),
    /// The request brings its own chat template, which only the engine can judge.
    #[error("the request brings its own chat template")]
    OwnTemplate,
}

/// Parses a request body.
///
/// # Errors
/// [`RequestError`] says what is not understood.
pub fn parse(api: Api, body_bytes: &[u8]) -> Result<Request, RequestError> {
    if body_bytes.is_empty() {
        return Err(RequestError::Empty);
    }
    let text = std::str::from_utf8(body_bytes).map_err(|_| RequestError::NotUtf8)?;
    let body: Value = serde_json::from_str(text).map_err(|_| RequestError::NotJson)?;
    let Value::Object(mut body) = body else {
        return Err(RequestError::WrongShape("(body)"));
    };
    let prompt = match api {
        Api::ChatCompletions => PromptInput::Chat(Box::new(chat(&mut body)?)),
        Api::Completions => completion_prompt(&mut body)?,
    };
    Ok(Request {
        model: optional_string(&mut body, "model")?,
        prompt,
        cache_salt: optional_string(&mut body, "cache_salt")?.unwrap_or_default(),
        output_tokens_max: output_tokens_max(&body),
    })
}

fn chat(body: &mut Map<String, Value>) -> Result<Chat, RequestError> {
    if present(body, "chat_template").is_some() {
        return Err(RequestError::OwnTemplate);
    }
    let messages = take(body, "messages").filter(Value::is_array);
    let messages = messages.ok_or(RequestError::WrongShape("messages"))?;
    if !messages.as_array().is_some_and(|list| list.iter().all(Value::is_object)) {
        return Err(RequestError::WrongShape("messages"));
    }
    let kwargs = match take(body, "chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(kwargs)) => kwargs,
        Some(_) => return Err(RequestError::WrongShape("chat_template_kwargs")),
    };
    Ok(Chat {
        messages,
        tools: optional_array(body, "tools")?,
        documents: optional_array(body, "documents")?,
        add_generation_prompt: optional_bool(body, "add_generation_prompt")?.unwrap_or(true),
        continue_final_message: optional_bool(body, "continue_final_message")?.unwrap_or(false),
        kwargs,
    })
}

/// A batch of prompts is routed by its first one.
fn completion_prompt(body: &mut Map<String, Value>) -> Result<PromptInput, RequestError> {
    const SHAPE: RequestError = RequestError::WrongShape("prompt");
    let special_tokens = optional_bool(body, "add_special_tokens")?.unwrap_or(true);
    match take(body, "prompt").ok_or(SHAPE)? {
        Value::String(text) => Ok(PromptInput::Text { text, special_tokens }),
        Value::Array(items) => match items.first() {
            Some(Value::String(text)) => {
                Ok(PromptInput::Text { text: text.clone(), special_tokens })
            }
            Some(Value::Number(_)) => token_ids(&items).ok_or(SHAPE).map(PromptInput::Tokens),
            Some(Value::Array(first)) => token_ids(first).ok_or(SHAPE).map(PromptInput::Tokens),
            _ => Err(SHAPE),
        },
        _ => Err(SHAPE),
    }
}

fn token_ids(items: &[Value]) -> Option<Vec<TokenId>> {
    items.iter().map(|item| item.as_u64().and_then(|id| TokenId::try_from(id).ok())).collect()
}

fn output_tokens_max(body: &Map<String, Value>) -> Option<u32> {
    ["max_completion_tokens", "max_tokens"]
        .iter()
        .find_map(|field| body.get(*field)?.as_u64())
        .map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// The field's value; JSON null counts as absent, as the engines' request models have it.
fn present<'a>(body: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    body.get(field).filter(|value| !value.is_null())
}

fn take(body: &mut Map<String, Value>, field: &str) -> Option<Value> {
    body.get_mut(field).map(Value::take).filter(|value| !value.is_null())
}

fn optional_string(
    body: &mut Map<String, Value>,
    field: &'static str,
) -> Result<Option<String>, RequestError> {
    match take(body, field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(RequestError::WrongShape(field)),
    }
}

fn optional_array(
    body: &mut Map<String, Value>,
    field: &'static str,
) -> Result<Option<Value>, RequestError> {
    match take(body, field) {
        None => Ok(None),
        Some(value @ Value::Array(_)) => Ok(Some(value)),
        Some(_) => Err(RequestError::WrongShape(field)),
    }
}

fn optional_bool(
    body: &mut Map<String, Value>,
    field: &'static str,
) -> Result<Option<bool>, RequestError> {
    match take(body, field) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(value)),
        Some(_) => Err(RequestError::WrongShape(field)),
    }
}

#[cfg(test)]
mod tests;
