//! What passes between handlers and the task that owns an engine.

use tokio::sync::{mpsc, oneshot};

use super::fault::Fault;
use crate::model::{EngineStats, Prompt, RequestId, SimTime, SubmitError};

/// The prompts of one HTTP request.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) items: Vec<SubmissionItem>,
    pub(super) progress: mpsc::UnboundedSender<Progress>,
    /// Answered once the engine took all prompts or none.
    pub(super) taken: oneshot::Sender<Result<(), SubmitError>>,
}

/// One prompt.
#[derive(Debug)]
pub(super) struct SubmissionItem {
    pub(super) id: RequestId,
    pub(super) index: u32,
    /// Its number in the request log.
    pub(super) record: u64,
    pub(super) prompt: Prompt,
    pub(super) output_tokens: u32,
}

/// What handlers ask of an engine.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Submission),
    Abort(Vec<RequestId>),
    SetFault(Fault, oneshot::Sender<()>),
    ResetPrefixCache(oneshot::Sender<bool>),
    Stats(oneshot::Sender<(EngineStats, SimTime)>),
    /// Start over: drop every request, the cache, the counters.
    Reset(oneshot::Sender<()>),
}

/// Tokens that came due for one prompt.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) index: u32,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
    /// Whether these were the last.
    pub(super) finished: bool,
}
