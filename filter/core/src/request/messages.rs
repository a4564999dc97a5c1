//! Anthropic's `/v1/messages`, turned into a chat as vLLM turns it.
//!
//! System prompts have a field of their own here, and may stand between the other messages too
//! ([`Message::is_inline_system`]); tool calls and their results are parts of messages.

use serde_json::{Map, Value};

use super::json::{Node, Object};
use super::media::ContentHasher;
use super::tools::Definition;
use super::{
    Chat, ChatFormat, Message, Modality, Part, PromptInput, Request, RequestError, chat, fields,
    harmony,
};

const CONTENT: RequestError = RequestError::WrongShape("content");
const SYSTEM: RequestError = RequestError::WrongShape("system");

/// Start of a system block that a coding client sends; it changes with each request and the engine
/// drops it.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

pub(super) fn parse(body: &Object<'_>, format: ChatFormat) -> Result<Request, RequestError> {
    let mut chat = Chat {
        add_generation_prompt: true,
        kwargs: fields::template_kwargs(body)?,
        tools: tools(body)?,
        ..Chat::default()
    };
    if let Some(output) = fields::object(body, "output_config")? {
        chat.reasoning_effort = fields::string(output, "effort")?;
    }
    if let Some(thinking) = fields::object(body, "thinking")? {
        chat.is_thinking_off = thinking.get("type").is_some_and(|kind| is(kind, "disabled"));
    }
    if let Some(choice) = fields::object(body, "tool_choice")? {
        chat.is_tool_use_off = choice.get("type").is_some_and(|kind| is(kind, "none"));
    }
    if let Some(system) = body.get("system") {
        let text = system_text(system, false)?;
        if !text.is_empty() {
            chat.messages.push(Message::of("system", text));
        }
    }
    let messages = fields::array(body, "messages")?.ok_or(RequestError::WrongShape("messages"))?;
    for message in messages {
        add_message(&mut chat.messages, message)?;
    }
    let prompt = match format {
        ChatFormat::Template => chat::prompt(body, PromptInput::Chat(Box::new(chat)))?,
        ChatFormat::Harmony => harmony::messages(body, chat)?,
    };
    let mut request = Request::new(body, prompt)?;
    request.output_tokens_max = fields::output_tokens(body, &["max_tokens"]);
    if let Some(metadata) = fields::object(body, "metadata")? {
        request.session = fields::string(metadata, "user_id").unwrap_or_default();
    }
    Ok(request)
}

fn is(node: &Node<'_>, word: &str) -> bool {
    node.as_text().is_some_and(|text| text.is(word))
}

fn tools(body: &Object<'_>) -> Result<Option<Vec<Value>>, RequestError> {
    let Some(tools) = fields::array(body, "tools")? else { return Ok(None) };
    tools.iter().map(tool).collect::<Result<_, _>>().map(Some)
}

fn tool(node: &Node<'_>) -> Result<Value, RequestError> {
    const TOOLS: RequestError = RequestError::WrongShape("tools");
    let given = node.as_object().ok_or(TOOLS)?;
    let mut definition = Definition::read(given, "input_schema")?;
    let schema = definition.parameters.as_mut().ok_or(TOOLS)?;
    if !schema.contains_key("type") {
        schema.insert("type".to_owned(), Value::from("object"));
    }
    Ok(definition.write(None))
}

/// A system prompt's text. Blocks that start as the billing header are left out; of an inline
/// message that is plain text, that goes for the whole.
fn system_text(node: &Node<'_>, is_inline: bool) -> Result<String, RequestError> {
    let blocks = match node {
        Node::String(text) => {
            let text = text.string()?;
            return Ok(if is_inline && text.starts_with(BILLING_HEADER) {
                String::new()
            } else {
                text
            });
        }
        Node::Array(blocks) => blocks,
        _ => return Err(SYSTEM),
    };
    let mut joined = String::new();
    for block in blocks {
        let block = block.as_object().ok_or(SYSTEM)?;
        let kind = block.get("type").ok_or(SYSTEM)?;
        if is(kind, "tool_addition") || is(kind, "tool_removal") {
            return Err(RequestError::Unsupported("tool_addition"));
        }
        let text = fields::string(block, "text")?.unwrap_or_default();
        if is(kind, "text") && !text.starts_with(BILLING_HEADER) {
            joined.push_str(&text);
        }
    }
    Ok(joined)
}

fn add_message(messages: &mut Vec<Message>, node: &Node<'_>) -> Result<(), RequestError> {
    let given = node.as_object().ok_or(RequestError::WrongShape("messages"))?;
    let role = fields::needed_string(given, "role")?;
    let content = given.get("content").ok_or(CONTENT)?;
    match role.as_str() {
        "system" => {
            let text = system_text(content, true)?;
            if !text.is_empty() {
                messages.push(Message { is_inline_system: true, ..Message::of("system", text) });
            }
            return Ok(());
        }
        "user" | "assistant" => {}
        _ => return Err(RequestError::WrongShape("role")),
    }
    let message = match content {
        Node::String(text) => Message::of(&role, text.string()?),
        Node::Array(blocks) => {
            let mut turn = Turn { role: &role, ..Turn::default() };
            for block in blocks {
                turn.block(messages, block.as_object().ok_or(CONTENT)?)?;
            }
            turn.finish()
        }
        _ => return Err(CONTENT),
    };
    // A user's turn of tool results has nothing left to say.
    if message.content.is_some() || role != "user" {
        messages.push(message);
    }
    Ok(())
}

