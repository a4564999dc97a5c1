//! A chat's messages -> turns, as Mistral's library puts them together before it writes any.
//!
//! What one speaker says in several messages in a row is one turn; results stand in the order of their
//! calls; system messages are turns of their own, or one text, by the version.

use ahash::AHashMap;
use serde_json::Value;
use warmpath_bundle::MistralVersion;

use super::Unwritable;
use crate::request::{Media, Message, Part, parsed_json};

/// Between texts of one turn.
const SEPARATOR: &str = "\n\n";
/// The most characters of a call's identifier: vLLM keeps the last ones.
const CALL_ID_CHARS_MAX: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    System,
    User,
    Assistant,
    Tool,
}

/// A call of a function.
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: Value,
}

pub(super) enum Chunk {
    Text(String),
    Thoughts { text: String, is_closed: bool },
    Media(Media),
}

/// What is said in a turn.
pub(super) enum Content {
    Text(String),
    /// With something else than text in it.
    Chunks(Vec<Chunk>),
}

pub(super) struct Turn {
    pub(super) speaker: Speaker,
    pub(super) content: Content,
    /// The assistant's calls.
    pub(super) calls: Vec<Call>,
    /// The call whose result a tool gives.
    pub(super) call_id: String,
}

/// A chat's turns.
pub(super) struct Turns {
    pub(super) list: Vec<Turn>,
    /// All system messages, where they are no turns; `None` without any.
    pub(super) system: Option<String>,
}

/// A message.
struct Said {
    speaker: Speaker,
    chunks: Vec<Chunk>,
    calls: Vec<Call>,
    call_id: String,
}

/// Whether a message is empty. Several empty texts count as one that is there.
fn is_none(chunks: &[Chunk]) -> bool {
    match chunks {
        [] => true,
        [Chunk::Text(text)] => text.is_empty(),
        _ => false,
    }
}

pub(super) fn of(messages: Vec<Message>, version: MistralVersion) -> Result<Turns, Unwritable> {
    let has_system_turns = version >= MistralVersion::V7;
    // Between the texts of one message.
    let inner = if version >= MistralVersion::V15 { "" } else { SEPARATOR };
    let mut turns = Turns { list: Vec::with_capacity(messages.len() + 1), system: None };
    let mut called: Vec<String> = Vec::new();
    let mut said =
        messages.into_iter().map(said).collect::<Result<Vec<_>, _>>()?.into_iter().peekable();
    while let Some(first) = said.next() {
        let speaker = first.speaker;
        let mut run = vec![first];
        run.extend(std::iter::from_fn(|| said.next_if(|next| next.speaker == speaker)));
        match speaker {
            Speaker::System if !has_system_turns => {
                for message in run.into_iter().filter(|message| !is_none(&message.chunks)) {
                    let Content::Text(text) = joined([message.chunks], inner) else {
                        return Err(Unwritable("media in a system prompt"));
                    };
                    add_system(&mut turns.system, &text);
                }
            }
            Speaker::System => turns.list.extend(each(speaker, run, inner)),
            Speaker::Tool => {
                if version >= MistralVersion::V11 {
                    sort_results(&mut run, &called);
                }
                called.clear();
                turns.list.extend(each(speaker, run, inner));
            }
            Speaker::User => turns.list.push(turn(speaker, run, inner)),
            Speaker::Assistant => {
                let turn = turn(speaker, run, inner);
                called.extend(turn.calls.iter().map(|call| call.id.clone()));
                turns.list.push(turn);
            }
        }
    }
    let starts_with_user = turns.list.first().is_some_and(|turn| turn.speaker == Speaker::User);
    if turns.list.is_empty() || (!has_system_turns && !starts_with_user) {
        turns.list.insert(0, turn(Speaker::User, Vec::new(), inner));
    }
    Ok(turns)
}

fn add_system(system: &mut Option<String>, text: &str) {
    match system {
        Some(system) => {
            system.push_str(SEPARATOR);
            system.push_str(text);
        }
        None => *system = Some(text.to_owned()),
    }
}

/// Results in the order of their calls; those of none at the end.
fn sort_results(results: &mut [Said], called: &[String]) {
    let given: Vec<String> = results.iter().map(|result| result.call_id.clone()).collect();
    let (called, given) = (last_places(called), last_places(&given));
    results.sort_by_cached_key(|result| {
        let place = |places: &AHashMap<&str, usize>| places.get(result.call_id.as_str()).copied();
        (place(&called).unwrap_or(usize::MAX), place(&given))
    });
}

