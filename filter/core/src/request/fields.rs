//! Typed fields of an object, as the engines' request models take them: null counts as absent, and
//! booleans and integers may be written in a few more ways than JSON has.

use serde_json::{Map, Value};

use super::json::{Node, Object};
use super::{RequestError, Side, Truncation};

/// A string.
pub(super) fn string(
    object: &Object<'_>,
    field: &'static str,
) -> Result<Option<String>, RequestError> {
    match object.get(field) {
        None => Ok(None),
        Some(Node::String(text)) => text.string().map(Some),
        Some(_) => Err(RequestError::WrongShape(field)),
    }
}

/// A string that must be there.
pub(super) fn needed_string(
    object: &Object<'_>,
    field: &'static str,
) -> Result<String, RequestError> {
    string(object, field)?.ok_or(RequestError::WrongShape(field))
}

/// A boolean.
pub(super) fn boolean(
    object: &Object<'_>,
    field: &'static str,
) -> Result<Option<bool>, RequestError> {
    let value = match object.get(field) {
        None => return Ok(None),
        Some(Node::Bool(value)) => Some(*value),
        Some(Node::Number(text)) => match text.parse::<f64>() {
            Ok(1.0) => Some(true),
            Ok(0.0) => Some(false),
            _ => None,
        },
        Some(Node::String(text)) => match text.decode()?.to_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        },
        Some(_) => None,
    };
    value.map(Some).ok_or(RequestError::WrongShape(field))
}

/// An integer.
pub(super) fn integer(
    object: &Object<'_>,
    field: &'static str,
) -> Result<Option<i64>, RequestError> {
    let value = match object.get(field) {
        None => return Ok(None),
        Some(Node::Number(text)) => whole(text),
        Some(Node::String(text)) => text.decode()?.trim().parse().ok(),
        Some(_) => None,
    };
    value.map(Some).ok_or(RequestError::WrongShape(field))
}

fn whole(text: &str) -> Option<i64> {
    let value = || text.parse::<f64>().ok();
    let is_exact = |value: &f64| value.fract() == 0.0 && value.abs() < 9e15;
    text.parse().ok().or_else(|| value().filter(is_exact).map(|value| value as i64))
}

/// A count of tokens to be generated, the first of `fields` that has one. Nonsense is no limit:
/// the value only weighs load.
pub(super) fn output_tokens(object: &Object<'_>, fields: &[&'static str]) -> Option<u32> {
    let tokens = fields.iter().find_map(|field| integer(object, field).ok().flatten())?;
    u32::try_from(tokens.max(0)).ok().or(Some(u32::MAX))
}

/// An array.
pub(super) fn array<'n, 'a>(
    object: &'n Object<'a>,
    field: &'static str,
) -> Result<Option<&'n [Node<'a>]>, RequestError> {
    match object.get(field) {
        None => Ok(None),
        Some(Node::Array(items)) => Ok(Some(items)),
        Some(_) => Err(RequestError::WrongShape(field)),
    }
}

/// An object.
pub(super) fn object<'n, 'a>(
    object: &'n Object<'a>,
    field: &'static str,
) -> Result<Option<&'n Object<'a>>, RequestError> {
    match object.get(field) {
        None => Ok(None),
        Some(Node::Object(object)) => Ok(Some(object)),
        Some(_) => Err(RequestError::WrongShape(field)),
    }
}

/// `chat_template_kwargs`. A template among them is judged by the engine alone.
pub(super) fn template_kwargs(body: &Object<'_>) -> Result<Map<String, Value>, RequestError> {
    let Some(kwargs) = object(body, "chat_template_kwargs")? else { return Ok(Map::new()) };
    if kwargs.get("chat_template").is_some() {
        return Err(RequestError::OwnTemplate);
    }
    kwargs.to_map()
}

/// How vLLM shortens prompts. A negative count means the model's own limit, where a prompt that
/// fits is left alone.
pub(super) fn truncation(body: &Object<'_>) -> Result<Option<Truncation>, RequestError> {
    const SIDE: &str = "truncation_side";
    let tokens_max = integer(body, "truncate_prompt_tokens")?;
    let side = match string(body, SIDE)?.as_deref() {
        None => None,
        Some("left") => Some(Side::Left),
        Some("right") => Some(Side::Right),
        Some(_) => return Err(RequestError::WrongShape(SIDE)),
    };
    let tokens_max = tokens_max.and_then(|tokens| usize::try_from(tokens).ok());
    Ok(tokens_max.map(|tokens_max| Truncation { tokens_max, side }))
}

/// How much of the prompt may come from the cache, where vLLM is to give log-probabilities of the prompt: it
/// computes all of it. llama.cpp can be told to.
pub(super) fn cache_read_max(params: &Object<'_>) -> Option<u32> {
    let scores = ["prompt_logprobs", "prompt_logprob_token_ids"];
    let is_whole = scores.iter().any(|field| params.get(field).is_some())
        || matches!(params.get("cache_prompt"), Some(Node::Bool(false)));
    is_whole.then_some(0)
}

/// Whether an answer under these parameters says nothing of the work on the prompt: several samples, beams,
/// or a prefill that another engine did.
pub(super) fn is_opaque(params: &Object<'_>) -> bool {
    let is_several = |field| integer(params, field).ok().flatten().is_some_and(|count| count > 1);
    let is_on = |object: &Object<'_>, field| matches!(object.get(field), Some(Node::Bool(true)));
    let transfer = params.get("kv_transfer_params").and_then(Node::as_object);
    ["n", "n_cmpl", "best_of"].into_iter().any(is_several)
        || is_on(params, "use_beam_search")
        || transfer.is_some_and(|transfer| is_on(transfer, "do_remote_prefill"))
}

/// The tenant's salt; SGLang has a second field for it, and either keeps prefixes apart.
pub(super) fn cache_salt(body: &Object<'_>) -> Result<String, RequestError> {
    let mut salt = string(body, "cache_salt")?.unwrap_or_default();
    if let Some(Node::String(key)) = body.get("extra_key") {
        salt.push_str(&key.string()?);
    }
    Ok(salt)
}

/// A LoRA adapter named apart from the model: SGLang's field, TensorRT-LLM's, or llama.cpp's list, which goes
/// by its text.
pub(super) fn adapter(body: &Object<'_>) -> Result<Option<String>, RequestError> {
    if let Some(adapter) = string(body, "lora_path")? {
        return Ok(Some(adapter));
    }
    if let Some(request) = body.get("lora_request").and_then(Node::as_object) {
        return string(request, "lora_name");
    }
    match body.get("lora") {
        Some(list @ Node::Array(items)) if !items.is_empty() => {
            list.to_value().map(|list| Some(list.to_string()))
        }
        _ => Ok(None),
    }
}
