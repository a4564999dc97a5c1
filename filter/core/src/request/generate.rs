//! vLLM's `/inference/v1/generate`: token ids in, token ids out.
//!
//! Multimodal items come with their hashes and places, so nothing is left to guess.

use super::json::{Node, Object};
use super::media::ContentHasher;
use super::{Modality, PromptInput, Request, RequestError, fields, token_ids};
use crate::blocks::MediaItem;

const FEATURES: RequestError = RequestError::WrongShape("features");

pub(super) fn parse(body: &Object<'_>) -> Result<Request, RequestError> {
    if body.get("content_parts").is_some() {
        // The server looks for their places itself.
        return Err(RequestError::Unsupported("content_parts"));
    }
    let tokens = body.get("token_ids").and_then(token_ids);
    let tokens = tokens.ok_or(RequestError::WrongShape("token_ids"))?;
    let media = match fields::object(body, "features")? {
        Some(features) => media_items(features)?,
        None => Vec::new(),
    };
    let mut request = Request::new(body, PromptInput::Tokens { tokens, media })?;
    let sampling = fields::object(body, "sampling_params")?;
    request.output_tokens_max =
        sampling.and_then(|sampling| fields::output_tokens(sampling, &["max_tokens"]));
    request.is_opaque = fields::is_opaque(body) || sampling.is_some_and(fields::is_opaque);
    request.cache_read_tokens_max =
        match sampling.and_then(|it| it.get("skip_reading_prefix_cache")) {
            Some(Node::Bool(skips)) => skips.then_some(0),
            _ => sampling.and_then(fields::cache_read_max),
        };
    Ok(request)
}

fn media_items(features: &Object<'_>) -> Result<Vec<MediaItem>, RequestError> {
    let hashes = fields::object(features, "mm_hashes")?.ok_or(FEATURES)?;
    let places = fields::object(features, "mm_placeholders")?.ok_or(FEATURES)?;
    let mut items = Vec::new();
    for (modality, list) in hashes.members() {
        let modality = modality.decode()?;
        let list = list.as_array().ok_or(FEATURES)?;
        let places = fields_of(places, &modality)?;
        if list.len() != places.len() {
            return Err(FEATURES);
        }
        for (hash, place) in list.iter().zip(places) {
            let hash = hash.as_text().ok_or(FEATURES)?;
            let offset = fields::integer(place.as_object().ok_or(FEATURES)?, "offset")?;
            let token_index = offset.and_then(|offset| usize::try_from(offset).ok());
            let mut hasher = ContentHasher::new(Modality::Image);
            let content_hash = hasher.str(&modality).str(":").text(hash)?.finish();
            items.push(MediaItem { token_index: token_index.ok_or(FEATURES)?, content_hash });
        }
    }
    items.sort_by_key(|item| item.token_index);
    Ok(items)
}

fn fields_of<'n, 'a>(
    places: &'n Object<'a>,
    modality: &str,
) -> Result<&'n [Node<'a>], RequestError> {
    places.get(modality).and_then(Node::as_array).ok_or(FEATURES)
}