/// A message while its blocks are read.
#[derive(Default)]
struct Turn<'r> {
    role: &'r str,
    parts: Vec<Part>,
    tool_calls: Vec<Value>,
    reasoning: Option<String>,
}

impl Turn<'_> {
    fn block(
        &mut self,
        messages: &mut Vec<Message>,
        block: &Object<'_>,
    ) -> Result<(), RequestError> {
        let kind = block.get("type").and_then(Node::as_text).ok_or(CONTENT)?.decode()?;
        match kind.as_ref() {
            "text" => {
                let text = fields::string(block, "text")?.unwrap_or_default();
                if !text.is_empty() {
                    self.parts.push(Part::text(text));
                }
            }
            "image" => {
                if let Some(source) = fields::object(block, "source")? {
                    self.parts.push(image(source)?);
                }
            }
            "thinking" => {
                if let Some(thinking) = fields::string(block, "thinking")? {
                    self.reasoning.get_or_insert_default().push_str(&thinking);
                }
            }
            "tool_use" => self.tool_calls.push(tool_call(block)?),
            "tool_result" if self.role == "user" => tool_result(messages, block)?,
            "tool_result" => {
                let result = match block.get("content") {
                    None => String::new(),
                    Some(Node::String(text)) => text.string()?,
                    Some(_) => return Err(RequestError::Unsupported("tool_result")),
                };
                self.parts.push(Part::text(format!("Tool result: {result}")));
            }
            "redacted_thinking" | "tool_reference" => {}
            _ => return Err(CONTENT),
        }
        Ok(())
    }

    fn finish(self) -> Message {
        Message {
            role: self.role.to_owned(),
            content: (!self.parts.is_empty()).then_some(self.parts),
            tool_calls: self.tool_calls,
            reasoning: self.reasoning,
            ..Message::default()
        }
    }
}

fn tool_call(block: &Object<'_>) -> Result<Value, RequestError> {
    let input = fields::object(block, "input")?.map(Object::to_map).transpose()?;
    let name = fields::string(block, "name")?.unwrap_or_default();
    let Some(id) = fields::string(block, "id")?.filter(|id| !id.is_empty()) else {
        // The engine makes one up from the time.
        return Err(RequestError::Unsupported("tool_use"));
    };
    Ok(super::tools::call(id, name, input.unwrap_or_default()))
}

/// A tool's answer becomes a message of its own, its images one of the user's.
fn tool_result(messages: &mut Vec<Message>, block: &Object<'_>) -> Result<(), RequestError> {
    let mut texts = Vec::new();
    let mut images = Vec::new();
    let mut references = Vec::new();
    match block.get("content") {
        None => {}
        Some(Node::String(text)) => texts.push(text.string()?),
        Some(Node::Array(items)) => {
            for item in items.iter().filter_map(Node::as_object) {
                let Some(kind) = item.get("type") else { continue };
                if is(kind, "text") {
                    texts.push(fields::string(item, "text")?.unwrap_or_default());
                } else if is(kind, "image") {
                    let source = fields::object(item, "source")?;
                    images.push(image(source.unwrap_or(&Object::default()))?);
                } else if is(kind, "tool_reference") {
                    let name = match fields::string(item, "tool_name")? {
                        Some(name) if !name.is_empty() => Some(name),
                        _ => fields::string(item, "name")?,
                    };
                    let name = name.filter(|name| !name.is_empty());
                    references.extend(name.map(|name| Part::ToolReference { name }));
                }
            }
        }
        Some(_) => return Err(CONTENT),
    }
    let id = Value::from(fields::string(block, "tool_use_id")?.unwrap_or_default());
    let answer = |content| Message {
        role: "tool".to_owned(),
        content: Some(content),
        tool_call_id: Some(id.clone()),
        ..Message::default()
    };
    messages.push(answer(vec![Part::text(texts.join("\n"))]));
    if !images.is_empty() {
        messages.push(Message { content: Some(images), ..Message::of("user", String::new()) });
    }
    if !references.is_empty() {
        messages.push(answer(references));
    }
    Ok(())
}

/// An image, hashed as the data URL that the engine makes of it.
fn image(source: &Object<'_>) -> Result<Part, RequestError> {
    let mut hasher = ContentHasher::new(Modality::Image);
    let add = |hasher: &mut ContentHasher, field: &str, default: &str| match source.get(field) {
        Some(Node::String(text)) => hasher.text(*text).map(|_| ()),
        Some(_) => Err(CONTENT),
        None => {
            hasher.str(default);
            Ok(())
        }
    };
    if source.get("type").is_some_and(|kind| is(kind, "url")) {
        add(&mut hasher, "url", "")?;
    } else {
        hasher.str("data:");
        add(&mut hasher, "media_type", "image/jpeg")?;
        hasher.str(";base64,");
        add(&mut hasher, "data", "")?;
    }
    Ok(Part::Media { modality: Modality::Image, content_hash: hasher.finish(), extra: Map::new() })
}

impl Message {
    /// A message of plain text.
    pub(crate) fn of(role: &str, text: String) -> Self {
        Self { role: role.to_owned(), content: Some(vec![Part::text(text)]), ..Self::default() }
    }
}
