//! OpenAI's `/v1/responses`: a string, or items that become messages as vLLM makes them.
//!
//! Reasoning, text and calls that follow each other are one assistant's message. What an earlier
//! response holds (`previous_response_id`) only the engine knows.

use serde_json::{Map, Value, json};

use super::json::{Node, Object};
use super::tools::Definition;
use super::{
    Chat, ChatFormat, Message, Part, PromptInput, Request, RequestError, chat, fields, harmony,
};

const INPUT: RequestError = RequestError::WrongShape("input");
const TOOLS: RequestError = RequestError::WrongShape("tools");

pub(super) fn parse(body: &Object<'_>, format: ChatFormat) -> Result<Request, RequestError> {
    if let Some(previous) = fields::string(body, "previous_response_id")? {
        let mut request = Request::new(body, PromptInput::Stored)?;
        request.session = Some(previous);
        return Ok(request);
    }
    if body.get("prompt").is_some() {
        return Err(RequestError::Unsupported("prompt"));
    }
    let prompt = match format {
        ChatFormat::Template => chat::prompt(body, PromptInput::Chat(Box::new(chat_of(body)?)))?,
        ChatFormat::Harmony => harmony::responses(body)?,
    };
    let mut request = Request::new(body, prompt)?;
    request.is_opaque = matches!(body.get("background"), Some(Node::Bool(true)));
    request.output_tokens_max = fields::output_tokens(body, &["max_output_tokens"]);
    Ok(request)
}

fn chat_of(body: &Object<'_>) -> Result<Chat, RequestError> {
    let input = body.get("input").ok_or(INPUT)?;
    let is_continued = is_continued(input);
    let mut chat = Chat {
        tools: tools(body)?,
        is_tool_use_off: chat::is_tool_use_off(body),
        add_generation_prompt: !is_continued,
        continue_final_message: is_continued,
        kwargs: fields::template_kwargs(body)?,
        // This API asks the tokenizer for its special tokens, whatever the template writes.
        special_tokens: true,
        ..Chat::default()
    };
    if let Some(reasoning) = fields::object(body, "reasoning")? {
        chat.reasoning_effort = fields::string(reasoning, "effort")?;
    }
    let instructions = fields::string(body, "instructions")?.unwrap_or_default();
    if !instructions.is_empty() {
        chat.messages.push(Message::of("system", instructions));
    }
    match input {
        Node::String(text) => chat.messages.push(Message::of("user", text.string()?)),
        Node::Array(items) => {
            let mut messages = Vec::new();
            for item in items {
                add_item(&mut messages, item.as_object().ok_or(INPUT)?)?;
            }
            chat.messages.append(&mut messages);
        }
        _ => return Err(INPUT),
    }
    Ok(chat)
}

