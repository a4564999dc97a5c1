//! Request bytes -> what the engine is asked.
//!
//! In: the API, known by the path, and the whole body. Out: a [`Request`]: the model, what keeps
//! its prefixes apart, and the prompt as far as it can be known before the model's own template is
//! at hand ([`crate::conversation`] goes on from there).
//!
//! Each API has a file of its own; what chats share is in `chat` (messages as OpenAI writes them)
//! and [`PromptInput::Chat`]. Bodies are read as the engines' Python reads them (`json`). A batch
//! of prompts is routed by its first one.
//!
//! Linear in the body; bounded by the caller's limit on its length and by [`crate::limits`]. Media
//! is hashed where it lies and never copied.

mod chat;
mod completions;
mod error;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod generate;
mod harmony;
pub(crate) mod json;
mod media;
mod messages;
mod ollama;
mod responses;
mod sglang;
mod tools;

use serde_json::{Map, Value};

use crate::blocks::MediaItem;
use crate::harmony::Conversation;
use crate::ids::TokenId;

pub use error::{error_body, error_body_at};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::fuzz_request;
use json::{Node, Object};

/// The APIs that the filter knows, by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Api {
    /// OpenAI, `POST /v1/chat/completions`.
    ChatCompletions,
    /// OpenAI, `POST /v1/completions`.
    Completions,
    /// OpenAI, `POST /v1/responses`.
    Responses,
    /// Anthropic, `POST /v1/messages`.
    Messages,
    /// SGLang, `POST /generate`.
    SglangGenerate,
    /// Ollama, `POST /api/chat`.
    OllamaChat,
    /// Ollama, `POST /api/generate`.
    OllamaGenerate,
    /// vLLM, `POST /inference/v1/generate`: token ids in, token ids out.
    VllmGenerate,
    /// Embeddings and pooling, under any of their paths; by load only.
    Embeddings,
    /// Reranking and scoring, under any of their paths; by load only.
    Rerank,
}

impl Api {
    /// All APIs, in the order of [`Self::name`]'s documentation.
    pub const ALL: [Self; 10] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::SglangGenerate,
        Self::OllamaChat,
        Self::OllamaGenerate,
        Self::VllmGenerate,
        Self::Embeddings,
        Self::Rerank,
    ];

    /// Whether there is no prefix to match, so that requests go by load.
    #[must_use]
    pub fn is_load_only(self) -> bool {
        matches!(self, Self::Embeddings | Self::Rerank)
    }

    /// The API behind a request path, its query left out; `None` for all others.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        match path.split('?').next()? {
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            "/v1/completions" => Some(Self::Completions),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Messages),
            "/generate" => Some(Self::SglangGenerate),
            "/api/chat" => Some(Self::OllamaChat),
            "/api/generate" => Some(Self::OllamaGenerate),
            "/inference/v1/generate" => Some(Self::VllmGenerate),
            "/v1/embeddings" | "/v2/embed" | "/pooling" | "/encode" | "/api/embed"
            | "/api/embeddings" => Some(Self::Embeddings),
            "/rerank" | "/v1/rerank" | "/v2/rerank" | "/score" | "/v1/score" => Some(Self::Rerank),
            _ => None,
        }
    }

    /// The API that is called `name` in configuration.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.name() == name)
    }

    /// The name that configuration has for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::SglangGenerate => "sglang_generate",
            Self::OllamaChat => "ollama_chat",
            Self::OllamaGenerate => "ollama_generate",
            Self::VllmGenerate => "vllm_generate",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
        }
    }
}

/// A request, as far as routing needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The model's name as the client wrote it; `None` when left out.
    pub model: Option<String>,
    /// A LoRA adapter that the request names apart from the model; `None` without one.
    pub adapter: Option<String>,
    /// What is to be tokenized.
    pub prompt: PromptInput,
    /// How the engine shortens the prompt; `None` when it does not.
    pub truncation: Option<Truncation>,
    /// The tenant's salt, empty without one.
    pub cache_salt: String,
    /// Most tokens the client wants back; `None` when left to the engine.
    pub output_tokens_max: Option<u32>,
    /// What tells this session from others, where the API has it; `None` without a hint.
    pub session: Option<String>,
    /// Leading tokens of the prompt that the engine would take from its cache, where the request bounds
    /// them: it has to compute what it is to give log-probabilities of. `None` without a bound.
    pub cache_read_tokens_max: Option<u32>,
    /// Whether the answer says nothing of what the engine had to do for this prompt: of several samples one
    /// finds what another has computed; work in the background, or elsewhere before, takes another time.
    pub is_opaque: bool,
    /// Media that came beside the prompt; its places are where its placeholders are.
    pub media: Vec<Media>,
    /// Why the tokens may differ from the engine's; `None` when they are meant to be equal.
    pub approximation: Option<Approximation>,
}

