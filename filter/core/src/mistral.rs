//! Prompts of Mistral models that come with a tekken.json.
//!
//! vLLM leaves their chats to Mistral's own library; no template has a say. In: a [`Chat`] as all APIs share
//! it, and the [`MistralFormat`] of the model. Out: [`Piece`]s, and the media in them.
//!
//! What is done here is what vLLM 0.32 and mistral-common 1.13 do; `integration/vectors/vllm/mistral.jsonl`
//! holds it to that. What they refuse is an error here only where there is nothing to write.

mod turns;

use serde_json::{Map, Value, json};
use warmpath_bundle::{MistralFormat, MistralVersion};
use warmpath_template::python_json;

use crate::config::ChatConfig;
use crate::conversation::{merge_inline_system, shown_tools};
use crate::piece::Piece as AnyPiece;
use crate::request::{Chat, Media, Modality};
use turns::{Call, Chunk, Content, Speaker, Turn};

/// A piece, its special token by its text.
pub type Piece = AnyPiece<'static, &'static str>;

/// The chat has something that the format has no place for, and the engine refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Mistral's format has no place for {0}")]
pub struct Unwritable(&'static str);

/// A chat as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Its pieces, the start of the sequence first.
    pub pieces: Vec<Piece>,
    /// The media in it, in order.
    pub media: Vec<Media>,
}

/// Writes `chat`. The assistant's turn is not opened: the user's end is where it begins.
///
/// # Errors
/// [`Unwritable`].
pub fn write(
    mut chat: Chat,
    format: &MistralFormat,
    config: &ChatConfig,
) -> Result<Written, Unwritable> {
    let version = format.version;
    if !chat.kwargs.is_empty() {
        return Err(Unwritable("a template's variables"));
    }
    // Without a template, vLLM takes the model for one that wants its system prompt first.
    merge_inline_system(&mut chat.messages);
    let preface = Preface {
        tools: shown_tools(&mut chat, config).filter(|tools| !tools.is_empty()),
        effort: effort(&chat, format, config)?,
    };
    let is_continued = chat.continue_final_message;
    let turns = turns::of(chat.messages, version)?;
    let is_user = |turn: &Turn| turn.speaker == Speaker::User;
    let first_user = turns.list.iter().position(is_user);
    let last_user = turns.list.iter().rposition(is_user);
    let shows_preface = if version >= MistralVersion::V13 { first_user } else { last_user };
    let last = turns.list.len().saturating_sub(1);
    let mut writer = Writer { version, written: Written::default() };
    writer.mark("<s>");
    for (at, turn) in turns.list.into_iter().enumerate() {
        match turn.speaker {
            Speaker::System => writer.system(turn.content),
            Speaker::User => {
                if Some(at) == shows_preface {
                    writer.preface(&preface)?;
                }
                let system = turns.system.as_deref().filter(|_| Some(at) == last_user);
                writer.user(turn.content, system);
            }
            Speaker::Assistant => writer.assistant(turn, is_continued && at == last)?,
            Speaker::Tool => writer.result(turn)?,
        }
    }
    Ok(writer.written)
}

/// What stands before a turn of the user.
struct Preface {
    tools: Option<Vec<Value>>,
    effort: Option<String>,
}

/// The effort that the prompt names.
fn effort(
    chat: &Chat,
    format: &MistralFormat,
    config: &ChatConfig,
) -> Result<Option<String>, Unwritable> {
    let Some(efforts) = &format.efforts else { return Ok(None) };
    let configured = config.template_kwargs.get("reasoning_effort").and_then(Value::as_str);
    let asked = match chat.is_thinking_off {
        true => Some("none"),
        false => chat.reasoning_effort.as_deref().or(configured),
    };
    let effort = asked.unwrap_or(&efforts.default);
    let is_known = efforts.values.iter().any(|known| known == effort);
    is_known.then(|| Some(effort.to_owned())).ok_or(Unwritable("the reasoning effort"))
}

struct Writer {
    version: MistralVersion,
    written: Written,
}

impl Writer {
    fn mark(&mut self, mark: &'static str) {
        self.written.pieces.push(Piece::Mark(mark));
    }

    fn text(&mut self, text: impl Into<String>) {
        self.written.pieces.push(Piece::Text(text.into().into()));
    }

    fn json(&mut self, value: &Value) -> Result<(), Unwritable> {
        self.text(python_json(value, false).ok_or(Unwritable("values that deep"))?);
        Ok(())
    }

