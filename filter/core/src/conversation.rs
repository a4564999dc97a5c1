//! A request's chat -> what the engine hands to the model's template.
//!
//! In: a [`Chat`] in the form that all APIs share, and what is known of the model's template. Out:
//! the messages, tools and variables of one rendering. Between a request and its template an
//! engine rearranges: content becomes a string or a list of parts, whichever the template reads;
//! media becomes placeholders; roles that the template does not know become others; variables are
//! merged from several places. What is done here is what vLLM 0.32 does; the recorded
//! conversations in `integration/vectors/vllm` hold it to that. `llama_cpp` has what that server does
//! otherwise.
//!
//! Linear in the chat; strings are moved, not copied, where they stay whole.

pub(crate) mod llama_cpp;

use serde_json::{Map, Value};
use warmpath_template::ContentFormat;

use crate::config::{ChatConfig, Engine};
use crate::request::{Chat, Media, Message, Modality, Part};

/// Start of a line that a coding client puts before its system prompt and changes with each
/// request; the engine drops it.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Variables that are arguments of the rendering itself in Python, and reach no template.
const RENDERING_ARGUMENTS: [&str; 10] = [
    "chat_template",
    "conversation",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
];

/// What an engine knows of a model's template when it prepares a conversation for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateTraits {
    /// Whether content is a string or a list of parts.
    pub content_format: ContentFormat,
    /// Whether the template mentions the role `developer`.
    pub has_developer_role: bool,
    /// Whether the template refuses system messages that are not the first.
    pub is_system_first: bool,
    /// Whether the engine tidies nothing for it: no header is dropped, no tool's texts are joined.
    pub is_verbatim: bool,
    /// The reasoning effort that stands for no thinking.
    pub thinking_off_effort: &'static str,
    /// What stands for an image, a sound and a video in a string.
    pub placeholders: Placeholders,
}

/// Texts that stand for media in a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placeholders {
    /// For an image.
    pub image: String,
    /// For a sound.
    pub audio: String,
    /// For a video.
    pub video: String,
}

impl Placeholders {
    /// The text for `modality`.
    #[must_use]
    pub fn of(&self, modality: Modality) -> &str {
        match modality {
            Modality::Image => &self.image,
            Modality::Audio => &self.audio,
            Modality::Video => &self.video,
        }
    }
}

/// The inputs of one rendering.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The messages: an array of objects.
    pub messages: Value,
    /// Tool definitions: an array of objects.
    pub tools: Option<Value>,
    /// Documents for retrieval templates.
    pub documents: Option<Value>,
    /// Whether the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is continued instead of closed.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub kwargs: Map<String, Value>,
    /// What the rendering ends with instead of the last message, where the engine does that by itself.
    pub begun_answer: Option<String>,
    /// The media in the messages, in order.
    pub media: Vec<Media>,
}

/// Prepares `chat` for a template with `traits`, under the model's `config`.
#[must_use]
pub fn prepare(mut chat: Chat, traits: &TemplateTraits, config: &ChatConfig) -> Conversation {
    if traits.is_system_first {
        merge_inline_system(&mut chat.messages);
    }
    let begun_answer = match config.engine {
        Engine::Vllm => None,
        Engine::LlamaCpp => llama_cpp::adapt(&mut chat),
    };
    let mut variables = variables(&mut chat, traits, config);
    let tools = variables.shift_remove("tools");
    let documents = variables.shift_remove("documents");
    variables.retain(|name, _| !RENDERING_ARGUMENTS.contains(&name.as_str()));
    let mut media = Vec::new();
    let format = config.content_format.unwrap_or(traits.content_format);
    let messages = chat.messages.into_iter();
    let mut messages: Vec<Map<String, Value>> =
        messages.map(|message| to_template(message, format, traits, &mut media)).collect();
    let is_developer =
        |message: &Map<String, Value>| message.get("role") == Some(&"developer".into());
    if !traits.has_developer_role && messages.iter().any(is_developer) {
        for message in messages.iter_mut().filter(|message| is_developer(message)) {
            message.insert("role".to_owned(), "system".into());
            message.shift_remove("tools");
        }
        consolidate_system(&mut messages);
    }
    Conversation {
        messages: messages.into_iter().map(Value::Object).collect(),
        tools,
        documents,
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: variables,
        begun_answer,
        media,
    }
}

