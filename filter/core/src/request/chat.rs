//! OpenAI's `/v1/chat/completions`, and the messages that other APIs borrow from it.
//!
//! What vLLM's request models take is taken, what they refuse is an error (the engine refuses the
//! request too), and what they drop is dropped: of a message, only the fields of [`Message`] reach
//! a template; of tool calls and content parts, unknown fields do, behind the known ones.

use serde_json::{Map, Value};

use super::json::{Node, Object, Text, read};
use super::media::ContentHasher;
use super::{
    Chat, ChatFormat, Message, Modality, Part, PromptInput, Request, RequestError, fields, harmony,
    token_ids, tools,
};

const CONTENT: RequestError = RequestError::WrongShape("content");
const TOOL_CALLS: RequestError = RequestError::WrongShape("tool_calls");

/// Fields that some content part defines; those of a part that are not among them are its extras.
const PART_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

pub(super) fn parse(body: &Object<'_>, format: ChatFormat) -> Result<Request, RequestError> {
    let mut request = match format {
        ChatFormat::Template => {
            if body.get("chat_template").is_some() {
                return Err(RequestError::OwnTemplate);
            }
            let mut request =
                Request::new(body, prompt(body, PromptInput::Chat(Box::new(chat(body)?)))?)?;
            request.truncation = fields::truncation(body)?;
            request
        }
        ChatFormat::Harmony => Request::new(body, harmony::chat(body)?)?,
    };
    request.output_tokens_max =
        fields::output_tokens(body, &["max_completion_tokens", "max_tokens"]);
    request.adapter = fields::adapter(body)?;
    request.is_opaque = fields::is_opaque(body);
    // vLLM gives back a chat's messages with log-probabilities, whether these are asked for or not.
    let is_echoed = fields::boolean(body, "echo")? == Some(true)
        && !matches!(body.given("top_logprobs"), Some(Node::Null));
    request.cache_read_tokens_max = if is_echoed { Some(0) } else { fields::cache_read_max(body) };
    Ok(request)
}

/// `chat`, or the tokens that come with it.
pub(super) fn prompt(body: &Object<'_>, chat: PromptInput) -> Result<PromptInput, RequestError> {
    Ok(match forwarded_tokens(body, chat.has_media())? {
        Some(tokens) => PromptInput::Tokens { tokens, media: Vec::new() },
        None => chat,
    })
}

fn chat(body: &Object<'_>) -> Result<Chat, RequestError> {
    let messages = fields::array(body, "messages")?.ok_or(RequestError::WrongShape("messages"))?;
    Ok(Chat {
        messages: messages.iter().map(message).collect::<Result<_, _>>()?,
        tools: tools(body)?,
        is_tool_use_off: is_tool_use_off(body),
        named_tool: named_tool(body)?,
        documents: documents(body)?,
        add_generation_prompt: fields::boolean(body, "add_generation_prompt")?.unwrap_or(true),
        continue_final_message: fields::boolean(body, "continue_final_message")?.unwrap_or(false),
        reasoning_effort: fields::string(body, "reasoning_effort")?,
        is_thinking_off: false,
        kwargs: fields::template_kwargs(body)?,
        special_tokens: fields::boolean(body, "add_special_tokens")?.unwrap_or(false),
    })
}

/// The tools, as they are written for templates.
pub(super) fn tools(body: &Object<'_>) -> Result<Option<Vec<Value>>, RequestError> {
    match fields::array(body, "tools")? {
        // vLLM refuses an empty list; others take it for none.
        None | Some([]) => Ok(None),
        Some(list) => list.iter().map(tools::chat_tool).collect::<Result<_, _>>().map(Some),
    }
}

/// Whether `tool_choice` forbids tools.
pub(super) fn is_tool_use_off(body: &Object<'_>) -> bool {
    matches!(body.get("tool_choice"), Some(Node::String(it)) if it.is("none"))
}

/// The only tool that `tool_choice` allows.
pub(super) fn named_tool(body: &Object<'_>) -> Result<Option<String>, RequestError> {
    let Some(Node::Object(choice)) = body.get("tool_choice") else { return Ok(None) };
    let Some(function) = choice.get("function").and_then(Node::as_object) else { return Ok(None) };
    fields::string(function, "name")
}

/// Tokens that come with the messages; the engine takes them instead, unless it needs the messages for media
/// or for an echo. The prefill stage of a disaggregated fleet passes them on; SGLang and TensorRT-LLM have
/// fields for them.
fn forwarded_tokens(body: &Object<'_>, has_media: bool) -> Result<Option<Vec<u32>>, RequestError> {
    let params = fields::object(body, "kv_transfer_params")?;
    let of_params = params.and_then(|params| params.get("prompt_token_ids"));
    let given = || ["input_ids", "prompt_token_ids"].into_iter().find_map(|field| body.get(field));
    let Some(ids) = of_params.or_else(given) else { return Ok(None) };
    if has_media || fields::boolean(body, "echo")? == Some(true) {
        return Ok(None);
    }
    token_ids(ids).map(Some).ok_or(RequestError::WrongShape("prompt_token_ids"))
}

