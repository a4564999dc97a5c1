//! Ollama's `/api/chat` and `/api/generate`.
//!
//! Ollama renders prompts with a template of its own kind, which no bundle has. The conversation
//! goes through the model's Hugging Face template instead: the same conversation gives the same
//! tokens and grows at its end, which is what matching needs; the counts are approximate, and are
//! marked so. Only raw prompts are exact.

use serde_json::{Map, Value};

use super::json::{Node, Object};
use super::media::ContentHasher;
use super::{
    Approximation, Chat, Media, Message, Modality, Part, PromptInput, Request, RequestError,
    fields, tools,
};

const MESSAGES: RequestError = RequestError::WrongShape("messages");
const TOOL_CALLS: RequestError = RequestError::WrongShape("tool_calls");

pub(super) fn parse_chat(body: &Object<'_>) -> Result<Request, RequestError> {
    let given = fields::array(body, "messages")?.ok_or(MESSAGES)?;
    let messages = given.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    let tools = match fields::array(body, "tools")? {
        None | Some([]) => None,
        Some(list) => Some(list.iter().map(tools::chat_tool).collect::<Result<_, _>>()?),
    };
    conversation(body, messages, tools)
}

pub(super) fn parse_generate(body: &Object<'_>) -> Result<Request, RequestError> {
    if body.get("context").is_some_and(|it| !matches!(it, Node::Array(items) if items.is_empty())) {
        return Request::new(body, PromptInput::Stored);
    }
    for field in ["template", "suffix"] {
        if body.get(field).and_then(Node::as_text).is_some_and(|it| !it.is("")) {
            return Err(RequestError::Unsupported(field));
        }
    }
    let text = fields::string(body, "prompt")?.unwrap_or_default();
    if fields::boolean(body, "raw")? == Some(true) {
        let prompt = PromptInput::Text { text, special_tokens: true };
        let mut request = Request::new(body, prompt)?;
        request.media = images(body)?;
        request.output_tokens_max = output_tokens_max(body)?;
        if !request.media.is_empty() {
            request.approximation = Some(Approximation::Media);
        }
        return Ok(request);
    }
    let mut messages = Vec::new();
    let system = fields::string(body, "system")?.unwrap_or_default();
    if !system.is_empty() {
        messages.push(Message::of("system", system));
    }
    let mut message = Message::of("user", text);
    add_images(&mut message, body)?;
    messages.push(message);
    conversation(body, messages, None)
}

fn conversation(
    body: &Object<'_>,
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
) -> Result<Request, RequestError> {
    let mut kwargs = Map::new();
    if let Some(Node::Bool(think)) = body.get("think") {
        kwargs.insert("enable_thinking".to_owned(), Value::Bool(*think));
    }
    let chat = Chat { messages, tools, add_generation_prompt: true, kwargs, ..Chat::default() };
    let mut request = Request::new(body, PromptInput::Chat(Box::new(chat)))?;
    request.output_tokens_max = output_tokens_max(body)?;
    request.approximation = Some(Approximation::ForeignTemplate);
    Ok(request)
}

fn output_tokens_max(body: &Object<'_>) -> Result<Option<u32>, RequestError> {
    let options = fields::object(body, "options")?;
    // A negative count means no limit.
    let tokens = options.map(|options| fields::integer(options, "num_predict")).transpose()?;
    Ok(tokens.flatten().and_then(|tokens| u32::try_from(tokens).ok()))
}

fn message(node: &Node<'_>) -> Result<Message, RequestError> {
    let given = node.as_object().ok_or(MESSAGES)?;
    let role = fields::needed_string(given, "role")?;
    let content = fields::string(given, "content")?.unwrap_or_default();
    let mut message = Message::of(&role, content);
    message.reasoning = fields::string(given, "thinking")?.filter(|it| !it.is_empty());
    message.name = fields::string(given, "tool_name")?;
    for call in fields::array(given, "tool_calls")?.unwrap_or_default() {
        message.tool_calls.push(tool_call(call)?);
    }
    add_images(&mut message, given)?;
    Ok(message)
}

fn tool_call(node: &Node<'_>) -> Result<Value, RequestError> {
    let given = node.as_object().ok_or(TOOL_CALLS)?;
    let function = fields::object(given, "function")?.ok_or(TOOL_CALLS)?;
    let arguments = fields::object(function, "arguments")?.map(Object::to_map).transpose()?;
    let id = fields::string(given, "id")?.unwrap_or_default();
    let name = fields::needed_string(function, "name")?;
    Ok(tools::call(id, name, arguments.unwrap_or_default()))
}

fn add_images(message: &mut Message, given: &Object<'_>) -> Result<(), RequestError> {
    for Media { modality, content_hash } in images(given)? {
        let image = Part::Media { modality, content_hash, extra: Map::new() };
        message.content.get_or_insert_default().push(image);
    }
    Ok(())
}

fn images(given: &Object<'_>) -> Result<Vec<Media>, RequestError> {
    let modality = Modality::Image;
    let hash = |image| Ok(ContentHasher::new(modality).node(image)?.finish());
    let images = fields::array(given, "images")?.unwrap_or_default().iter().map(hash);
    images.map(|hash| hash.map(|content_hash| Media { modality, content_hash })).collect()
}
