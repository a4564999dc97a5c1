//! Chats for models that speak Harmony, read as vLLM reads them: not from what a template would get,
//! but from the request itself.

use ahash::AHashMap;
use serde_json::Value;
use warmpath_template::python_json;

use super::json::{Node, Object};
use super::{Chat, Part, PromptInput, RequestError, chat, fields};
use crate::conversation::merge_inline_system;
use crate::harmony::{Conversation, Effort, Function, Message};

const CONTENT: RequestError = RequestError::WrongShape("content");
const INPUT: RequestError = RequestError::WrongShape("input");
const MESSAGES: RequestError = RequestError::WrongShape("messages");
const TOOL_CALLS: RequestError = RequestError::WrongShape("tool_calls");

/// Tools of OpenAI's that a server runs itself, and describes itself where it does.
const BUILT_IN: [&str; 3] = ["web_search_preview", "code_interpreter", "container"];

/// The prompt of a request of the chat API.
pub(super) fn chat(body: &Object<'_>) -> Result<PromptInput, RequestError> {
    let nodes = fields::array(body, "messages")?.ok_or(MESSAGES)?;
    let given = nodes.iter().map(Given::read).collect::<Result<_, _>>()?;
    let mut conversation = Conversation {
        effort: effort(fields::string(body, "reasoning_effort")?)?,
        functions: functions_of(chat::tools(body)?),
        is_tool_use_off: chat::is_tool_use_off(body),
        named_tool: chat::named_tool(body)?,
        ..Conversation::default()
    };
    add_messages(given, &mut conversation)?;
    chat::prompt(body, PromptInput::Harmony(Box::new(conversation)))
}

/// The prompt of a request of Anthropic's API, which vLLM turns into `chat` first.
pub(super) fn messages(body: &Object<'_>, mut chat: Chat) -> Result<PromptInput, RequestError> {
    // For vLLM the models' template decides, which it does not use otherwise.
    merge_inline_system(&mut chat.messages);
    let given = chat.messages.into_iter().map(Given::of_chat).collect::<Result<_, _>>()?;
    let mut conversation = Conversation {
        // Thinking cannot be switched off: low is the least that there is.
        effort: if chat.is_thinking_off { Effort::Low } else { effort(chat.reasoning_effort)? },
        functions: functions_of(chat.tools),
        is_tool_use_off: chat.is_tool_use_off,
        named_tool: chat.named_tool,
        ..Conversation::default()
    };
    add_messages(given, &mut conversation)?;
    chat::prompt(body, PromptInput::Harmony(Box::new(conversation)))
}

/// The prompt of a request of `/v1/responses`.
pub(super) fn responses(body: &Object<'_>) -> Result<PromptInput, RequestError> {
    let reasoning = fields::object(body, "reasoning")?;
    let given = reasoning.map(|reasoning| fields::string(reasoning, "effort")).transpose()?;
    let mut conversation = Conversation {
        effort: effort(given.flatten())?,
        functions: functions(body)?,
        ..Conversation::default()
    };
    add_items(body, &mut conversation)?;
    Ok(PromptInput::Harmony(Box::new(conversation)))
}

fn effort(name: Option<String>) -> Result<Effort, RequestError> {
    let Some(name) = name else { return Ok(Effort::default()) };
    Effort::from_name(&name).ok_or(RequestError::Unsupported("reasoning_effort"))
}

fn functions_of(tools: Option<Vec<Value>>) -> Vec<Function> {
    tools.into_iter().flatten().filter_map(function_of).collect()
}

/// A tool as it is written for templates.
fn function_of(mut tool: Value) -> Option<Function> {
    let function = tool.get_mut("function")?;
    let description = function.get("description").and_then(Value::as_str).unwrap_or_default();
    Some(Function {
        name: function.get("name")?.as_str()?.to_owned(),
        description: description.to_owned(),
        parameters: function.get_mut("parameters").map(Value::take).filter(|it| !it.is_null()),
    })
}

/// A message of the chat API, or one that is like it.
struct Given {
    role: String,
    content: Option<Content>,
    reasoning: Option<String>,
    calls: Vec<Called>,
    tool_call_id: String,
}

/// A content: the texts of its parts, absent for those that have none.
struct Content {
    texts: Vec<Option<String>>,
    /// Whether all parts are texts by their type.
    is_text: bool,
    /// Whether all are texts or images.
    is_shown: bool,
}

struct Called {
    id: Option<String>,
    function: String,
    arguments: String,
}

impl Content {
    fn read(node: &Node<'_>) -> Result<Self, RequestError> {
        let Node::Array(parts) = node else {
            let text = node.as_text().ok_or(CONTENT)?.string()?;
            return Ok(Self { texts: vec![Some(text)], is_text: true, is_shown: true });
        };
        let texts = Vec::with_capacity(parts.len());
        let mut content = Self { texts, is_text: true, is_shown: true };
        for part in parts {
            let part = part.as_object().ok_or(CONTENT)?;
            let kind = part.get("type").and_then(Node::as_text);
            let is_text = kind.is_some_and(|kind| kind.is("text"));
            content.is_text &= is_text;
            content.is_shown &= is_text || kind.is_some_and(|kind| kind.is("image_url"));
            content.texts.push(fields::string(part, "text")?);
        }
        Ok(content)
    }

