//! A loaded model: request -> tokens.
//!
//! In: a [`Request`], its prompt still in its API's form. Out: the token ids that the engine will
//! see, and where its media falls. Chats are prepared as the engine prepares them, then go through
//! the model's own template; all text goes through the model's own tokenizer. Text that was
//! tokenized lately is recalled from a memo of bounded size.

mod placement;
mod probe;

use std::cell::{OnceCell, RefCell};

use serde_json::{Map, Value};
use warmpath_bundle::harmony::Marks;
use warmpath_bundle::{
    Bundle, BundleError, ENCODING, MistralFormat, SegmentMemo, TokenizeError, Tokenizer,
    VERBATIM_ENCODING,
};
use warmpath_template::{
    ChatRequest, ChatTemplates, CivilTime, RenderError, RenderLimits, SpecialTokens, TemplateError,
};

use crate::blocks::MediaItem;
use crate::config::{ChatConfig, Engine};
use crate::conversation::{self, TemplateTraits};
use crate::harmony::{Conversation, TooLong};
use crate::ids::{NowMs, TokenId};
use crate::limits::PROMPT_BYTES_MAX;
use crate::mistral::{self, Unwritable};
use crate::piece::Piece;
use crate::request::{Chat, Media, PromptInput, Request, Side, Truncation};
use placement::PlaceholderTokens;

/// Tokens that the memo keeps, about 4 MiB: some hundred prompts of 8k tokens, in which the
/// repeated parts of a busy hour fit.
const MEMO_TOKENS: usize = 1 << 20;

/// A model's tokenizer and templates.
pub struct Model {
    tokenizer: Tokenizer,
    chat: Option<ChatModel>,
    placeholders: PlaceholderTokens,
    /// Harmony's marks; `None` for models that do not speak it.
    harmony: Option<Marks>,
    /// How Mistral's library writes its chats; `None` for other models.
    mistral: Option<MistralFormat>,
    memo: RefCell<SegmentMemo>,
}

/// What a model has for chats.
struct ChatModel {
    templates: ChatTemplates,
    /// The templates' own text, by name.
    sources: Vec<(String, String)>,
    traits: TemplateTraits,
    /// Whether the template stands for an engine's own code.
    is_encoding: bool,
    is_system_first: OnceCell<bool>,
    /// With the variables that it was found with: several configurations may share the model.
    thinking_off_effort: OnceCell<(Map<String, Value>, &'static str)>,
}

/// A request's prompt as the engine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The token ids.
    pub tokens: Vec<TokenId>,
    /// Its media, in order of their places.
    pub media: Vec<MediaItem>,
}

