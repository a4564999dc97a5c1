//! Prompts in OpenAI's Harmony format, which gpt-oss models speak.
//!
//! vLLM does not use these models' chat template: it turns a chat into Harmony messages and writes
//! these itself. In: a [`Conversation`], made by [`crate::request`]. Out: [`Piece`]s.
//!
//! What is done here is what vLLM 0.32 does; `integration/vectors/vllm/harmony.jsonl` holds it to that.

mod schema;

use std::borrow::Cow;

use serde_json::Value;
pub use warmpath_bundle::harmony::Mark;
use warmpath_template::CivilTime;

use crate::config::ChatConfig;
use crate::limits::PROMPT_BYTES_MAX;
use crate::piece::Piece;
use schema::TypeScript;

/// What stands before the date in every prompt.
const SYSTEM_BEFORE_DATE: &str = "You are ChatGPT, a large language model trained by OpenAI.\n\
    Knowledge cutoff: 2024-06\nCurrent date: ";

/// What stands at the end of every system message.
const CHANNELS: &str = "\n\n# Valid channels: analysis, commentary, final. Channel must be included \
    for every message.";

/// What a system message says further where there are functions.
const FUNCTION_CHANNEL: &str =
    "\nCalls to these tools must go to the commentary channel: 'functions'.";

/// How hard the model is to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// A little.
    Low,
    /// What is done unless asked otherwise.
    #[default]
    Medium,
    /// Much.
    High,
}

impl Effort {
    /// The effort called `name`; `None` for those that Harmony does not have.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Low, Self::Medium, Self::High].into_iter().find(|effort| effort.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A conversation, as far as its request tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// How hard the model is to think.
    pub effort: Effort,
    /// What the first message or the request's own field tells the model to do.
    pub instructions: Option<String>,
    /// The functions that it may call.
    pub functions: Vec<Function>,
    /// Whether `tool_choice` forbids functions.
    pub is_tool_use_off: bool,
    /// The function that `tool_choice` names.
    pub named_tool: Option<String>,
    /// The messages, in order.
    pub messages: Vec<Message>,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it does; empty without.
    pub description: String,
    /// A JSON schema of its arguments.
    pub parameters: Option<Value>,
}

/// A message. Where it has several texts, each is tokenized on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Instructions among the other messages.
    Developer(String),
    /// The user's.
    User(Vec<String>),
    /// The assistant's thoughts.
    Analysis(String),
    /// What the assistant says before it calls a function.
    Commentary(String),
    /// The assistant's answer.
    Final(Vec<String>),
    /// A call of a function.
    Call {
        /// The function's name.
        function: String,
        /// The arguments, JSON as a rule.
        arguments: String,
    },
    /// What a function returned.
    Returned {
        /// The function's name; empty when its call is not there.
        function: String,
        /// What it returned.
        output: String,
    },
}

/// The tool descriptions are longer than a prompt may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tool descriptions take more than {PROMPT_BYTES_MAX} bytes")]
pub struct TooLong;

impl Conversation {
    /// Leaves out the functions that the engine does not show for this request.
    pub fn restrict(&mut self, config: &ChatConfig) {
        if self.is_tool_use_off && config.hides_unused_tools {
            self.functions.clear();
        }
        if let (Some(name), true) = (&self.named_tool, config.shows_named_tool_only) {
            self.functions.retain(|function| function.name == *name);
        }
    }

