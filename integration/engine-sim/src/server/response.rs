//! Answers: token streams as server-sent events, and JSON.
//!
//! What comes in: the engine's progress with each prompt of a request. What goes out: an HTTP
//! response in vLLM's shape. Dropping an unfinished one aborts its prompts in the engine, which is
//! how a client's disconnect gets there.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ahash::AHashMap;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::command::Progress;
use super::connection::ConnectionControl;
use super::driver::EngineHandle;
use super::error::ApiError;
use super::fault::UsageFault;
use super::garbage;
use super::request::Api;
use super::tokens::OutputWord;
use crate::model::RequestId;

/// How long a deliberate reset waits for the bytes before it to leave. A loopback write takes
/// microseconds; the rest is for a busy machine.
const FLUSH_WAIT: Duration = Duration::from_millis(20);

/// The texts of the output tokens.
#[derive(Debug)]
pub struct Words {
    ids: Arc<[u32]>,
    /// Text, and the same as a JSON string.
    texts: AHashMap<u32, (String, String)>,
}

impl Words {
    /// The texts of these words.
    #[must_use]
    pub fn new(words: Vec<OutputWord>) -> Self {
        let ids = words.iter().map(|word| word.token).collect();
        let texts = words
            .into_iter()
            .map(|OutputWord { token, text }| {
                let quoted = Value::String(text.clone()).to_string();
                (token, (text, quoted))
            })
            .collect();
        Self { ids, texts }
    }

    /// The tokens.
    #[must_use]
    pub fn ids(&self) -> Arc<[u32]> {
        Arc::clone(&self.ids)
    }

    fn text(&self, token: u32) -> &str {
        self.texts.get(&token).map_or("", |(text, _)| text)
    }

    fn quoted(&self, token: u32) -> &str {
        self.texts.get(&token).map_or("\"\"", |(_, quoted)| quoted)
    }
}

/// One HTTP request's prompts in the engine.
pub(super) struct Generation {
    api: Api,
    /// The id that the answer carries.
    id: String,
    created_s: u64,
    engine: EngineHandle,
    progress: mpsc::UnboundedReceiver<Progress>,
    choices: Vec<Choice>,
    include_usage: bool,
    usage_fault: UsageFault,
    /// Set when the answer is to be broken after its first part.
    break_with: Option<ConnectionControl>,
    sent_any: bool,
}

/// What became of one prompt.
struct Choice {
    request: RequestId,
    prompt_tokens: u32,
    cached_tokens: u32,
    output: Vec<u32>,
    finished: bool,
}

/// What a [`Generation`] is made of.
pub(super) struct GenerationParts {
    pub(super) api: Api,
    pub(super) id: String,
    pub(super) engine: EngineHandle,
    pub(super) progress: mpsc::UnboundedReceiver<Progress>,
    pub(super) requests: Vec<RequestId>,
    pub(super) include_usage: bool,
    pub(super) usage_fault: UsageFault,
    pub(super) break_with: Option<ConnectionControl>,
}

impl Drop for Generation {
    fn drop(&mut self) {
        let unfinished: Vec<RequestId> = self
            .choices
            .iter()
            .filter(|choice| !choice.finished)
            .map(|choice| choice.request)
            .collect();
        if !unfinished.is_empty() {
            self.engine.abort(unfinished);
        }
    }
}