/// A list of objects from strings to strings.
fn documents(body: &Object<'_>) -> Result<Option<Value>, RequestError> {
    const SHAPE: RequestError = RequestError::WrongShape("documents");
    let Some(documents) = fields::array(body, "documents")? else { return Ok(None) };
    for document in documents {
        let mut members = document.as_object().ok_or(SHAPE)?.members();
        if !members.all(|(_, value)| value.as_text().is_some()) {
            return Err(SHAPE);
        }
    }
    documents.iter().map(Node::to_value).collect::<Result<_, _>>().map(Some)
}

/// A message as OpenAI writes it, with the engines' extensions.
pub(super) fn message(node: &Node<'_>) -> Result<Message, RequestError> {
    let given = node.as_object().ok_or(RequestError::WrongShape("messages"))?;
    let role = fields::needed_string(given, "role")?;
    let is_assistant = role == "assistant";
    let reasoning = reasoning(given)?;
    let tool_calls = if is_assistant { tool_calls(given)? } else { Vec::new() };
    let tool_call_id = match given.given("tool_call_id") {
        Some(id @ (Node::Null | Node::String(_))) if role == "tool" => Some(id.to_value()?),
        _ => None,
    };
    let tools = match given.get("tools") {
        _ if role != "developer" => None,
        Some(tools) => Some(tools::developer_tools(tools)?),
        None => Some(Value::Null),
    };
    Ok(Message {
        content: given.get("content").map(content).transpose()?,
        tool_calls,
        reasoning: reasoning.filter(|_| is_assistant),
        tool_call_id,
        name: fields::string(given, "name")?,
        task: fields::string(given, "task")?,
        tools,
        is_inline_system: false,
        role,
    })
}

/// An assistant's reasoning. The older name counts where the newer is missing.
pub(super) fn reasoning(given: &Object<'_>) -> Result<Option<String>, RequestError> {
    match fields::string(given, "reasoning")? {
        None => fields::string(given, "reasoning_content"),
        reasoning => Ok(reasoning),
    }
}

/// A message's content: a string, or a list of parts.
pub(super) fn content(node: &Node<'_>) -> Result<Vec<Part>, RequestError> {
    match node {
        Node::String(text) => Ok(vec![Part::text(text.string()?)]),
        Node::Array(parts) => parts.iter().filter_map(|it| part(it).transpose()).collect(),
        _ => Err(CONTENT),
    }
}

/// A part; `None` for one that the engine skips.
pub(super) fn part(node: &Node<'_>) -> Result<Option<Part>, RequestError> {
    let given = match node {
        Node::String(text) => return Ok(Some(Part::text(text.string()?))),
        Node::Object(given) => given,
        _ => return Err(CONTENT),
    };
    let kind = match given.get("type") {
        // An item with an identifier of its own goes by its fields, not by its type.
        _ if given.get("uuid").is_some() => None,
        Some(Node::String(kind)) => Some(kind.decode()?),
        Some(_) => return Err(CONTENT),
        None => None,
    };
    let Some(kind) = kind else { return untyped(given) };
    let text = |text: &'static str| match given.get(text) {
        Some(Node::String(text)) => Ok(Some(text.string()?)),
        None => Ok(None),
        Some(_) => Err(CONTENT),
    };
    let text = match kind.as_ref() {
        "text" => text("text")?,
        "refusal" => text("refusal")?,
        "input_text" | "output_text" => Some(text("text")?.ok_or(CONTENT)?),
        "thinking" => {
            let text = text("thinking")?.ok_or(CONTENT)?;
            let is_closed = fields::boolean(given, "closed")?.unwrap_or(true);
            return Ok(Some(Part::Thinking { text, is_closed, extra: extra(given)? }));
        }
        "tool_reference" => {
            return Ok(Some(Part::ToolReference { name: text("name")?.ok_or(CONTENT)? }));
        }
        "input_image" => return media(given, Modality::Image, "image_url"),
        "image_url" | "image_embeds" | "audio_url" | "input_audio" | "audio_embeds"
        | "video_url" | "video_embeds" => return untyped(given),
        "prompt_embeds" => return Err(RequestError::Unsupported("prompt_embeds")),
        _ => return Err(CONTENT),
    };
    let Some(text) = text else { return Ok(None) };
    Ok(Some(Part::Text { text, extra: extra(given)? }))
}

