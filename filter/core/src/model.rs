//! A loaded model: prompt -> tokens.
//!
//! In: a prompt in its API's form. Out: the token ids that the engine will see. Chat prompts go
//! through the model's own template first; all text goes through the model's own tokenizer.
//! Text that was tokenized lately is recalled from a memo of bounded size.

use std::cell::RefCell;

use warmpath_bundle::{Bundle, BundleError, SegmentMemo, TokenizeError, Tokenizer};
use warmpath_template::{
    ChatRequest, ChatTemplates, CivilTime, RenderError, RenderLimits, SpecialTokens, TemplateError,
};

use crate::ids::{NowMs, TokenId};
use crate::limits::PROMPT_BYTES_MAX;
use crate::request::{Chat, PromptInput};

/// Tokens that the memo keeps, about 4 MiB: some hundred prompts of 8k tokens, in which the
/// repeated parts of a busy hour fit.
const MEMO_TOKENS: usize = 1 << 20;

/// A model's tokenizer and templates.
pub struct Model {
    tokenizer: Tokenizer,
    templates: Option<ChatTemplates>,
    memo: RefCell<SegmentMemo>,
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
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refused the conversation, as it would in the engine.
    #[error(transparent)]
    Template(#[from] RenderError),
    /// The tokenizer refused the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizeError),
}

impl Model {
    /// Loads a bundle. `memo_seed` should be unknown to clients.
    ///
    /// # Errors
    /// [`ModelError`] when the bundle is not usable.
    pub fn from_bundle(bundle_bytes: Vec<u8>, memo_seed: u64) -> Result<Self, ModelError> {
        let bundle = Bundle::read(bundle_bytes)?;
        let special = bundle.special;
        let templates = if bundle.templates.is_empty() {
            None
        } else {
            let special = SpecialTokens {
                bos_token: special.bos_token,
                eos_token: special.eos_token,
                pad_token: special.pad_token,
                unk_token: special.unk_token,
                extra: special.extra.into_iter().map(|(key, value)| (key, value.into())).collect(),
            };
            Some(ChatTemplates::compile(&bundle.templates, special)?)
        };
        Ok(Self {
            tokenizer: bundle.tokenizer,
            templates,
            memo: RefCell::new(SegmentMemo::new(MEMO_TOKENS, memo_seed)),
        })
    }

    /// The tokens of `prompt`; `now` is the moment of the request, for templates that print the
    /// day.
    ///
    /// # Errors
    /// [`PromptError`] when the prompt cannot be rendered or tokenized.
    pub fn tokens(&self, prompt: &PromptInput, now: NowMs) -> Result<Vec<TokenId>, PromptError> {
        match prompt {
            PromptInput::Chat(chat) => self.encode(&self.render(chat, now)?, false),
            PromptInput::Text { text, special_tokens } => self.encode(text, *special_tokens),
            PromptInput::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    fn render(&self, chat: &Chat, now: NowMs) -> Result<String, PromptError> {
        let templates = self.templates.as_ref().ok_or(PromptError::NoTemplate)?;
        let request = ChatRequest {
            messages: &chat.messages,
            tools: chat.tools.as_ref(),
            documents: chat.documents.as_ref(),
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            kwargs: &chat.kwargs,
            template_name: None,
            now: civil_time(now),
        };
        let limits = RenderLimits { output_bytes_max: PROMPT_BYTES_MAX, ..RenderLimits::default() };
        Ok(templates.render(&request, &limits)?)
    }

    fn encode(&self, text: &str, special_tokens: bool) -> Result<Vec<TokenId>, PromptError> {
        // Four bytes a token is typical of English.
        let mut tokens = Vec::with_capacity(text.len() / 4 + 8);
        match self.memo.try_borrow_mut() {
            Ok(mut memo) => {
                self.tokenizer.encode_memo(text, special_tokens, &mut memo, &mut tokens)?;
            }
            Err(_) => self.tokenizer.encode_into(text, special_tokens, &mut tokens)?,
        }
        Ok(tokens)
    }
}

/// The moment in UTC, as engines in containers have it.
fn civil_time(now: NowMs) -> CivilTime {
    let unix_s = i64::try_from(now.0 / 1_000).unwrap_or(i64::MAX);
    CivilTime::from_unix(unix_s, (now.0 % 1_000) as u32 * 1_000, 0)
}