/// A prompt in the form that its API gives.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptInput {
    /// Messages for the model's chat template.
    Chat(Box<Chat>),
    /// Messages for a model that speaks Harmony.
    Harmony(Box<Conversation>),
    /// Text, tokenized with the model's special tokens around it if `special_tokens`.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its own special tokens (BOS).
        special_tokens: bool,
    },
    /// Token ids given by the client.
    Tokens {
        /// The ids, not empty.
        tokens: Vec<TokenId>,
        /// Multimodal items, where the client knows their places.
        media: Vec<MediaItem>,
    },
    /// A conversation that goes on from one that only the engine has;
    /// [`Request::session`] names it where the API does.
    Stored,
}

/// What engines write a model's chats with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChatFormat {
    /// The model's own chat template.
    #[default]
    Template,
    /// OpenAI's Harmony format, see [`crate::harmony`].
    Harmony,
}

/// Why a prompt's tokens may differ from the engine's. It is matched all the same: the same
/// request always gives the same tokens, and what comes before the difference is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Approximation {
    /// Images and the like take as many tokens as the model's processor makes of them, which only
    /// the engine knows: exact up to the first one's placeholder.
    Media,
    /// The engine renders another template than the bundle's.
    ForeignTemplate,
    /// The request has several prompts: it is matched by the first one, and the engine counts the
    /// tokens of all.
    Batch,
}

/// Which tokens of a prompt that is too long are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The most tokens kept.
    pub tokens_max: usize,
    /// `None`: the last ones, with the tokenizer's special tokens around them.
    pub side: Option<Side>,
}

/// An end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The last tokens are kept.
    Left,
    /// The first tokens are kept.
    Right,
}

/// A conversation, in the form that all chat APIs share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// Tool definitions, each as the engine writes it for the template.
    pub tools: Option<Vec<Value>>,
    /// Whether `tool_choice` forbids tools.
    pub is_tool_use_off: bool,
    /// The tool that `tool_choice` names.
    pub named_tool: Option<String>,
    /// Documents for retrieval templates.
    pub documents: Option<Value>,
    /// Whether the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is continued instead of closed.
    pub continue_final_message: bool,
    /// Reasoning effort, where the API has a field for it.
    pub reasoning_effort: Option<String>,
    /// Anthropic's `thinking: disabled`; what it means to the template depends on the template.
    pub is_thinking_off: bool,
    /// `chat_template_kwargs`: extra variables of the template, nulls included.
    pub kwargs: Map<String, Value>,
    /// Whether the tokenizer adds its special tokens to what the template wrote.
    pub special_tokens: bool,
}

/// One message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: String,
    /// The content's parts; a string is one part, `None` a message without content.
    pub content: Option<Vec<Part>>,
    /// An assistant's tool calls, their arguments parsed.
    pub tool_calls: Vec<Value>,
    /// An assistant's reasoning.
    pub reasoning: Option<String>,
    /// The call that a tool's message answers; JSON null when given so.
    pub tool_call_id: Option<Value>,
    /// The speaker's name.
    pub name: Option<String>,
    /// A marker of some models' templates.
    pub task: Option<String>,
    /// A developer message's tools; JSON null without.
    pub tools: Option<Value>,
    /// A system message among the others, in an API whose system prompt has its own field.
    pub is_inline_system: bool,
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Fields that the API does not define; some templates see them.
        extra: Map<String, Value>,
    },
    /// An assistant's thoughts; a text like others for templates.
    Thinking {
        /// The text.
        text: String,
        /// Whether it is all.
        is_closed: bool,
        /// Fields that the API does not define.
        extra: Map<String, Value>,
    },
    /// An image, a sound or a video.
    Media {
        /// Which of them.
        modality: Modality,
        /// Hash of its content, or of its address.
        content_hash: u64,
        /// Fields that the API does not define.
        extra: Map<String, Value>,
    },
    /// A tool named in a tool's answer.
    ToolReference {
        /// Its name.
        name: String,
    },
}

/// An item of media whose place in the prompt is where its placeholder will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// Its kind.
    pub modality: Modality,
    /// Hash of its content.
    pub content_hash: u64,
}

/// A kind of media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Modality {
    /// A picture.
    Image,
    /// A sound.
    Audio,
    /// A moving picture.
    Video,
}