    fn preface(&mut self, preface: &Preface) -> Result<(), Unwritable> {
        if let Some(tools) = &preface.tools {
            self.mark("[AVAILABLE_TOOLS]");
            self.json(&tools.iter().map(tool).collect())?;
            self.mark("[/AVAILABLE_TOOLS]");
        }
        if let Some(effort) = &preface.effort {
            self.mark("[MODEL_SETTINGS]");
            self.json(&json!({ "reasoning_effort": effort }))?;
            self.mark("[/MODEL_SETTINGS]");
        }
        Ok(())
    }

    fn system(&mut self, content: Content) {
        self.mark("[SYSTEM_PROMPT]");
        self.content(content);
        self.mark("[/SYSTEM_PROMPT]");
    }

    fn user(&mut self, content: Content, system: Option<&str>) {
        self.mark("[INST]");
        match (content, system) {
            (Content::Text(text), Some(system)) => self.text(format!("{system}\n\n{text}")),
            (Content::Text(text), None) => self.text(text),
            (Content::Chunks(mut chunks), system) => {
                if let Some(system) = system {
                    self.text(format!("{system}\n\n"));
                }
                if let [before @ .., Chunk::Media(media)] = chunks.as_slice()
                    && media.modality == Modality::Image
                    && before.iter().all(|chunk| matches!(chunk, Chunk::Text(_)))
                {
                    chunks.rotate_right(1);
                }
                self.content(Content::Chunks(chunks));
            }
        }
        self.mark("[/INST]");
    }

    fn assistant(&mut self, turn: Turn, is_continued: bool) -> Result<(), Unwritable> {
        match turn.content {
            Content::Text(text) => self.text(text.trim_end_matches(' ')),
            content @ Content::Chunks(_) => self.content(content),
        }
        if self.version <= MistralVersion::V7 && !turn.calls.is_empty() {
            self.mark("[TOOL_CALLS]");
            self.json(&turn.calls.into_iter().map(call).collect())?;
        } else {
            for call in turn.calls {
                self.mark("[TOOL_CALLS]");
                self.text(call.name);
                if self.version == MistralVersion::V11 {
                    self.mark("[CALL_ID]");
                    self.text(call.id);
                }
                self.mark("[ARGS]");
                self.json(&call.arguments)?;
            }
        }
        if !is_continued {
            self.mark("</s>");
        }
        Ok(())
    }

    fn result(&mut self, turn: Turn) -> Result<(), Unwritable> {
        self.mark("[TOOL_RESULTS]");
        match (self.version, turn.content) {
            (MistralVersion::V3, Content::Text(text)) => {
                self.json(&json!({ "content": turns::parsed(text)?, "call_id": turn.call_id }))?;
            }
            (MistralVersion::V7 | MistralVersion::V11, content) => {
                self.text(turn.call_id);
                self.mark("[TOOL_CONTENT]");
                self.content(content);
            }
            (_, content) => self.content(content),
        }
        self.mark("[/TOOL_RESULTS]");
        Ok(())
    }

    fn content(&mut self, content: Content) {
        let chunks = match content {
            Content::Text(text) => return self.text(text),
            Content::Chunks(chunks) => chunks,
        };
        for chunk in chunks {
            match chunk {
                Chunk::Text(text) => self.text(text),
                Chunk::Thoughts { text, is_closed } => {
                    self.mark("[THINK]");
                    self.text(text);
                    if is_closed {
                        self.mark("[/THINK]");
                    }
                }
                Chunk::Media(media) => {
                    match media.modality {
                        Modality::Audio => {
                            self.mark("[BEGIN_AUDIO]");
                            self.mark("[AUDIO]");
                        }
                        Modality::Image | Modality::Video => self.mark("[IMG]"),
                    }
                    self.written.media.push(media);
                }
            }
        }
    }
}

/// A tool as the library writes it.
fn tool(tool: &Value) -> Value {
    let field = |name: &str| tool.pointer(name).filter(|value| !value.is_null()).cloned();
    json!({
        "type": "function",
        "function": {
            "name": field("/function/name"),
            "description": field("/function/description").unwrap_or_else(|| "".into()),
            "parameters": field("/function/parameters").unwrap_or_else(|| json!({})),
        },
    })
}

/// A call as older versions write it.
fn call(call: Call) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), call.name.into());
    fields.insert("arguments".to_owned(), call.arguments);
    if !matches!(call.id.as_str(), "" | "null") {
        fields.insert("id".to_owned(), call.id.into());
    }
    fields.into()
}