impl Generation {
    pub(super) fn new(parts: GenerationParts) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let choices = parts
            .requests
            .into_iter()
            .map(|request| Choice {
                request,
                prompt_tokens: 0,
                cached_tokens: 0,
                output: Vec::new(),
                finished: false,
            })
            .collect();
        Self {
            api: parts.api,
            id: parts.id,
            created_s: now.as_secs(),
            engine: parts.engine,
            progress: parts.progress,
            choices,
            include_usage: parts.include_usage,
            usage_fault: parts.usage_fault,
            break_with: parts.break_with,
            sent_any: false,
        }
    }

    /// The answer as a stream of events. Headers go out at once; the first event with the first
    /// token.
    pub(super) fn into_sse(self) -> Response {
        let body = Body::from_stream(stream::unfold(Some(self), |generation| async {
            let mut generation = generation?;
            match generation.next_events().await {
                Ok(events) if generation.all_finished() && generation.break_with.is_none() => {
                    Some((Ok(events), None))
                }
                Ok(events) => Some((Ok(events), Some(generation))),
                Err(error) => Some((Err(error), None)),
            }
        }));
        let mut response = Response::new(body);
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    /// The whole answer, once it is there.
    pub(super) async fn into_json(mut self) -> Result<Response, ApiError> {
        while !self.all_finished() {
            let Some(progress) = self.progress.recv().await else {
                let status = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
                return Err(ApiError::Failed { status });
            };
            self.take(&progress);
        }
        self.engine.fault().resumed().await;
        let text = self.json().to_string();
        let body = match self.break_with.take() {
            None => Body::from(text),
            Some(control) => broken_body(text, control),
        };
        let mut response = Response::new(body);
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    fn all_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.finished)
    }

    /// Books progress; returns whether it is the choice's first.
    fn take(&mut self, progress: &Progress) -> bool {
        let Some(choice) = self.choices.get_mut(progress.index as usize) else {
            return false;
        };
        let first = choice.output.is_empty();
        choice.prompt_tokens = progress.prompt_tokens;
        choice.cached_tokens = progress.cached_tokens;
        choice.output.extend_from_slice(&progress.tokens);
        choice.finished = progress.finished;
        first
    }

    /// Waits for tokens; returns the events of all that are there.
    async fn next_events(&mut self) -> io::Result<Bytes> {
        if self.sent_any
            && let Some(control) = self.break_with.take()
        {
            return Err(reset_after_flush(&control).await);
        }
        let mut progress = self.progress.recv().await.ok_or(io::ErrorKind::ConnectionReset)?;
        self.engine.fault().resumed().await;
        self.sent_any = true;
        let mut out = String::with_capacity(512);
        loop {
            self.write_events(&progress, &mut out);
            match self.progress.try_recv() {
                Ok(more) => progress = more,
                Err(_) => break,
            }
        }
        if self.break_with.is_some() {
            // However much is there already, the client gets only a part of it.
            out.truncate(out.floor_char_boundary(out.len() / 2));
        } else if self.all_finished() {
            if let Some(usage) = self.usage().filter(|_| self.include_usage) {
                self.write_usage(&usage, &mut out);
            }
            out.push_str("data: [DONE]\n\n");
        }
        Ok(Bytes::from(out))
    }

    fn write_events(&mut self, progress: &Progress, out: &mut String) {
        let first = self.take(progress);
        let index = progress.index;
        if first && self.api == Api::Chat {
            self.write_head(out);
            let _ = write!(
                out,
                r#"[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]}}"#
            );
            out.push_str("\n\n");
        }
        let last = progress.tokens.len().wrapping_sub(1);
        for (at, &token) in progress.tokens.iter().enumerate() {
            self.write_head(out);
            let text = self.engine.words().quoted(token);
            let end = if progress.finished && at == last {
                r#""finish_reason":"length","stop_reason":null"#
            } else {
                r#""finish_reason":null"#
            };
            let _ = match self.api {
                Api::Chat => write!(
                    out,
                    r#"[{{"index":{index},"delta":{{"content":{text}}},"logprobs":null,{end}}}]}}"#
                ),
                Api::Completions => {
                    write!(out, r#"[{{"index":{index},"text":{text},"logprobs":null,{end}}}]}}"#)
                }
            };
            out.push_str("\n\n");
        }
    }

    /// An event up to its choices.
    fn write_head(&self, out: &mut String) {
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completions => "text_completion",
        };
        // The id may come from a client's header and needs quoting; so may the model's name.
        let (id, model) = (json!(self.id), json!(self.engine.config().model_name()));
        let _ = write!(
            out,
            r#"data: {{"id":{id},"object":"{object}","created":{},"model":{model},"choices":"#,
            self.created_s
        );
    }

    fn write_usage(&self, usage: &Value, out: &mut String) {
        self.write_head(out);
        let _ = write!(out, r#"[],"usage":{usage}}}"#);
        out.push_str("\n\n");
    }

    /// What the answer says of its tokens; `None` when it is told not to.
    fn usage(&self) -> Option<Value> {
        match self.usage_fault {
            UsageFault::Ok => Some(self.true_usage()),
            UsageFault::Garbage => {
                let number = self.choices.first().map_or(0, |choice| choice.request.0);
                Some(garbage::usage(self.engine.config().seed, number))
            }
            UsageFault::Missing => None,
        }
    }

    fn true_usage(&self) -> Value {
        let sum = |of: fn(&Choice) -> u64| self.choices.iter().map(of).sum::<u64>();
        let prompt_tokens = sum(|choice| u64::from(choice.prompt_tokens));
        let completion_tokens = sum(|choice| choice.output.len() as u64);
        json!({
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(|choice| u64::from(choice.cached_tokens)),
            },
        })
    }

    fn json(&self) -> Value {
        let choices: Vec<Value> = self
            .choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let words = self.engine.words();
                let text: String = choice.output.iter().map(|&token| words.text(token)).collect();
                match self.api {
                    Api::Chat => json!({
                        "index": index,
                        "message": {"role": "assistant", "content": text},
                        "logprobs": null,
                        "finish_reason": "length",
                        "stop_reason": null,
                    }),
                    Api::Completions => json!({
                        "index": index,
                        "text": text,
                        "logprobs": null,
                        "finish_reason": "length",
                        "stop_reason": null,
                    }),
                }
            })
            .collect();
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Completions => "text_completion",
        };
        let mut answer = json!({
            "id": self.id,
            "object": object,
            "created": self.created_s,
            "model": self.engine.config().model_name(),
            "choices": choices,
        });
        if let Some(usage) = self.usage() {
            answer["usage"] = usage;
        }
        answer
    }
}

/// Resets a connection once what was written before has left.
async fn reset_after_flush(control: &ConnectionControl) -> io::Error {
    // hyper flushes when the body has nothing more at hand; the socket then takes it at once.
    tokio::time::sleep(FLUSH_WAIT).await;
    control.reset();
    io::ErrorKind::ConnectionReset.into()
}

/// The first half of `text`, then a reset.
fn broken_body(text: String, control: ConnectionControl) -> Body {
    let mut bytes = Bytes::from(text);
    let half = bytes.split_to(bytes.len() / 2);
    let first = stream::once(async move { Ok(half) });
    let then = stream::once(async move { Err(reset_after_flush(&control).await) });
    Body::from_stream(first.chain(then))
}