    /// The pieces of the prompt on the day of `now`, the opening of the assistant's turn included.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn pieces(&self, now: CivilTime) -> Result<Vec<Piece<'_, Mark>>, TooLong> {
        let mut writer = Writer { pieces: Vec::with_capacity(16 + 8 * self.messages.len()) };
        writer.message(["system"], NO_CHANNEL, [self.system(now)], Mark::End);
        let instructions = self.instructions.as_deref();
        if instructions.is_some_and(|it| !it.is_empty()) || !self.functions.is_empty() {
            let text = developer(instructions, &self.functions)?;
            writer.message(["developer"], NO_CHANNEL, [text], Mark::End);
        }
        let is_final = |message: &Message| matches!(message, Message::Final(_));
        let last_final = self.messages.iter().rposition(is_final).unwrap_or(0);
        for (at, message) in self.messages.iter().enumerate() {
            // Thoughts that led to an answer are not shown again.
            if at >= last_final || !matches!(message, Message::Analysis(_)) {
                writer.add(message);
            }
        }
        writer.mark(Mark::Start);
        writer.texts(["assistant"]);
        Ok(writer.pieces)
    }

    fn system(&self, now: CivilTime) -> String {
        let CivilTime { year, month, day, .. } = now;
        let effort = self.effort.name();
        let functions = if self.functions.is_empty() { "" } else { FUNCTION_CHANNEL };
        format!(
            "{SYSTEM_BEFORE_DATE}{year:04}-{month:02}-{day:02}\n\nReasoning: {effort}{CHANNELS}{functions}"
        )
    }
}

fn developer(instructions: Option<&str>, functions: &[Function]) -> Result<String, TooLong> {
    let mut text = String::new();
    if let Some(instructions) = instructions {
        text.push_str("# Instructions\n\n");
        text.push_str(instructions);
    }
    if functions.is_empty() {
        return Ok(text);
    }
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    let mut tools = TypeScript::after(text, PROMPT_BYTES_MAX);
    tools.push("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for function in functions {
        for line in function.description.lines() {
            tools.comment("", line);
        }
        tools.push("type ");
        tools.push(&function.name);
        match &function.parameters {
            Some(schema) => {
                tools.push(" = (_: ");
                tools.schema(schema, "");
                tools.push(") => any;\n\n");
            }
            None => tools.push(" = () => any;\n\n"),
        }
    }
    tools.push("} // namespace functions");
    tools.finish().ok_or(TooLong)
}

/// Messages that are on no channel.
const NO_CHANNEL: [&str; 0] = [];

struct Writer<'a> {
    pieces: Vec<Piece<'a, Mark>>,
}

impl<'a> Writer<'a> {
    fn mark(&mut self, mark: Mark) {
        self.pieces.push(Piece::Mark(mark));
    }

    fn texts<T: Into<Cow<'a, str>>>(&mut self, texts: impl IntoIterator<Item = T>) {
        self.pieces.extend(texts.into_iter().map(|text| Piece::Text(text.into())));
    }

    fn message<A, C, T>(
        &mut self,
        author: impl IntoIterator<Item = A>,
        channel: impl IntoIterator<Item = C>,
        texts: impl IntoIterator<Item = T>,
        end: Mark,
    ) where
        A: Into<Cow<'a, str>>,
        C: Into<Cow<'a, str>>,
        T: Into<Cow<'a, str>>,
    {
        self.mark(Mark::Start);
        self.texts(author);
        let mut channel = channel.into_iter().peekable();
        if channel.peek().is_some() {
            self.mark(Mark::Channel);
            self.texts(channel);
        }
        self.mark(Mark::Message);
        self.texts(texts);
        self.mark(end);
    }

    fn add(&mut self, message: &'a Message) {
        match message {
            Message::Developer(text) => {
                let text = format!("# Instructions\n\n{text}");
                self.message(["developer"], NO_CHANNEL, [text], Mark::End);
            }
            Message::User(texts) => self.message(["user"], NO_CHANNEL, texts, Mark::End),
            Message::Analysis(text) => {
                self.message(["assistant"], ["analysis"], [text], Mark::End);
            }
            Message::Commentary(text) => {
                self.message(["assistant"], ["commentary"], [text], Mark::End);
            }
            Message::Final(texts) => self.message(["assistant"], ["final"], texts, Mark::End),
            Message::Call { function, arguments } => {
                let recipient = format!(" to=functions.{function}");
                let author = [Cow::from("assistant"), recipient.into()];
                self.message(author, ["commentary", " json"], [arguments], Mark::Call);
            }
            Message::Returned { function, output } => {
                let author = [format!("functions.{function}")];
                self.message(author, ["commentary", " to=assistant"], [output], Mark::End);
            }
        }
    }
}