/// Why a body was not understood. None of these is a reason to refuse the request: the engine
/// answers for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is empty.
    #[error("the body is empty")]
    Empty,
    /// The body is not UTF-8.
    #[error("the body is not UTF-8")]
    NotUtf8,
    /// The body is not JSON.
    #[error("the body is not JSON")]
    NotJson,
    /// The JSON is nested deeper than [`crate::limits::JSON_DEPTH_MAX`].
    #[error("the body is nested too deep")]
    TooDeep,
    /// The JSON has more values than [`crate::limits::JSON_VALUES_MAX`], or more token ids than
    /// [`crate::limits::TOKEN_IDS_MAX`].
    #[error("the body has too many values")]
    TooManyValues,
    /// A text of the prompt has half of a surrogate pair, which no tokenizer takes.
    #[error("a text has half of a surrogate pair")]
    LoneSurrogate,
    /// A number that the template would print fits no machine type.
    #[error("a number is beyond what a prompt can carry exactly")]
    Number,
    /// The JSON lacks a field that the API requires, or has it with another type.
    #[error("field `{0}` is missing or of the wrong type")]
    WrongShape(&'static str),
    /// The request brings its own chat template, which only the engine can judge.
    #[error("the request brings its own chat template")]
    OwnTemplate,
    /// The request uses a feature whose prompt only the engine can know.
    #[error("`{0}` makes a prompt that only the engine knows")]
    Unsupported(&'static str),
    /// The API is routed by load alone.
    #[error("the API is routed by load alone")]
    LoadOnly,
}

/// Parses a request body for a model with a chat template.
///
/// # Errors
/// [`RequestError`] says what is not understood.
pub fn parse(api: Api, body_bytes: &[u8]) -> Result<Request, RequestError> {
    parse_for(api, body_bytes, |_| ChatFormat::Template)
}

/// Parses a request body; `format` tells what engines write the chats of the model with that name with.
///
/// # Errors
/// [`RequestError`] says what is not understood.
pub fn parse_for(
    api: Api,
    body_bytes: &[u8],
    format: impl FnOnce(Option<&str>) -> ChatFormat,
) -> Result<Request, RequestError> {
    if api.is_load_only() {
        return Err(RequestError::LoadOnly);
    }
    if body_bytes.is_empty() {
        return Err(RequestError::Empty);
    }
    let text = std::str::from_utf8(body_bytes).map_err(|_| RequestError::NotUtf8)?;
    // Python's reader takes a byte order mark for a part of the encoding.
    let body = json::read(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    let body = body.as_object().ok_or(RequestError::WrongShape("(body)"))?;
    let format = || Ok(format(fields::string(body, "model")?.as_deref()));
    match api {
        Api::ChatCompletions => chat::parse(body, format()?),
        Api::Completions => completions::parse(body),
        Api::Responses => responses::parse(body, format()?),
        Api::Messages => messages::parse(body, format()?),
        Api::SglangGenerate => sglang::parse(body),
        // These only other engines have, which write nothing in Harmony.
        Api::OllamaChat => ollama::parse_chat(body),
        Api::OllamaGenerate => ollama::parse_generate(body),
        Api::VllmGenerate => generate::parse(body),
        Api::Embeddings | Api::Rerank => Err(RequestError::LoadOnly),
    }
}

impl Request {
    /// A request for `prompt`, with what all APIs have in common.
    fn new(body: &Object<'_>, prompt: PromptInput) -> Result<Self, RequestError> {
        let has_media = prompt.has_media();
        Ok(Self {
            model: fields::string(body, "model")?,
            adapter: None,
            prompt,
            truncation: None,
            cache_salt: fields::cache_salt(body)?,
            output_tokens_max: None,
            session: fields::string(body, "session_id")?,
            cache_read_tokens_max: None,
            is_opaque: false,
            media: Vec::new(),
            approximation: has_media.then_some(Approximation::Media),
        })
    }
}

impl PromptInput {
    /// Whether it has media whose places only its template tells. Harmony shows none.
    fn has_media(&self) -> bool {
        match self {
            Self::Chat(chat) => chat.has_media(),
            Self::Harmony(_) | Self::Text { .. } | Self::Tokens { .. } | Self::Stored => false,
        }
    }
}

impl Chat {
    /// Whether any message has something else than text.
    fn has_media(&self) -> bool {
        let parts = self.messages.iter().flat_map(|message| message.content.iter().flatten());
        parts.into_iter().any(|part| matches!(part, Part::Media { .. }))
    }
}

/// The value of a text that is JSON, as Python reads it; `None` for one that is none.
///
/// # Errors
/// [`RequestError`] for JSON that cannot be written again as Python would.
pub(crate) fn parsed_json(text: &str) -> Result<Option<Value>, RequestError> {
    match json::read(text) {
        Ok(value) => value.to_value().map(Some),
        Err(RequestError::NotJson) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Token ids, if `node` is an array of nothing else; engines refuse an empty one.
fn token_ids(node: &Node<'_>) -> Option<Vec<TokenId>> {
    match node {
        Node::Ids(ids) => Some(ids.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