/// Why a bundle gives no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The bundle is damaged or of another version.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Its chat template cannot be rendered exactly.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Why a prompt gives no tokens.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The model's bundle has not arrived, or was refused.
    #[error("the model has no tokenizer yet")]
    NoTokenizer,
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The prompt continues a conversation that only the engine has.
    #[error("the conversation continues one that the engine keeps")]
    Stored,
    /// A token id is not in the model's vocabulary.
    #[error("a token id is not in the vocabulary")]
    TokenOutOfRange,
    /// The template refused the conversation, as it would in the engine.
    #[error(transparent)]
    Template(#[from] RenderError),
    /// The tokenizer refused the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizeError),
    /// A conversation in Harmony takes more than a prompt may.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// Mistral's library refuses the conversation.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// The tokenizer lacks a special token that the conversation needs.
    #[error("the tokenizer has no token `{0}`")]
    NoMark(&'static str),
}

/// The tokens of a request's prompt; `now` is the moment of the request, for templates that print
/// the day. Token ids need no model.
///
/// # Errors
/// [`PromptError`] when the prompt cannot be rendered or tokenized.
pub fn prompt(
    model: Option<&Model>,
    request: Request,
    config: &ChatConfig,
    now: NowMs,
) -> Result<Prompt, PromptError> {
    let mut loose = request.media;
    let needs_model = || model.ok_or(PromptError::NoTokenizer);
    let (tokens, mut media) = match request.prompt {
        PromptInput::Stored => return Err(PromptError::Stored),
        PromptInput::Tokens { tokens, media } => {
            if model.is_some_and(|model| !model.has_tokens(&tokens)) {
                return Err(PromptError::TokenOutOfRange);
            }
            (truncated(tokens, request.truncation, (0, 0)), media)
        }
        PromptInput::Text { text, special_tokens } => {
            (needs_model()?.encode(&text, special_tokens, request.truncation)?, Vec::new())
        }
        PromptInput::Chat(chat) => {
            let (tokens, of_chat) =
                needs_model()?.encode_chat(*chat, config, now, request.truncation)?;
            loose.extend(of_chat);
            (tokens, Vec::new())
        }
        PromptInput::Harmony(conversation) => {
            (needs_model()?.encode_harmony(*conversation, config, now)?, Vec::new())
        }
    };
    if !loose.is_empty() {
        let known = model.map(|model| &model.placeholders);
        media.extend(known.unwrap_or(&PlaceholderTokens::default()).place(&tokens, &loose));
    }
    Ok(Prompt { tokens, media })
}

impl Model {
    /// Loads a bundle. `memo_seed` should be unknown to clients.
    ///
    /// # Errors
    /// [`ModelError`] when the bundle is not usable.
    pub fn from_bundle(bundle_bytes: Vec<u8>, memo_seed: u64) -> Result<Self, ModelError> {
        let bundle = Bundle::read(bundle_bytes)?;
        let tokenizer = bundle.tokenizer;
        let placeholders =
            PlaceholderTokens::new(&bundle.special.extra, |text| tokenizer.added_token_id(text));
        let special = SpecialTokens {
            bos_token: bundle.special.bos_token,
            eos_token: bundle.special.eos_token,
            pad_token: bundle.special.pad_token,
            unk_token: bundle.special.unk_token,
            extra: bundle.special.extra.into_iter().map(|(key, text)| (key, text.into())).collect(),
        };
        let chat = if bundle.templates.is_empty() {
            None
        } else {
            let templates = ChatTemplates::compile(&bundle.templates, special)?;
            let has = |wanted| bundle.templates.iter().any(|(name, _)| name == wanted);
            let is_verbatim = has(VERBATIM_ENCODING);
            let is_encoding = is_verbatim || has(ENCODING);
            let traits = TemplateTraits {
                content_format: templates.content_format(),
                has_developer_role: probe::has_developer_role(&bundle.templates),
                is_system_first: false,
                is_verbatim,
                thinking_off_effort: "none",
                placeholders: placeholders.texts(),
            };
            Some(ChatModel {
                templates,
                sources: bundle.templates,
                traits,
                is_encoding,
                // Nothing is probed where there is no template.
                is_system_first: if is_encoding { OnceCell::from(true) } else { OnceCell::new() },
                thinking_off_effort: OnceCell::new(),
            })
        };
        let memo = RefCell::new(SegmentMemo::new(MEMO_TOKENS, memo_seed));
        let harmony = Marks::of(&tokenizer);
        let mistral = bundle.meta.mistral;
        Ok(Self { tokenizer, chat, placeholders, harmony, mistral, memo })
    }

    /// Whether the tokenizer has the marks of Harmony, as gpt-oss models do.
    #[must_use]
    pub fn speaks_harmony(&self) -> bool {
        self.harmony.is_some()
    }

    /// Whether the engine writes chats with code of its own, which the bundle's template stands for.
    fn has_encoding(&self) -> bool {
        self.chat.as_ref().is_some_and(|chat| chat.is_encoding)
    }

    /// The tokens of a chat, and the media in it.
    fn encode_chat(
        &self,
        chat: Chat,
        config: &ChatConfig,
        now: NowMs,
        truncation: Option<Truncation>,
    ) -> Result<(Vec<TokenId>, Vec<Media>), PromptError> {
        if let Some(format) = &self.mistral {
            let written = mistral::write(chat, format, config)?;
            let id = |mark: &'static str| {
                self.tokenizer.added_token_id(mark).ok_or(PromptError::NoMark(mark))
            };
            let tokens = self.encode_pieces(&written.pieces, id)?;
            return Ok((truncated(tokens, truncation, (0, 0)), written.media));
        }
        let special_tokens = chat.special_tokens && !self.has_encoding();
        let (text, media) = self.render(chat, config, now)?;
        let tokens = match config.engine {
            Engine::Vllm => self.encode(&text, special_tokens, truncation)?,
            Engine::LlamaCpp => self.encode_begun(&text)?,
        };
        Ok((tokens, media))
    }

    /// The tokens of a text behind what the tokenizer begins texts with, which the text may have itself.
    fn encode_begun(&self, text: &str) -> Result<Vec<TokenId>, PromptError> {
        let mut tokens = self.encode(text, false, None)?;
        let prefix = self.tokenizer.special_prefix();
        if !tokens.starts_with(prefix) {
            tokens.splice(..0, prefix.iter().copied());
        }
        Ok(tokens)
    }

    /// The tokens of a conversation in Harmony.
    fn encode_harmony(
        &self,
        mut conversation: Conversation,
        config: &ChatConfig,
        now: NowMs,
    ) -> Result<Vec<TokenId>, PromptError> {
        let marks = self.harmony.ok_or(PromptError::NoTemplate)?;
        conversation.restrict(config);
        let pieces = conversation.pieces(civil_time(now))?;
        self.encode_pieces(&pieces, |mark| Ok(marks.id(mark)))
    }

    /// The tokens of a prompt that is given in pieces; `id` tells that of a special token.
    fn encode_pieces<M: Copy>(
        &self,
        pieces: &[Piece<'_, M>],
        id: impl Fn(M) -> Result<TokenId, PromptError>,
    ) -> Result<Vec<TokenId>, PromptError> {
        let mut tokens = Vec::new();
        let mut memo = self.memo.try_borrow_mut().ok();
        for piece in pieces {
            match piece {
                Piece::Mark(mark) => tokens.push(id(*mark)?),
                Piece::Text(text) => {
                    self.tokenizer.encode_plain(text, memo.as_deref_mut(), &mut tokens)?;
                }
            }
        }
        Ok(tokens)
    }

    fn has_tokens(&self, tokens: &[TokenId]) -> bool {
        tokens.iter().all(|token| *token < self.tokenizer.vocab_size())
    }

    /// The text that a chat becomes, and the media in it.
    ///
    /// # Errors
    /// [`PromptError`] when the model has no template, or the template refuses the chat.
    pub fn render(
        &self,
        chat: Chat,
        config: &ChatConfig,
        now: NowMs,
    ) -> Result<(String, Vec<Media>), PromptError> {
        let model = self.chat.as_ref().ok_or(PromptError::NoTemplate)?;
        let traits = model.traits_for(&chat, config, now);
        model.render(chat, &traits, config, now)
    }

    fn encode(
        &self,
        text: &str,
        special_tokens: bool,
        truncation: Option<Truncation>,
    ) -> Result<Vec<TokenId>, PromptError> {
        // Four bytes a token is typical of English.
        let mut tokens = Vec::with_capacity(text.len() / 4 + 8);
        match self.memo.try_borrow_mut() {
            Ok(mut memo) => {
                self.tokenizer.encode_memo(text, special_tokens, &mut memo, &mut tokens)?;
            }
            Err(_) => self.tokenizer.encode_into(text, special_tokens, &mut tokens)?,
        }
        let special = if special_tokens {
            (self.tokenizer.special_prefix().len(), self.tokenizer.special_suffix().len())
        } else {
            (0, 0)
        };
        Ok(truncated(tokens, truncation, special))
    }
}

impl ChatModel {
    /// The template's traits, those probed for that `chat` depends on.
    fn traits_for(&self, chat: &Chat, config: &ChatConfig, now: NowMs) -> TemplateTraits {
        let mut traits = self.traits.clone();
        if chat.messages.iter().any(|message| message.is_inline_system) {
            let sources = &self.sources;
            traits.is_system_first =
                *self.is_system_first.get_or_init(|| probe::is_system_first(sources, now));
        }
        if chat.is_thinking_off {
            let find = || {
                probe::thinking_off_effort(|chat| {
                    self.render(chat, &self.traits, config, now).ok().map(|(text, _)| text)
                })
            };
            let kwargs = &config.template_kwargs;
            let (found_with, found) =
                self.thinking_off_effort.get_or_init(|| (kwargs.clone(), find()));
            traits.thinking_off_effort = if found_with == kwargs { found } else { find() };
        }
        traits
    }

    fn render(
        &self,
        chat: Chat,
        traits: &TemplateTraits,
        config: &ChatConfig,
        now: NowMs,
    ) -> Result<(String, Vec<Media>), PromptError> {
        let mut conversation = conversation::prepare(chat, traits, config);
        if config.engine == Engine::LlamaCpp {
            conversation::llama_cpp::add_variables(&mut conversation.kwargs, civil_time(now));
        }
        let request = ChatRequest {
            messages: &conversation.messages,
            tools: conversation.tools.as_ref(),
            documents: conversation.documents.as_ref(),
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message && !self.is_encoding,
            kwargs: &conversation.kwargs,
            template_name: None,
            now: civil_time(now),
        };
        let limits = RenderLimits { output_bytes_max: PROMPT_BYTES_MAX, ..RenderLimits::default() };
        let text = self.templates.render(&request, &limits)?;
        let text = match &conversation.begun_answer {
            Some(answer) => conversation::llama_cpp::continued(text, answer),
            None => text,
        };
        Ok((text, conversation.media))
    }
}

/// The moment in UTC, as engines in containers have it.
fn civil_time(now: NowMs) -> CivilTime {
    let unix_s = i64::try_from(now.0 / 1_000).unwrap_or(i64::MAX);
    CivilTime::from_unix(unix_s, (now.0 % 1_000 * 1_000) as u32, 0)
}

/// Shortens `tokens`, which begin and end with so many `special` tokens of the tokenizer.
fn truncated(
    mut tokens: Vec<TokenId>,
    truncation: Option<Truncation>,
    special: (usize, usize),
) -> Vec<TokenId> {
    let Some(Truncation { tokens_max, side }) = truncation else { return tokens };
    let excess = tokens.len().saturating_sub(tokens_max);
    match side {
        Some(Side::Right) => tokens.truncate(tokens_max),
        Some(Side::Left) => drop(tokens.drain(..excess)),
        None => {
            // The tokenizer shortens its text at the front, and keeps what it puts around it.
            let (start, end) = special;
            let text = tokens.len().saturating_sub(start + end);
            drop(tokens.drain(start..start + excess.min(text)));
        }
    }
    tokens
}

#[cfg(test)]
mod tests;