    fn of_parts(parts: Vec<Part>) -> Self {
        let texts = parts.into_iter().map(Part::into_text).collect();
        Self { texts, is_text: true, is_shown: true }
    }

    /// All as one text; `None` where no part has any.
    fn joined(self) -> Option<String> {
        let mut texts = self.texts.into_iter().flatten();
        let first = texts.next()?;
        Some(texts.fold(first, |joined, text| joined + &text))
    }

    /// A text for each part, at least one.
    fn each(self) -> Vec<String> {
        let mut texts: Vec<String> =
            self.texts.into_iter().map(Option::unwrap_or_default).collect();
        if texts.is_empty() {
            texts.push(String::new());
        }
        texts
    }
}

impl Given {
    fn read(node: &Node<'_>) -> Result<Self, RequestError> {
        let given = node.as_object().ok_or(MESSAGES)?;
        let calls = fields::array(given, "tool_calls")?.unwrap_or_default();
        Ok(Self {
            role: fields::needed_string(given, "role")?,
            content: given.get("content").map(Content::read).transpose()?,
            reasoning: chat::reasoning(given)?,
            calls: calls.iter().map(Called::read).collect::<Result<_, _>>()?,
            tool_call_id: fields::string(given, "tool_call_id")?.unwrap_or_default(),
        })
    }

    /// A message that another API's was turned into.
    fn of_chat(message: super::Message) -> Result<Self, RequestError> {
        Ok(Self {
            content: message.content.map(Content::of_parts),
            reasoning: message.reasoning,
            calls: message.tool_calls.iter().map(Called::of_chat).collect::<Result<_, _>>()?,
            tool_call_id: text_at(message.tool_call_id.as_ref()),
            role: message.role,
        })
    }

    fn is_instruction(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer")
    }

    /// Whether it has parts that vLLM joins to one text or loses, by rules that are not known here.
    fn may_lose(&self) -> bool {
        let Some(content) = &self.content else { return false };
        match self.role.as_str() {
            "tool" => !content.is_shown,
            "user" => false,
            _ => !content.is_text && (self.is_instruction() || !self.calls.is_empty()),
        }
    }
}