/// Puts the text of system messages that stand between others behind the leading one's.
pub(crate) fn merge_inline_system(messages: &mut Vec<Message>) {
    if !messages.iter().any(|message| message.is_inline_system) {
        return;
    }
    let mut joined = String::new();
    messages.retain_mut(|message| {
        if message.role != "system" {
            return true;
        }
        for part in message.content.iter().flatten() {
            if let Part::Text { text, .. } = part {
                joined.push_str(text);
            }
        }
        false
    });
    messages.insert(0, Message::of("system", joined));
}

/// Takes the tools that the engine shows for this request.
pub(crate) fn shown_tools(chat: &mut Chat, config: &ChatConfig) -> Option<Vec<Value>> {
    let mut tools = chat.tools.take();
    if let (Some(tools), Some(name), true) =
        (&mut tools, &chat.named_tool, config.shows_named_tool_only)
    {
        tools.retain(|tool| tool.pointer("/function/name").is_some_and(|it| it == name.as_str()));
    }
    tools.filter(|_| !(chat.is_tool_use_off && config.hides_unused_tools))
}

/// The template's variables: the configured defaults, then the tools, then the request's own, then
/// what its fields say. Null and "auto" are no values, except among the defaults.
fn variables(chat: &mut Chat, traits: &TemplateTraits, config: &ChatConfig) -> Map<String, Value> {
    let mut variables = config.template_kwargs.clone();
    if let Some(tools) = shown_tools(chat, config) {
        variables.insert("tools".to_owned(), Value::Array(tools));
    }
    let effort = if chat.is_thinking_off {
        Some(traits.thinking_off_effort.to_owned())
    } else {
        chat.reasoning_effort.take()
    };
    let names_thinking = chat.kwargs.contains_key("enable_thinking");
    let own = std::mem::take(&mut chat.kwargs);
    let is_value = |value: &Value| !value.is_null() && value != "auto";
    variables.extend(own.into_iter().filter(|(_, value)| is_value(value)));
    if let Some(documents) = chat.documents.take() {
        variables.insert("documents".to_owned(), documents);
    }
    if let Some(effort) = effort {
        if !names_thinking {
            variables.insert("enable_thinking".to_owned(), (effort != "none").into());
        }
        variables.insert("reasoning_effort".to_owned(), effort.into());
    }
    // The request's fields have these two.
    variables.shift_remove("add_generation_prompt");
    variables.shift_remove("continue_final_message");
    variables
}

/// A message as the template sees it, its fields in the engine's order.
fn to_template(
    mut message: Message,
    format: ContentFormat,
    traits: &TemplateTraits,
    media: &mut Vec<Media>,
) -> Map<String, Value> {
    let mut parts = message.content.take().unwrap_or_default();
    if message.role == "system" && !traits.is_verbatim {
        drop_billing_header(&mut parts);
    }
    media.extend(parts.iter().filter_map(|part| match part {
        Part::Media { modality, content_hash, .. } => {
            Some(Media { modality: *modality, content_hash: *content_hash })
        }
        _ => None,
    }));
    let joins_texts = message.role == "tool" && !traits.is_verbatim;
    let is_text = |part: &Part| matches!(part, Part::Text { .. } | Part::Thinking { .. });
    let content = match format {
        ContentFormat::String => Value::String(joined(parts, &traits.placeholders)),
        // Few templates read a tool's answer in parts.
        ContentFormat::OpenAi if joins_texts && parts.iter().all(is_text) => {
            let texts: Vec<String> = parts.into_iter().filter_map(Part::into_text).collect();
            Value::String(texts.join("\n"))
        }
        ContentFormat::OpenAi => Value::Array(parts.into_iter().map(part_value).collect()),
    };
    let mut fields = Map::new();
    let is_assistant = message.role == "assistant";
    fields.insert("role".to_owned(), Value::String(message.role));
    fields.insert("content".to_owned(), content);
    if is_assistant && !message.tool_calls.is_empty() {
        fields.insert("tool_calls".to_owned(), Value::Array(message.tool_calls));
    }
    if let Some(reasoning) = message.reasoning.filter(|_| is_assistant) {
        fields.insert("reasoning".to_owned(), Value::String(reasoning.clone()));
        fields.insert("reasoning_content".to_owned(), Value::String(reasoning));
    }
    let rest = [
        ("tool_call_id", message.tool_call_id),
        ("name", message.name.map(Value::String)),
        ("task", message.task.map(Value::String)),
        ("tools", message.tools),
    ];
    for (field, value) in rest {
        if let Some(value) = value {
            fields.insert(field.to_owned(), value);
        }
    }
    fields
}

