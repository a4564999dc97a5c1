//! A bundle's tokenizer and chat template for simulated engines.
//!
//! In: the bundle that the filter loads, and request bodies. Out: the tokens that a real engine with that
//! model would see. Bodies are read here anew, not by the filter's code, so that a field which the filter
//! misreads shows as a difference in length between the two.

use std::path::Path;

use serde_json::{Map, Value};
use warmpath_bundle::{Bundle, Tokenizer};
use warmpath_engine_sim::server::{OutputWord, PromptError, PromptTokenizer, TokenizedPrompt};
use warmpath_template::{ChatRequest, ChatTemplates, CivilTime, RenderLimits, SpecialTokens};

use crate::HarnessError;
use crate::workload::WORDS;

/// Tokenizes as the bundle's model does.
pub struct BundleTokenizer {
    tokenizer: Tokenizer,
    templates: ChatTemplates,
    output: Vec<OutputWord>,
}

impl BundleTokenizer {
    /// Reads the bundle in `file`.
    pub fn load(file: &Path) -> Result<Self, HarnessError> {
        let bytes = std::fs::read(file).map_err(HarnessError::file(file))?;
        let fail = |why: String| HarnessError::Bundle { path: file.to_path_buf(), why };
        let bundle = Bundle::read(bytes).map_err(|error| fail(error.to_string()))?;
        let special = SpecialTokens {
            bos_token: bundle.special.bos_token,
            eos_token: bundle.special.eos_token,
            pad_token: bundle.special.pad_token,
            unk_token: bundle.special.unk_token,
            extra: bundle.special.extra.into_iter().map(|(k, v)| (k, Value::from(v))).collect(),
        };
        let templates = ChatTemplates::compile(&bundle.templates, special)
            .map_err(|error| fail(error.to_string()))?;
        let tokenizer = bundle.tokenizer;
        let output = output_words(&tokenizer);
        if output.is_empty() {
            return Err(fail("no common word is one token in its vocabulary".to_owned()));
        }
        Ok(Self { tokenizer, templates, output })
    }

    fn encode(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        encode(&self.tokenizer, text, special_tokens)
    }

    fn chat(&self, body: &Value) -> Result<Vec<u32>, PromptError> {
        let wrong = |what: &str| PromptError::WrongShape { reason: format!("{what} is wrong") };
        let messages = body.get("messages").filter(|messages| messages.is_array());
        let flag = |name: &str, default: bool| match body.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| wrong(name)),
        };
        let present = |name: &str| body.get(name).filter(|value| !value.is_null());
        let none = Map::new();
        let kwargs = present("chat_template_kwargs").and_then(Value::as_object).unwrap_or(&none);
        let request = ChatRequest {
            messages: messages.ok_or_else(|| wrong("`messages`"))?,
            tools: present("tools"),
            documents: present("documents"),
            add_generation_prompt: flag("add_generation_prompt", true)?,
            continue_final_message: flag("continue_final_message", false)?,
            kwargs,
            template_name: None,
            now: CivilTime::from_unix(0, 0, 0),
        };
        let text = self
            .templates
            .render(&request, &RenderLimits::default())
            .map_err(|error| PromptError::Unsupported { reason: error.to_string() })?;
        self.encode(&text, false)
    }

    fn completion(&self, body: &Value) -> Result<Vec<u32>, PromptError> {
        match body.get("prompt") {
            Some(Value::String(text)) => self.encode(text, true),
            Some(Value::Array(ids)) => {
                let ids = ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
                ids.collect::<Option<_>>().ok_or_else(|| PromptError::WrongShape {
                    reason: "`prompt` must hold token ids only".to_owned(),
                })
            }
            _ => Err(PromptError::WrongShape { reason: "`prompt` is wrong".to_owned() }),
        }
    }
}

impl PromptTokenizer for BundleTokenizer {
    fn tokens(&self, path: &str, body: &Value) -> Result<TokenizedPrompt, PromptError> {
        let is_chat = path.ends_with("/chat/completions");
        let tokens = if is_chat { self.chat(body)? } else { self.completion(body)? };
        if tokens.is_empty() {
            return Err(PromptError::Empty);
        }
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        // A zero byte is in no model name, so that the two cannot run into each other.
        let namespace = format!("{}\0{}", text("model"), text("cache_salt"));
        Ok(TokenizedPrompt { tokens, namespace })
    }

    fn output_words(&self) -> Vec<OutputWord> {
        self.output.clone()
    }
}

/// The words that are one token each with a space before them: any row of them encodes to these tokens
/// again, so that a chat's next turn repeats an answer token by token.
fn output_words(tokenizer: &Tokenizer) -> Vec<OutputWord> {
    let words = WORDS.iter().filter_map(|word| {
        let text = format!(" {word}");
        let tokens = encode(tokenizer, &text, false).ok()?;
        let [token] = tokens[..] else { return None };
        Some(OutputWord { token, text })
    });
    words.collect()
}

fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    special_tokens: bool,
) -> Result<Vec<u32>, PromptError> {
    let mut tokens: Vec<u32> = Vec::new();
    tokenizer
        .encode_into(text, special_tokens, &mut tokens)
        .map_err(|error| PromptError::Unsupported { reason: error.to_string() })?;
    Ok(tokens)
}
