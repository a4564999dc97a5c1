//! A generation request's body, checked.
//!
//! What comes in: bytes. What goes out: a [`GenerationRequest`] with one hashed prompt for each
//! answer to give, or an [`ApiError`].

use serde::Deserialize;
use serde_json::Value;

use super::config::ServerConfig;
use super::error::ApiError;
use super::tokens::PromptTokenizer;
use crate::limits::PROMPTS_PER_REQUEST_MAX;
use crate::model::Prompt;

/// Output tokens when the client does not say: OpenAI's default for completions.
const OUTPUT_TOKENS_DEFAULT: u32 = 16;

/// Which of the two generation endpoints is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Api {
    /// The endpoint's path.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// A request for tokens.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// The prompts; each gives one choice. Chats have exactly one.
    pub prompts: Vec<Prompt>,
    /// Tokens to generate for each prompt.
    pub output_tokens: Vec<u32>,
    /// Whether to stream.
    pub stream: bool,
    /// Whether the stream ends with a usage chunk.
    pub include_usage: bool,
}

/// The fields that the engine itself understands; the tokenizer reads the rest.
#[derive(Debug, Default, Deserialize)]
struct Parameters {
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    n: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// Parses, tokenizes and hashes a request. CPU-bound: a few microseconds a kilobyte.
///
/// # Errors
/// [`ApiError`] with a 4xx status.
pub fn parse(
    api: Api,
    body: &[u8],
    config: &ServerConfig,
    tokenizer: &dyn PromptTokenizer,
) -> Result<GenerationRequest, ApiError> {
    let body: Value = serde_json::from_slice(body).map_err(ApiError::NotJson)?;
    if !body.is_object() {
        return Err(wrong("the request body must be a JSON object", None));
    }
    let parameters =
        Parameters::deserialize(&body).map_err(|error| wrong(&error.to_string(), None))?;
    if let Some(model) = &parameters.model
        && !config.served_model_names.contains(model)
    {
        return Err(ApiError::UnknownModel { model: model.clone() });
    }
    if parameters.n.is_some_and(|n| n != 1) {
        return Err(wrong("only `n` = 1 is supported", Some("n")));
    }
    let asked = parameters.max_completion_tokens.or(parameters.max_tokens);
    if asked == Some(0) {
        return Err(wrong("max_tokens must be at least 1", Some("max_tokens")));
    }
    let prompts = prompts(api, body, config, tokenizer)?;
    let context_tokens_max = config.profile.context_tokens_max();
    let output_tokens = prompts
        .iter()
        .map(|prompt| output_tokens(prompt.token_count(), asked, context_tokens_max))
        .collect::<Result<_, _>>()?;
    Ok(GenerationRequest {
        prompts,
        output_tokens,
        stream: parameters.stream.unwrap_or(false),
        include_usage: parameters
            .stream_options
            .and_then(|options| options.include_usage)
            .unwrap_or(false),
    })
}

fn wrong(reason: &str, param: Option<&'static str>) -> ApiError {
    ApiError::WrongShape { reason: reason.to_owned(), param }
}

/// Tokens to generate: what was asked for must fit, the default is cut to what fits.
fn output_tokens(
    prompt_tokens: u32,
    asked: Option<u32>,
    context_tokens_max: u32,
) -> Result<u32, ApiError> {
    let room = context_tokens_max.saturating_sub(prompt_tokens);
    let output_tokens = asked.unwrap_or(OUTPUT_TOKENS_DEFAULT.min(room).max(1));
    if output_tokens > room {
        return Err(ApiError::TooLong { prompt_tokens, output_tokens, context_tokens_max });
    }
    Ok(output_tokens)
}

fn prompts(
    api: Api,
    mut body: Value,
    config: &ServerConfig,
    tokenizer: &dyn PromptTokenizer,
) -> Result<Vec<Prompt>, ApiError> {
    let hash = |body: &Value| {
        let prompt = tokenizer.tokens(api.path(), body)?;
        Prompt::from_tokens(&prompt.namespace, prompt.tokens, config.profile.block_size_tokens)
            .map_err(|_| ApiError::Prompt(super::tokens::PromptError::Empty))
    };
    let Some(list) = several_prompts(api, &mut body)? else {
        return Ok(vec![hash(&body)?]);
    };
    let mut prompts = Vec::with_capacity(list.len());
    for one in list {
        body["prompt"] = one;
        prompts.push(hash(&body)?);
    }
    Ok(prompts)
}

/// Takes the list of prompts out of a completions body that has several; `None` when it has one.
fn several_prompts(api: Api, body: &mut Value) -> Result<Option<Vec<Value>>, ApiError> {
    if api == Api::Chat {
        return Ok(None);
    }
    let Some(Value::Array(list)) = body.get_mut("prompt") else {
        return Ok(None);
    };
    if list.is_empty() {
        return Err(wrong("`prompt` must not be empty", Some("prompt")));
    }
    if !list.iter().all(|item| item.is_string() || item.is_array()) {
        return Ok(None);
    }
    if list.len() > PROMPTS_PER_REQUEST_MAX {
        let reason = format!("at most {PROMPTS_PER_REQUEST_MAX} prompts are taken in one request");
        return Err(wrong(&reason, Some("prompt")));
    }
    Ok(Some(std::mem::take(list)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::json;

    use super::*;
    use crate::model::Profile;
    use crate::server::tokens::BytesTokenizer;

    fn parse(api: Api, body: &Value) -> Result<GenerationRequest, ApiError> {
        let profile = Profile { kv_tokens: 11 * 16, ..Profile::named("a100-8b").unwrap() };
        let config = ServerConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            profile,
            speed: 1.0,
            seed: 0,
            served_model_names: vec!["m".into(), "alias".into()],
        };
        super::parse(api, body.to_string().as_bytes(), &config, &BytesTokenizer)
    }

    fn lengths(body: &Value) -> Vec<u32> {
        let request = parse(Api::Completions, body).unwrap();
        request.prompts.iter().map(Prompt::token_count).collect()
    }

    #[test]
    fn a_completion_takes_one_prompt_or_several() {
        assert_eq!(lengths(&json!({"prompt": "abc"})), [3]);
        assert_eq!(lengths(&json!({"prompt": ["abc", "de"]})), [3, 2]);
        assert_eq!(lengths(&json!({"prompt": [1, 2, 3, 4]})), [4]);
        assert_eq!(lengths(&json!({"prompt": [[1, 2], [3], "xyz"]})), [2, 1, 3]);
    }

    #[test]
    fn output_length_follows_the_newest_field_and_must_fit() {
        let output = |extra: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x".repeat(100)}]});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            parse(Api::Chat, &body).map(|request| request.output_tokens[0])
        };
        assert_eq!(output(json!({})).unwrap(), 16);
        assert_eq!(output(json!({"max_tokens": 3})).unwrap(), 3);
        assert_eq!(output(json!({"max_tokens": 3, "max_completion_tokens": 5})).unwrap(), 5);
        // 160 tokens of context, 118 of them prompt.
        assert_eq!(output(json!({"max_tokens": 42})).unwrap(), 42);
        assert!(matches!(output(json!({"max_tokens": 43})), Err(ApiError::TooLong { .. })));
        assert!(matches!(output(json!({"max_tokens": 0})), Err(ApiError::WrongShape { .. })));
    }

    #[test]
    fn the_default_output_is_cut_to_what_fits_but_a_full_prompt_is_refused() {
        let request = parse(Api::Completions, &json!({"prompt": "x".repeat(155)})).unwrap();
        assert_eq!(request.output_tokens, [5]);
        for length in [160, 161] {
            assert!(matches!(
                parse(Api::Completions, &json!({"prompt": "x".repeat(length)})),
                Err(ApiError::TooLong { .. })
            ));
        }
    }

    #[test]
    fn wrong_bodies_are_named() {
        let status = |body: &Value| parse(Api::Completions, body).unwrap_err().status().as_u16();
        assert_eq!(status(&json!([1])), 400);
        assert_eq!(status(&json!({"prompt": []})), 400);
        assert_eq!(status(&json!({"prompt": "x", "n": 2})), 400);
        assert_eq!(status(&json!({"prompt": "x", "stream": "yes"})), 400);
        assert_eq!(status(&json!({"prompt": "x", "max_tokens": -1})), 400);
        assert_eq!(status(&json!({"prompt": vec!["x"; 257]})), 400);
        assert_eq!(status(&json!({"prompt": "x", "model": "other"})), 404);
        assert!(parse(Api::Completions, &json!({"prompt": "x", "model": "alias"})).is_ok());
    }
}