/// Leaves the header's line out of texts that start with it, and the text if there is nothing else.
fn drop_billing_header(parts: &mut Vec<Part>) {
    parts.retain_mut(|part| {
        let Part::Text { text, .. } = part else { return true };
        if !text.starts_with(BILLING_HEADER) {
            return true;
        }
        let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
        *text = rest.to_owned();
        !text.is_empty()
    });
}

/// Content as a string: placeholders that the text does not have itself, then the texts.
fn joined(parts: Vec<Part>, placeholders: &Placeholders) -> String {
    let mut modalities = Vec::new();
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part::Media { modality, .. } => modalities.push(modality),
            Part::Text { text, .. }
            | Part::Thinking { text, .. }
            | Part::ToolReference { name: text } => texts.push(text),
        }
    }
    texts.retain(|text| !text.is_empty());
    let text = match <[String; 1]>::try_from(texts) {
        Ok([text]) => text,
        Err(texts) => texts.join("\n"),
    };
    let mut pieces: Vec<&str> = Vec::new();
    let mut seen: Vec<Modality> = Vec::new();
    for modality in &modalities {
        if seen.contains(modality) {
            continue;
        }
        seen.push(*modality);
        let placeholder = placeholders.of(*modality);
        if !placeholder.is_empty() {
            let items = modalities.iter().filter(|it| *it == modality).count();
            let given = text.matches(placeholder).count();
            pieces.extend(std::iter::repeat_n(placeholder, items.saturating_sub(given)));
        }
    }
    if pieces.is_empty() {
        return text;
    }
    if !text.is_empty() {
        pieces.push(&text);
    }
    pieces.join("\n")
}

fn part_value(part: Part) -> Value {
    let mut fields = Map::new();
    let kind = match &part {
        Part::Text { .. } | Part::Thinking { .. } => "text",
        Part::Media { modality, .. } => match modality {
            Modality::Image => "image",
            Modality::Audio => "audio",
            Modality::Video => "video",
        },
        Part::ToolReference { .. } => "tool_reference",
    };
    fields.insert("type".to_owned(), kind.into());
    match part {
        Part::Text { text, extra } | Part::Thinking { text, extra, .. } => {
            fields.insert("text".to_owned(), text.into());
            fields.extend(extra);
        }
        Part::Media { extra, .. } => fields.extend(extra),
        Part::ToolReference { name } => {
            fields.insert("name".to_owned(), name.into());
        }
    }
    Value::Object(fields)
}

/// Makes one system message of all, at the front, unless the only one is there already.
fn consolidate_system(messages: &mut Vec<Map<String, Value>>) {
    let is_system = |message: &Map<String, Value>| message.get("role") == Some(&"system".into());
    if !messages.iter().skip(1).any(is_system) {
        return;
    }
    let mut texts: Vec<String> = Vec::new();
    messages.retain_mut(|message| {
        if !is_system(message) {
            return true;
        }
        let text = match message.shift_remove("content") {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => {
                let parts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                parts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        };
        texts.extend(Some(text).filter(|text| !text.is_empty()));
        false
    });
    let mut merged = Map::new();
    merged.insert("role".to_owned(), "system".into());
    merged.insert("content".to_owned(), texts.join("\n\n").into());
    messages.insert(0, merged);
}

#[cfg(test)]
mod tests;
