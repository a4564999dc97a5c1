//! A model's templates, and the rendering of one conversation.
//!
//! In: [`ChatRequest`]. Out: the prompt. Around the template this does what
//! transformers does in `apply_chat_template`: picks the template, tidies the
//! messages, adds the special tokens, and cuts the prompt for
//! `continue_final_message`.

mod engine;
mod messages;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Environment, Error, Value};
use serde_json::{Map, Value as Json};

use crate::error::{ConversationError, RenderError, TemplateError};
use crate::limits::{RenderLimits, SOURCE_BYTES_MAX, TEMPLATES_MAX, VALUE_DEPTH_MAX};
use crate::py::globals::{NOW_KEY, Now};
use crate::shape::guard::Probe;
use crate::shape::{Found, Keyed, Refusal, Shape, ShapeCounts, ShapeMemo, is_marked};
use crate::time::CivilTime;
use crate::transpile::{TranspileError, transpile};
use crate::value::to_value;
use engine::{environment, run};
use messages::{Message, cut_at_tag, tag_final_message};

/// The tokenizer's named special tokens; templates see them as variables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpecialTokens {
    /// Beginning of a sequence; absent when the tokenizer has none.
    pub bos_token: Option<String>,
    /// End of a sequence.
    pub eos_token: Option<String>,
    /// Padding.
    pub pad_token: Option<String>,
    /// Unknown.
    pub unk_token: Option<String>,
    /// Further variables by name: `sep_token`, a model's own tokens, ...
    pub extra: Map<String, Json>,
}

/// How messages are tidied before the template sees them; it changed with transformers 5.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MessageRules {
    /// As they come.
    V4,
    /// Fields that are null are dropped, and reasoning is copied to all its names.
    #[default]
    V5,
}

/// What shape of `content` the template expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// A string; an engine joins the text parts before.
    String,
    /// A list of parts, as in OpenAI's API.
    OpenAi,
}

/// One conversation to render. JSON is borrowed; each string is copied once.
#[derive(Debug, Clone, Copy)]
pub struct ChatRequest<'a> {
    /// A list of message objects.
    pub messages: &'a Json,
    /// A list of tool objects; `None` or null when the request has none.
    pub tools: Option<&'a Json>,
    /// A list of document objects.
    pub documents: Option<&'a Json>,
    /// Ends the prompt with the header of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Leaves the final message open.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: further variables; they win over special tokens.
    pub kwargs: &'a Map<String, Json>,
    /// A template by name; by default transformers' choice.
    pub template_name: Option<&'a str>,
    /// The time that `strftime_now` reads.
    pub now: CivilTime,
}

struct Template {
    source: String,
    /// Whether [`Learner`] has it.
    has_strict: bool,
    content_format: ContentFormat,
}

/// The templates under guard, which shapes are learned from.
struct Learner {
    env: Environment<'static>,
    probe: Arc<Probe>,
    memo: Mutex<ShapeMemo>,
}

/// The compiled templates of one model; used for any number of requests.
///
/// Requests that differ only in their messages' texts are rendered from a memo of shapes, where that is
/// exact: a template that looks into the texts is run for each.
pub struct ChatTemplates {
    env: Environment<'static>,
    learner: Option<Learner>,
    templates: HashMap<String, Template>,
    special: Vec<(String, Json)>,
    rules: MessageRules,
}

impl fmt::Debug for ChatTemplates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.templates.keys().collect();
        f.debug_struct("ChatTemplates").field("names", &names).finish_non_exhaustive()
    }
}

impl ChatTemplates {
    /// Compiles `(name, source)` pairs; a model's only template is named "default".
    ///
    /// # Errors
    /// When a template is no valid one for transformers, or cannot be rendered exactly here.
    pub fn compile(
        sources: &[(String, String)],
        special: SpecialTokens,
    ) -> Result<Self, TemplateError> {
        if sources.is_empty() || sources.len() > TEMPLATES_MAX {
            return Err(TemplateError::NoTemplate);
        }
        let mut env = environment(None);
        let probe = Arc::new(Probe::default());
        let mut strict_env = environment(Some(&probe));
        let special = special_variables(special);
        let is_special_marked =
            special.iter().any(|(name, value)| is_marked(name) || is_marked(&value.to_string()));
        let mut templates = HashMap::new();
        for (name, source) in sources {
            if source.len() > SOURCE_BYTES_MAX {
                return Err(TemplateError::TooLong {
                    name: name.clone(),
                    bytes: source.len(),
                    bytes_max: SOURCE_BYTES_MAX,
                });
            }
            let written = transpile(source).map_err(|error| template_error(name, error))?;
            env.add_template_owned(name.clone(), written.source)
                .map_err(|error| engine_error(name, &error))?;
            let strict = written.strict.filter(|strict| !is_special_marked && !is_marked(strict));
            let has_strict = strict
                .is_some_and(|strict| strict_env.add_template_owned(name.clone(), strict).is_ok());
            let content_format = written.content_format;
            let template = Template { source: source.clone(), has_strict, content_format };
            templates.insert(name.clone(), template);
        }
        Ok(Self {
            env,
            learner: Some(Learner { env: strict_env, probe, memo: Mutex::default() }),
            templates,
            special,
            rules: MessageRules::default(),
        })
    }