/// A part known by its fields: media, as a rule.
fn untyped(given: &Object<'_>) -> Result<Option<Part>, RequestError> {
    for (field, modality) in [
        ("image_url", Modality::Image),
        ("image_embeds", Modality::Image),
        ("audio_embeds", Modality::Audio),
        ("video_embeds", Modality::Video),
        ("audio_url", Modality::Audio),
        ("input_audio", Modality::Audio),
        ("video_url", Modality::Video),
    ] {
        if given.given(field).is_some() {
            return media(given, modality, field);
        }
    }
    if given.given("prompt_embeds").is_some() {
        return Err(RequestError::Unsupported("prompt_embeds"));
    }
    Err(CONTENT)
}

fn media(
    given: &Object<'_>,
    modality: Modality,
    field: &str,
) -> Result<Option<Part>, RequestError> {
    let mut hasher = ContentHasher::new(modality);
    if let Some(identifier) = given.get("uuid") {
        // The client vouches that the identifier stands for the content.
        hasher.str("uuid:").node(identifier)?;
    } else {
        match given.get(field) {
            Some(Node::Object(source)) if field.ends_with("_url") => {
                hasher.text(source.get("url").and_then(Node::as_text).ok_or(CONTENT)?)?
            }
            Some(source) => hasher.node(source)?,
            None => return Err(CONTENT),
        };
    }
    let content_hash = hasher.finish();
    Ok(Some(Part::Media { modality, content_hash, extra: extra(given)? }))
}

fn extra(given: &Object<'_>) -> Result<Map<String, Value>, RequestError> {
    let mut extra = Map::new();
    for (key, value) in given.members() {
        if !PART_FIELDS.iter().any(|field| key.is(field)) {
            extra.insert(key.string()?, value.to_value()?);
        }
    }
    Ok(extra)
}

fn tool_calls(message: &Object<'_>) -> Result<Vec<Value>, RequestError> {
    let calls = fields::array(message, "tool_calls")?.unwrap_or_default();
    calls.iter().map(tool_call).collect()
}

/// A call of a function, its fields in the order that the request model has them.
fn tool_call(node: &Node<'_>) -> Result<Value, RequestError> {
    let given = node.as_object().ok_or(TOOL_CALLS)?;
    let function = given.get("function").and_then(Node::as_object).ok_or(TOOL_CALLS)?;
    // vLLM refuses calls without a type or an identifier, or with arguments that are an object; others do not.
    if !given.get("type").is_none_or(|kind| kind.as_text().is_some_and(|it| it.is("function"))) {
        return Err(TOOL_CALLS);
    }
    let arguments = match function.get("arguments") {
        Some(Node::Object(arguments)) => Value::Object(arguments.to_map()?),
        _ => arguments(text_of_call(function, "arguments")?)?,
    };
    let mut called = Map::new();
    called.insert("arguments".to_owned(), arguments);
    called.insert("name".to_owned(), Value::String(text_of_call(function, "name")?.string()?));
    add_rest(&mut called, function)?;
    let mut call = Map::new();
    if given.get("id").is_some() {
        call.insert("id".to_owned(), Value::String(text_of_call(given, "id")?.string()?));
    }
    call.insert("function".to_owned(), Value::Object(called));
    call.insert("type".to_owned(), Value::from("function"));
    add_rest(&mut call, given)?;
    Ok(Value::Object(call))
}

fn text_of_call<'a>(object: &Object<'a>, field: &str) -> Result<Text<'a>, RequestError> {
    object.get(field).and_then(Node::as_text).ok_or(TOOL_CALLS)
}

/// Adds the members that `map` does not have yet, behind the others.
pub(super) fn add_rest(
    map: &mut Map<String, Value>,
    given: &Object<'_>,
) -> Result<(), RequestError> {
    let known = map.len();
    for (key, value) in given.members() {
        let key = key.string()?;
        if !map.keys().take(known).any(|name| *name == key) {
            map.insert(key, value.to_value()?);
        }
    }
    Ok(())
}

/// The arguments of a call, which templates get as an object. What is no object, or no JSON, is an
/// empty one: it is history that the client cannot change any more.
pub(super) fn arguments(text: Text<'_>) -> Result<Value, RequestError> {
    let text = text.decode()?;
    match read(&text) {
        Ok(Node::Object(arguments)) => arguments.to_map().map(Value::Object),
        Ok(_) | Err(RequestError::NotJson) => Ok(Value::Object(Map::new())),
        Err(error) => Err(error),
    }
}

impl Part {
    /// Plain text.
    pub(crate) fn text(text: String) -> Self {
        Self::Text { text, extra: Map::new() }
    }

    /// Its text; `None` for a part that is none.
    pub(crate) fn into_text(self) -> Option<String> {
        match self {
            Self::Text { text, .. } | Self::Thinking { text, .. } => Some(text),
            Self::Media { .. } | Self::ToolReference { .. } => None,
        }
    }
}
