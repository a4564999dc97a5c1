//! SGLang's native `/generate`: text or token ids, a batch of them or one.

use super::json::{Node, Object};
use super::media::ContentHasher;
use super::{
    Approximation, Media, Modality, PromptInput, Request, RequestError, completions, fields,
};

pub(super) fn parse(body: &Object<'_>) -> Result<Request, RequestError> {
    const PROMPT: RequestError = RequestError::WrongShape("text");
    if body.get("input_embeds").is_some() {
        return Err(RequestError::Unsupported("input_embeds"));
    }
    if let Some(session) = body.get("session_params").and_then(Node::as_object)
        && session.get("rid").is_some()
    {
        // What is given goes behind an earlier request of the session.
        let mut request = Request::new(body, PromptInput::Stored)?;
        request.session = fields::string(session, "id")?;
        return Ok(request);
    }
    let given = body.get("text").or_else(|| body.get("input_ids")).ok_or(PROMPT)?;
    let mut request = Request::new(body, completions::prompt(given, true).ok_or(PROMPT)??)?;
    request.adapter = match first(body.get("lora_path")) {
        Some(Node::String(adapter)) => Some(adapter.string()?),
        _ => None,
    };
    let sampling = first(body.get("sampling_params")).and_then(Node::as_object);
    request.output_tokens_max =
        sampling.and_then(|sampling| fields::output_tokens(sampling, &["max_new_tokens"]));
    request.is_opaque = sampling.is_some_and(fields::is_opaque);
    request.cache_read_tokens_max = cache_read_max(body);
    request.media = media(body)?;
    if completions::is_batch(given) {
        request.approximation = Some(Approximation::Batch);
    } else if !request.media.is_empty() {
        request.approximation = Some(Approximation::Media);
    }
    Ok(request)
}

/// The value for the first prompt of a batch.
fn first<'n, 'a>(node: Option<&'n Node<'a>>) -> Option<&'n Node<'a>> {
    match node? {
        Node::Array(batch) => batch.first(),
        single => Some(single),
    }
}

/// The prompt's log-probabilities are given from a token on, which makes the engine compute from there.
fn cache_read_max(body: &Object<'_>) -> Option<u32> {
    let Some(Node::Bool(true)) = first(body.get("return_logprob")) else { return None };
    match body.get("logprob_start_len")? {
        Node::Ids(of_batch) => of_batch.first().copied(),
        // -1 is the end of the prompt.
        Node::Number(start) => start.parse().ok(),
        _ => None,
    }
}

/// The first prompt's items: one, or a list, or a list for each prompt of a batch.
fn media(body: &Object<'_>) -> Result<Vec<Media>, RequestError> {
    let mut media = Vec::new();
    for (field, modality) in [
        ("image_data", Modality::Image),
        ("audio_data", Modality::Audio),
        ("video_data", Modality::Video),
    ] {
        let items = match body.get(field) {
            None => continue,
            Some(Node::Array(items)) => match items.first() {
                Some(Node::Array(of_first)) => of_first.as_slice(),
                _ => items.as_slice(),
            },
            Some(single) => std::slice::from_ref(single),
        };
        for item in items {
            let content_hash = ContentHasher::new(modality).node(item)?.finish();
            media.push(Media { modality, content_hash });
        }
    }
    Ok(media)
}
