//! OpenAI's `/v1/completions`.

use super::json::{Node, Object};
use super::{Approximation, PromptInput, Request, RequestError, fields, token_ids};

const PROMPT: RequestError = RequestError::WrongShape("prompt");

pub(super) fn parse(body: &Object<'_>) -> Result<Request, RequestError> {
    for field in ["prompt_embeds", "suffix"] {
        if body.get(field).is_some() {
            return Err(RequestError::Unsupported(field));
        }
    }
    let special_tokens = fields::boolean(body, "add_special_tokens")?.unwrap_or(true);
    let given = body.get("prompt").ok_or(PROMPT)?;
    let mut request = Request::new(body, prompt(given, special_tokens).ok_or(PROMPT)??)?;
    request.approximation = is_batch(given).then_some(Approximation::Batch);
    request.truncation = fields::truncation(body)?;
    request.output_tokens_max =
        fields::output_tokens(body, &["max_completion_tokens", "max_tokens"]);
    request.adapter = fields::adapter(body)?;
    request.is_opaque = fields::is_opaque(body);
    // The prompt is given back with its log-probabilities.
    let is_echoed = fields::boolean(body, "echo")? == Some(true) && body.get("logprobs").is_some();
    request.cache_read_tokens_max = if is_echoed { Some(0) } else { fields::cache_read_max(body) };
    Ok(request)
}

/// Whether there are several prompts; a batch of one is like its prompt alone.
pub(super) fn is_batch(node: &Node<'_>) -> bool {
    matches!(node, Node::Array(prompts) if prompts.len() > 1)
}

/// A prompt, or the first one of a batch: text or token ids.
pub(super) fn prompt(
    node: &Node<'_>,
    special_tokens: bool,
) -> Option<Result<PromptInput, RequestError>> {
    let first = match node {
        Node::Array(batch) => batch.first()?,
        single => single,
    };
    match first {
        Node::String(text) => {
            Some(text.string().map(|text| PromptInput::Text { text, special_tokens }))
        }
        ids => Some(Ok(PromptInput::Tokens { tokens: token_ids(ids)?, media: Vec::new() })),
    }
}