    /// The same templates under another version's message rules.
    #[must_use]
    pub fn with_rules(mut self, rules: MessageRules) -> Self {
        self.rules = rules;
        if let Some(learner) = &mut self.learner {
            learner.memo = Mutex::default();
        }
        self
    }

    /// The same templates without a memo of shapes: each render runs the template.
    #[must_use]
    pub fn without_memo(mut self) -> Self {
        self.learner = None;
        self
    }

    /// How the memo of shapes was used; zeros without one.
    #[must_use]
    pub fn shape_counts(&self) -> ShapeCounts {
        let memo = self.learner.as_ref().and_then(|learner| learner.memo.lock().ok());
        memo.map_or_else(ShapeCounts::default, |memo| memo.counts())
    }

    /// The content format of the default template, as vLLM would detect it.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        let default = self.templates.get("default");
        let template = default.or_else(|| self.templates.values().next());
        template.map_or(ContentFormat::String, |template| template.content_format)
    }

    /// Renders one conversation.
    ///
    /// # Errors
    /// Where transformers raises, and where a limit is met.
    pub fn render(
        &self,
        chat: &ChatRequest<'_>,
        limits: &RenderLimits,
    ) -> Result<String, RenderError> {
        let name = self.select(chat)?;
        let template = self.templates.get(name).ok_or(RenderError::NoSuchTemplate)?;
        let has_shape = template.has_strict && !chat.continue_final_message;
        match self.learner.as_ref().filter(|_| has_shape) {
            Some(learner) => self.render_by_shape(learner, name, chat, limits),
            None => self.render_by_engine(name, chat, limits),
        }
    }

    /// From the shape, if there is one; else by the engine, and the shape is learned when it came before.
    fn render_by_shape(
        &self,
        learner: &Learner,
        name: &str,
        chat: &ChatRequest<'_>,
        limits: &RenderLimits,
    ) -> Result<String, RenderError> {
        let depth_max = limits.value_depth_max.min(VALUE_DEPTH_MAX);
        // Another thread's use of the memo is not waited for.
        let Ok(mut memo) = learner.memo.try_lock() else {
            return self.render_by_engine(name, chat, limits);
        };
        let Some(keyed) = memo.key(name, chat, depth_max) else {
            return self.render_by_engine(name, chat, limits);
        };
        let found = match memo.find(&keyed) {
            Found::Shape(shape) => shape.render(&keyed, limits),
            Found::Again => {
                let rendered = self.render_by_engine(name, chat, limits);
                // An error may come from a limit that another request of the shape does not meet.
                if let Ok(prompt) = &rendered {
                    let shape = self.learn(learner, name, (chat, &keyed), prompt);
                    memo.insert(&keyed, shape);
                }
                memo.give_back(keyed);
                return rendered;
            }
            Found::Nothing => None,
        };
        memo.give_back(keyed);
        match found {
            Some(rendered) => {
                memo.count_hit();
                rendered
            }
            None => self.render_by_engine(name, chat, limits),
        }
    }

    /// The request's shape, if its prompt does not depend on the texts otherwise.
    fn learn(
        &self,
        learner: &Learner,
        name: &str,
        (chat, keyed): (&ChatRequest<'_>, &Keyed<'_>),
        prompt: &str,
    ) -> Result<Shape, Refusal> {
        let limits = RenderLimits::default();
        Shape::learn(keyed, chat.messages, prompt, &learner.probe, |messages| {
            let messages = self.messages(messages).ok()?;
            let context = self.context(chat, &messages, limits.value_depth_max).ok()?;
            run(&learner.env, name, context, &limits).ok()
        })
    }

    fn render_by_engine(
        &self,
        name: &str,
        chat: &ChatRequest<'_>,
        limits: &RenderLimits,
    ) -> Result<String, RenderError> {
        let template = self.templates.get(name).ok_or(RenderError::NoSuchTemplate)?;
        let depth_max = limits.value_depth_max.min(VALUE_DEPTH_MAX);
        let mut messages = self.messages(chat.messages)?;
        let continued = match chat.continue_final_message {
            true if chat.add_generation_prompt => {
                return Err(RenderError::Conversation(ConversationError::ContinueAndPrompt));
            }
            true => Some(tag_final_message(&mut messages, &template.source)?),
            false => None,
        };
        let context = self.context(chat, &messages, depth_max)?;
        let (rendered, _) = run(&self.env, name, context, limits)?;
        match continued {
            Some(final_text) => cut_at_tag(rendered, &final_text),
            None => Ok(rendered),
        }
    }

    /// The template's name, chosen as `get_chat_template` does.
    fn select<'a>(&'a self, chat: &ChatRequest<'a>) -> Result<&'a str, RenderError> {
        let is_single = self.templates.len() == 1;
        if let Some(name) = chat.template_name {
            return match self.templates.get_key_value(name) {
                Some((name, _)) => Ok(name),
                None => Err(RenderError::NoSuchTemplate),
            };
        }
        let has_tools = chat.tools.is_some_and(|tools| !tools.is_null());
        if has_tools && self.templates.contains_key("tool_use") {
            return Ok("tool_use");
        }
        if self.templates.contains_key("default") {
            return Ok("default");
        }
        match self.templates.keys().next() {
            Some(name) if is_single => Ok(name),
            _ => Err(RenderError::NoSuchTemplate),
        }
    }

    /// The messages as the template sees them.
    fn messages<'a>(&self, json: &'a Json) -> Result<Vec<Message<'a>>, RenderError> {
        let shape = RenderError::Conversation(ConversationError::MessagesShape);
        let Some(list) = json.as_array() else {
            return Err(shape);
        };
        if list.is_empty() {
            return Err(RenderError::Conversation(ConversationError::Empty));
        }
        let mut messages = Vec::with_capacity(list.len());
        for message in list {
            let fields = message.as_object().ok_or_else(|| shape.clone())?;
            messages.push(Message::new(fields, self.rules));
        }
        Ok(messages)
    }

    fn context(
        &self,
        chat: &ChatRequest<'_>,
        messages: &[Message<'_>],
        depth_max: usize,
    ) -> Result<Value, RenderError> {
        let too_deep = RenderError::TooDeep { depth_max };
        let convert = |json: &Json| to_value(json, depth_max).ok_or_else(|| too_deep.clone());
        let mut variables: HashMap<String, Value> = HashMap::new();
        for (name, value) in
            self.special.iter().map(|(name, value)| (name, value)).chain(chat.kwargs)
        {
            variables.insert(name.clone(), convert(value)?);
        }
        let objects = |json: Option<&Json>, error| match json {
            None | Some(Json::Null) => Ok(Value::from(())),
            Some(Json::Array(items)) if items.iter().all(Json::is_object) => {
                let items = items.iter().map(convert);
                Ok(Value::from(items.collect::<Result<Vec<_>, _>>()?))
            }
            Some(_) => Err(RenderError::Conversation(error)),
        };
        let tools = objects(chat.tools, ConversationError::ToolsShape)?;
        let documents = objects(chat.documents, ConversationError::DocumentsShape)?;
        let messages = messages.iter().map(|message| message.to_value(depth_max));
        let messages: Option<Vec<_>> = messages.collect();
        let fixed = [
            ("messages", Value::from(messages.ok_or(too_deep.clone())?)),
            ("tools", tools),
            ("documents", documents),
            ("add_generation_prompt", Value::from(chat.add_generation_prompt)),
            (NOW_KEY, Value::from_object(Now(chat.now))),
        ];
        for (name, value) in fixed {
            if variables.insert(name.to_owned(), value).is_some() && name != NOW_KEY {
                let reason = format!("{name} was given twice");
                return Err(RenderError::Operation(reason));
            }
        }
        Ok(Value::from_object(Root(variables)))
    }
}

/// The variables that a render starts with.
#[derive(Debug)]
struct Root(HashMap<String, Value>);

impl Object for Root {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get(key).cloned()
    }
}

fn special_variables(special: SpecialTokens) -> Vec<(String, Json)> {
    let named = [
        ("bos_token", special.bos_token),
        ("eos_token", special.eos_token),
        ("pad_token", special.pad_token),
        ("unk_token", special.unk_token),
    ];
    let named =
        named.into_iter().filter_map(|(name, token)| Some((name.to_owned(), Json::String(token?))));
    named.chain(special.extra).collect()
}

fn template_error(name: &str, error: TranspileError) -> TemplateError {
    let TranspileError { line, is_invalid, reason } = error;
    let name = name.to_owned();
    if is_invalid {
        TemplateError::Syntax { name, line, reason }
    } else {
        TemplateError::Refused { name, line, reason }
    }
}

/// What the transpiler wrote, but minijinja does not take: its own limits.
fn engine_error(name: &str, error: &Error) -> TemplateError {
    TemplateError::Refused {
        name: name.to_owned(),
        line: 0,
        reason: format!("the template engine: {error}"),
    }
}