/// Where each identifier stands last.
fn last_places(ids: &[String]) -> AHashMap<&str, usize> {
    ids.iter().enumerate().map(|(at, id)| (id.as_str(), at)).collect()
}

/// A turn of each message.
fn each(speaker: Speaker, run: Vec<Said>, inner: &str) -> impl Iterator<Item = Turn> {
    run.into_iter().map(move |said| turn(speaker, vec![said], inner))
}

/// Makes one turn of a speaker's messages.
fn turn(speaker: Speaker, run: Vec<Said>, inner: &str) -> Turn {
    let call_id = run.first().map(|first| first.call_id.clone()).unwrap_or_default();
    let mut contents = Vec::with_capacity(run.len());
    let mut calls = Vec::new();
    for said in run {
        contents.push(said.chunks);
        calls.extend(said.calls);
    }
    Turn { speaker, content: joined(contents, inner), calls, call_id }
}

/// The contents of several messages as one; `inner` stands between the texts of one of them.
fn joined(contents: impl IntoIterator<Item = Vec<Chunk>>, inner: &str) -> Content {
    let mut chunks = Vec::new();
    let mut text = String::new();
    for content in contents {
        let mut separator = SEPARATOR;
        for chunk in content {
            match chunk {
                Chunk::Text(more) if more.is_empty() => {}
                Chunk::Text(more) => {
                    if !text.is_empty() {
                        text.push_str(separator);
                    }
                    text.push_str(&more);
                    separator = inner;
                }
                other => {
                    if !text.is_empty() {
                        chunks.push(Chunk::Text(std::mem::take(&mut text)));
                    }
                    chunks.push(other);
                }
            }
        }
    }
    if chunks.is_empty() {
        return Content::Text(text);
    }
    if !text.is_empty() {
        chunks.push(Chunk::Text(text));
    }
    Content::Chunks(chunks)
}

/// A message as the library takes it.
fn said(message: Message) -> Result<Said, Unwritable> {
    let speaker = match message.role.as_str() {
        "system" | "developer" => Speaker::System,
        "user" => Speaker::User,
        "assistant" => Speaker::Assistant,
        "tool" => Speaker::Tool,
        _ => return Err(Unwritable("the role")),
    };
    let reasoning = message.reasoning.filter(|_| speaker == Speaker::Assistant);
    let thoughts = reasoning.map(|text| Chunk::Thoughts { text, is_closed: true });
    let mut chunks: Vec<Chunk> = thoughts.into_iter().collect();
    match message.content {
        Some(parts) => {
            for part in parts {
                chunks.push(chunk(part)?);
            }
        }
        None if speaker == Speaker::Assistant => {}
        None => return Err(Unwritable("a message without content")),
    }
    let call_id = message.tool_call_id.as_ref().and_then(Value::as_str).unwrap_or_default();
    Ok(Said {
        speaker,
        chunks,
        calls: message.tool_calls.into_iter().map(call).collect::<Result<_, _>>()?,
        call_id: shortened(call_id),
    })
}

fn chunk(part: Part) -> Result<Chunk, Unwritable> {
    match part {
        Part::Text { text, .. } => Ok(Chunk::Text(text)),
        Part::Thinking { text, is_closed, .. } => Ok(Chunk::Thoughts { text, is_closed }),
        Part::Media { modality, content_hash, .. } => {
            Ok(Chunk::Media(Media { modality, content_hash }))
        }
        Part::ToolReference { .. } => Err(Unwritable("a reference to a tool")),
    }
}

fn call(mut call: Value) -> Result<Call, Unwritable> {
    let text = |pointer: &str| call.pointer(pointer).and_then(Value::as_str);
    let id = shortened(text("/id").unwrap_or_default());
    let name = text("/function/name").ok_or(Unwritable("a call without a name"))?.to_owned();
    let arguments = call.pointer_mut("/function/arguments").map(Value::take).unwrap_or_default();
    Ok(Call { id, name, arguments })
}

/// The end of an identifier, as much as the library takes.
fn shortened(id: &str) -> String {
    let skipped = id.chars().count().saturating_sub(CALL_ID_CHARS_MAX);
    id.chars().skip(skipped).collect()
}

/// A result's text as JSON where it is any.
pub(super) fn parsed(text: String) -> Result<Value, Unwritable> {
    if text.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let parsed =
        parsed_json(&text).map_err(|_| Unwritable("a result beyond what JSON carries exactly"))?;
    Ok(parsed.unwrap_or(Value::String(text)))
}
