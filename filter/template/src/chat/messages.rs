//! Messages as the template sees them, and the cut of `continue_final_message`.

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::MessageRules;
use crate::error::{ConversationError, RenderError};
use crate::py::text::{self, Ends};
use crate::value::{PyDict, to_value};

/// The names that a message's reasoning goes by; the first is the standard one.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message: the request's fields, and changes to them.
pub(super) struct Message<'a> {
    fields: Vec<(&'a str, Field<'a>)>,
}

enum Field<'a> {
    Given(&'a Json),
    Changed(Json),
}

impl Field<'_> {
    fn json(&self) -> &Json {
        match self {
            Field::Given(json) => json,
            Field::Changed(json) => json,
        }
    }
}

impl<'a> Message<'a> {
    pub(super) fn new(given: &'a Map<String, Json>, rules: MessageRules) -> Self {
        let mut fields = Vec::with_capacity(given.len() + 2);
        let is_kept = |value: &Json| rules == MessageRules::V4 || !value.is_null();
        let kept = given.iter().filter(|(_, value)| is_kept(value));
        fields.extend(kept.map(|(name, value)| (name.as_str(), Field::Given(value))));
        let mut message = Self { fields };
        if rules == MessageRules::V5 {
            message.alias_reasoning(given);
        }
        message
    }

    /// `{"thinking": r, **message, "reasoning_content": r}`, where the message has reasoning by any name.
    fn alias_reasoning(&mut self, given: &'a Map<String, Json>) {
        let found =
            REASONING_FIELDS.iter().find_map(|name| given.get(*name).filter(|v| !v.is_null()));
        let Some(reasoning) = found else {
            return;
        };
        if self.position("thinking").is_none() {
            self.fields.insert(0, ("thinking", Field::Given(reasoning)));
        }
        match self.position("reasoning_content").and_then(|at| self.fields.get_mut(at)) {
            Some((_, field)) => *field = Field::Given(reasoning),
            None => self.fields.push(("reasoning_content", Field::Given(reasoning))),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(field, _)| *field == name)
    }

    pub(super) fn to_value(&self, depth_max: usize) -> Option<Value> {
        // The list of messages and the message itself are two levels.
        let depth = depth_max.checked_sub(2)?;
        let fields = self.fields.iter();
        let fields =
            fields.map(|(name, field)| Some((Value::from(*name), to_value(field.json(), depth)?)));
        Some(Value::from_object(PyDict::new(fields.collect::<Option<Vec<_>>>()?)))
    }
}

/// What transformers appends to the final message to find its end in the prompt again.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the tag to the last text of the final message; gives that text.
pub(super) fn tag_final_message(
    messages: &mut [Message<'_>],
    source: &str,
) -> Result<String, RenderError> {
    let nothing = RenderError::Conversation(ConversationError::NothingToContinue);
    let last = messages.last_mut().ok_or_else(|| nothing.clone())?;
    let at = last.position("content").ok_or_else(|| nothing.clone())?;
    let (_, field) = last.fields.get_mut(at).ok_or_else(|| nothing.clone())?;
    if !source.contains("content") {
        return Err(nothing);
    }
    match field.json() {
        Json::String(text) => {
            let text = text.clone();
            *field = Field::Changed(Json::String(format!("{text}{CONTINUE_TAG}")));
            Ok(text)
        }
        Json::Array(parts) => {
            let mut parts = parts.clone();
            for part in parts.iter_mut().rev() {
                let Some(slot) = part.get_mut("text") else {
                    continue;
                };
                let text = slot.as_str().ok_or_else(|| nothing.clone())?.to_owned();
                *slot = Json::String(format!("{text}{CONTINUE_TAG}"));
                *field = Field::Changed(Json::Array(parts));
                return Ok(text);
            }
            Err(nothing)
        }
        _ => Err(nothing),
    }
}

/// Cuts the prompt where the final message ends.
pub(super) fn cut_at_tag(mut rendered: String, final_text: &str) -> Result<String, RenderError> {
    let dropped = RenderError::Conversation(ConversationError::FinalMessageDropped);
    let bare_tag = CONTINUE_TAG.trim_end();
    if !rendered.contains(text::strip(final_text, None, Ends::Both)) {
        return Err(dropped);
    }
    let at = rendered.rfind(bare_tag).ok_or(dropped)?;
    let keeps_space = rendered.get(at..).is_some_and(|tail| tail.starts_with(CONTINUE_TAG));
    rendered.truncate(at);
    if !keeps_space {
        rendered.truncate(text::strip(&rendered, None, Ends::Right).len());
    }
    Ok(rendered)
}