/// Whether the last item is an assistant's, and not finished.
fn is_continued(input: &Node<'_>) -> bool {
    let Some(last) = input.as_array().and_then(<[Node<'_>]>::last).and_then(Node::as_object) else {
        return false;
    };
    let is_message = match last.get("type") {
        None => true,
        Some(kind) => kind.as_text().is_some_and(|kind| kind.is("message") || kind.is("reasoning")),
    };
    let status = last.get("status").and_then(Node::as_text);
    is_message && status.is_some_and(|it| it.is("in_progress") || it.is("incomplete"))
}

fn add_item(messages: &mut Vec<Message>, item: &Object<'_>) -> Result<(), RequestError> {
    let kind = match item.get("type") {
        None => None,
        Some(Node::String(kind)) => Some(kind.decode()?),
        Some(_) => return Err(INPUT),
    };
    match kind.as_deref() {
        Some("function_call") => {
            let name = called_name(item)?;
            let arguments = item.get("arguments").and_then(Node::as_text).ok_or(INPUT)?;
            add_call(messages, item, name, chat::arguments(arguments)?)
        }
        Some("custom_tool_call") => {
            let input = fields::string(item, "input")?.unwrap_or_default();
            let name = fields::needed_string(item, "name")?;
            add_call(messages, item, name, json!({ "input": input }))
        }
        Some("reasoning") => {
            let reasoning = reasoning(item)?;
            match last_assistant(messages).filter(|last| last.reasoning.is_none()) {
                Some(last) => last.reasoning = Some(reasoning),
                None => messages.push(Message {
                    reasoning: Some(reasoning),
                    role: "assistant".to_owned(),
                    ..Message::default()
                }),
            }
            Ok(())
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            messages.push(Message {
                role: "tool".to_owned(),
                content: item.get("output").map(chat::content).transpose()?,
                tool_call_id: item.given("call_id").map(Node::to_value).transpose()?,
                ..Message::default()
            });
            Ok(())
        }
        None | Some("message") => add_message(messages, item),
        Some(_) => Err(RequestError::Unsupported("input")),
    }
}

/// A function's name, with its namespace before it as the tool list has it.
fn called_name(item: &Object<'_>) -> Result<String, RequestError> {
    let name = fields::needed_string(item, "name")?;
    match fields::string(item, "namespace")? {
        Some(namespace) if !namespace.is_empty() => Ok(flat_name(&namespace, &name)),
        _ => Ok(name),
    }
}

fn flat_name(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

fn last_assistant(messages: &mut [Message]) -> Option<&mut Message> {
    messages.last_mut().filter(|last| last.role == "assistant")
}

/// A call, its fields in the order in which this API's handler writes them.
fn add_call(
    messages: &mut Vec<Message>,
    item: &Object<'_>,
    name: String,
    arguments: Value,
) -> Result<(), RequestError> {
    let mut function = Map::new();
    function.insert("name".to_owned(), Value::String(name));
    function.insert("arguments".to_owned(), arguments);
    let mut call = Map::new();
    call.insert("id".to_owned(), Value::String(fields::needed_string(item, "call_id")?));
    call.insert("function".to_owned(), Value::Object(function));
    call.insert("type".to_owned(), json!("function"));
    let call = Value::Object(call);
    match last_assistant(messages) {
        Some(last) => last.tool_calls.push(call),
        None => messages.push(Message {
            role: "assistant".to_owned(),
            tool_calls: vec![call],
            ..Message::default()
        }),
    }
    Ok(())
}

/// The first text of a reasoning item, or else of its summary.
fn reasoning(item: &Object<'_>) -> Result<String, RequestError> {
    if item.get("encrypted_content").is_some() {
        return Err(RequestError::Unsupported("encrypted_content"));
    }
    let content = fields::array(item, "content")?.unwrap_or_default();
    let summary = fields::array(item, "summary")?.ok_or(INPUT)?;
    let Some(first) = content.first().or_else(|| summary.first()) else {
        return Ok(String::new());
    };
    fields::needed_string(first.as_object().ok_or(INPUT)?, "text")
}

fn add_message(messages: &mut Vec<Message>, item: &Object<'_>) -> Result<(), RequestError> {
    let role = fields::needed_string(item, "role")?;
    let content = item.get("content").ok_or(INPUT)?;
    if role != "assistant" {
        messages.push(Message {
            content: Some(content_of(content)?),
            tools: (role == "developer").then_some(Value::Null),
            role,
            ..Message::default()
        });
        return Ok(());
    }
    // Only the first text of an assistant's message is kept.
    let text = match content {
        Node::String(text) => text.string()?,
        Node::Array(parts) => {
            let first = parts.first().and_then(Node::as_object).ok_or(INPUT)?;
            fields::needed_string(first, "text")?
        }
        _ => return Err(INPUT),
    };
    match last_assistant(messages).filter(|last| last.content.is_none()) {
        Some(last) => last.content = Some(vec![Part::text(text)]),
        None => messages.push(Message::of("assistant", text)),
    }
    Ok(())
}

/// Content, in which images have a level of detail.
fn content_of(node: &Node<'_>) -> Result<Vec<Part>, RequestError> {
    let Node::Array(nodes) = node else { return chat::content(node) };
    let mut parts = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(mut part) = chat::part(node)? else { continue };
        if let (Part::Media { extra, .. }, Some(given)) = (&mut part, node.as_object()) {
            let is_input = given.get("type").and_then(Node::as_text);
            if is_input.is_some_and(|kind| kind.is("input_image")) {
                extra.entry("detail").or_insert_with(|| json!("auto"));
            }
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Functions, namespaces of functions and custom tools; other kinds are not shown to the model.
fn tools(body: &Object<'_>) -> Result<Option<Vec<Value>>, RequestError> {
    let given = fields::array(body, "tools")?.unwrap_or_default();
    if given.is_empty() {
        return Ok(None);
    }
    let mut tools = Vec::with_capacity(given.len());
    for tool in given {
        let tool = tool.as_object().ok_or(TOOLS)?;
        let kind = tool.get("type").and_then(Node::as_text).ok_or(TOOLS)?;
        if kind.is("function") {
            tools.push(Definition::read(tool, "parameters")?.write(None));
        } else if kind.is("namespace") {
            let namespace = fields::needed_string(tool, "name")?;
            for inner in fields::array(tool, "tools")?.ok_or(TOOLS)? {
                let inner = inner.as_object().ok_or(TOOLS)?;
                if inner.get("type").and_then(Node::as_text).is_some_and(|it| it.is("function")) {
                    let mut definition = Definition::read(inner, "parameters")?;
                    definition.name = flat_name(&namespace, &definition.name);
                    tools.push(definition.write(None));
                }
            }
        } else if kind.is("custom") {
            tools.push(custom_tool(tool)?);
        }
    }
    Ok(Some(tools))
}

/// A tool of free text is shown as a function of one string.
fn custom_tool(tool: &Object<'_>) -> Result<Value, RequestError> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "input": {
                "type": "string",
                "description": "The freeform text payload for this tool.",
            },
        },
        "required": ["input"],
        "additionalProperties": false,
    });
    let Value::Object(parameters) = parameters else { return Err(TOOLS) };
    let definition = Definition {
        name: fields::needed_string(tool, "name")?,
        description: fields::string(tool, "description")?,
        parameters: Some(parameters),
        strict: None,
        defer_loading: None,
    };
    Ok(definition.write(None))
}