fn text_at(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Called {
    /// A call that another API's was turned into: its arguments are an object there, and a text here.
    fn of_chat(call: &Value) -> Result<Self, RequestError> {
        let arguments = call.pointer("/function/arguments").ok_or(TOOL_CALLS)?;
        Ok(Self {
            id: call.get("id").and_then(Value::as_str).map(str::to_owned),
            function: text_at(call.pointer("/function/name")),
            arguments: python_json(arguments, true).ok_or(TOOL_CALLS)?,
        })
    }

    fn read(node: &Node<'_>) -> Result<Self, RequestError> {
        let given = node.as_object().ok_or(TOOL_CALLS)?;
        let function = fields::object(given, "function")?.ok_or(TOOL_CALLS)?;
        Ok(Self {
            id: fields::string(given, "id")?,
            function: fields::string(function, "name")?.unwrap_or_default(),
            arguments: fields::string(function, "arguments")?.unwrap_or_default(),
        })
    }
}

/// Adds the chat's messages; a leading system or developer message is the instructions.
fn add_messages(given: Vec<Given>, conversation: &mut Conversation) -> Result<(), RequestError> {
    // Where it joins parts of which some are no texts, vLLM takes or loses them all by the message's other
    // fields.
    if given.iter().any(Given::may_lose) {
        return Err(RequestError::Unsupported("content"));
    }
    let mut given = given.into_iter().peekable();
    if let Some(first) = given.next_if(Given::is_instruction) {
        conversation.instructions = first.content.and_then(Content::joined);
    }
    let given: Vec<Given> = given.collect();
    let calls = given.iter().flat_map(|message| &message.calls);
    let names: AHashMap<String, String> =
        calls.filter_map(|call| Some((call.id.clone()?, call.function.clone()))).collect();
    for message in given {
        add_message(message, &names, &mut conversation.messages)?;
    }
    Ok(())
}

fn add_message(
    given: Given,
    names: &AHashMap<String, String>,
    messages: &mut Vec<Message>,
) -> Result<(), RequestError> {
    let is_instruction = given.is_instruction();
    let Given { role, content, reasoning, calls, tool_call_id } = given;
    let thought = reasoning.filter(|text| !text.is_empty()).map(Message::Analysis);
    match role.as_str() {
        "assistant" if !calls.is_empty() => {
            let said = content.and_then(Content::joined).filter(|text| !text.is_empty());
            messages.extend(said.map(Message::Commentary));
            messages.extend(thought);
            messages.extend(
                calls.into_iter().map(|call| Message::Call {
                    function: call.function,
                    arguments: call.arguments,
                }),
            );
        }
        "assistant" => {
            messages.extend(thought);
            let texts = content.map(Content::each).unwrap_or_default();
            if texts.first().is_some_and(|text| !text.is_empty()) {
                messages.push(Message::Final(texts));
            }
        }
        "tool" => messages.push(Message::Returned {
            function: names.get(&tool_call_id).cloned().unwrap_or_default(),
            output: content.and_then(Content::joined).unwrap_or_default(),
        }),
        "user" => {
            let texts = content.map_or_else(|| vec![String::new()], Content::each);
            messages.push(Message::User(texts));
        }
        _ if is_instruction => {
            messages.extend(content.and_then(Content::joined).map(Message::Developer));
        }
        _ => return Err(RequestError::WrongShape("role")),
    }
    Ok(())
}

/// The functions of `/v1/responses`. Where all tools are the server's own, the model is told of none.
fn functions(body: &Object<'_>) -> Result<Vec<Function>, RequestError> {
    const TOOLS: RequestError = RequestError::WrongShape("tools");
    const UNKNOWN: RequestError = RequestError::Unsupported("tools");
    let mut functions = Vec::new();
    let mut has_other = false;
    for tool in fields::array(body, "tools")?.unwrap_or_default() {
        let tool = tool.as_object().ok_or(TOOLS)?;
        let kind = tool.get("type").and_then(Node::as_text).ok_or(TOOLS)?;
        if kind.is("function") {
            let parameters = tool.get("parameters").map(Node::to_value).transpose()?;
            functions.push(Function {
                name: fields::needed_string(tool, "name")?,
                description: fields::string(tool, "description")?.unwrap_or_default(),
                parameters,
            });
        } else if !BUILT_IN.iter().any(|name| kind.is(name)) {
            has_other = true;
            if !kind.is("mcp") {
                return Err(UNKNOWN);
            }
        }
    }
    if has_other && !functions.is_empty() { Err(UNKNOWN) } else { Ok(functions) }
}

fn add_items(body: &Object<'_>, conversation: &mut Conversation) -> Result<(), RequestError> {
    if body.get("previous_input_messages").is_some() {
        return Err(RequestError::Unsupported("previous_input_messages"));
    }
    conversation.instructions = fields::string(body, "instructions")?;
    let mut items = match body.get("input").ok_or(INPUT)? {
        Node::String(text) => {
            conversation.messages.push(Message::User(vec![text.string()?]));
            return Ok(());
        }
        Node::Array(items) => items.as_slice(),
        _ => return Err(INPUT),
    };
    if let ([first, rest @ ..], None) = (items, &conversation.instructions) {
        let first = first.as_object().ok_or(INPUT)?;
        let role = fields::string(first, "role")?;
        if matches!(role.as_deref(), Some("system" | "developer")) {
            let content = first.get("content").map(Content::read).transpose()?;
            conversation.instructions = content.and_then(Content::joined);
            items = rest;
        }
    }
    let mut names = AHashMap::new();
    for item in items {
        add_item(item.as_object().ok_or(INPUT)?, &mut names, &mut conversation.messages)?;
    }
    Ok(())
}

fn add_item(
    item: &Object<'_>,
    names: &mut AHashMap<String, String>,
    messages: &mut Vec<Message>,
) -> Result<(), RequestError> {
    let kind = fields::string(item, "type")?;
    match kind.as_deref() {
        None | Some("message") => {
            let role = fields::needed_string(item, "role")?;
            let content = Content::read(item.get("content").ok_or(INPUT)?)?;
            match role.as_str() {
                "system" | "developer" => {
                    let text = content.joined().filter(|text| !text.is_empty());
                    messages.extend(text.map(Message::Developer));
                }
                "assistant" => messages.push(Message::Final(content.each())),
                "user" => messages.push(Message::User(content.each())),
                _ => return Err(RequestError::WrongShape("role")),
            }
        }
        Some("function_call") => {
            let function = fields::needed_string(item, "name")?;
            names.insert(fields::needed_string(item, "call_id")?, function.clone());
            let arguments = fields::needed_string(item, "arguments")?;
            messages.push(Message::Call { function, arguments });
        }
        Some("function_call_output") => {
            let id = fields::needed_string(item, "call_id")?;
            let function = names.get(&id).cloned().ok_or(INPUT)?;
            let output = fields::needed_string(item, "output")?;
            messages.push(Message::Returned { function, output });
        }
        Some("reasoning") => {
            let content = fields::array(item, "content")?.unwrap_or_default();
            let text =
                |part: &Node<'_>| fields::needed_string(part.as_object().ok_or(CONTENT)?, "text");
            let texts: Vec<String> = content.iter().map(text).collect::<Result<_, _>>()?;
            if !texts.is_empty() {
                messages.push(Message::Analysis(texts.join("\n")));
            }
        }
        Some(_) => return Err(RequestError::Unsupported("input")),
    }
    Ok(())
}
