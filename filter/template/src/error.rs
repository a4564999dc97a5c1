//! What can go wrong, once at compile time and once at each render.
//!
//! A [`TemplateError`] belongs to the model: retrying does not help, and the
//! operator has to see it. A [`RenderError`] belongs to one request: the engine
//! would refuse the same request too, or a limit was met; either way the caller
//! goes on without a predicted prompt.

use thiserror::Error;

/// Why a model's templates cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// No template was given.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The source is longer than [`crate::limits::SOURCE_BYTES_MAX`].
    #[error("template `{name}` has {bytes} bytes, the limit is {bytes_max}")]
    TooLong {
        /// The template's name.
        name: String,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The source is not a valid template; transformers refuses it too.
    #[error("template `{name}`, line {line}: {reason}")]
    Syntax {
        /// The template's name.
        name: String,
        /// Line in the source, from 1; 0 when unknown.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The template is valid, but would not be rendered exactly here.
    #[error("template `{name}`, line {line}: not supported: {reason}")]
    Refused {
        /// The template's name.
        name: String,
        /// Line in the source, from 1; 0 when unknown.
        line: usize,
        /// Which construct, and why.
        reason: String,
    },
}

/// Why one request could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RenderError {
    /// The request names a template that the model does not have.
    #[error("the model has no template for this request")]
    NoSuchTemplate,
    /// The messages, tools or documents do not have the shape that transformers asks for.
    #[error("bad conversation: {0}")]
    Conversation(ConversationError),
    /// The template called `raise_exception`.
    #[error("the template refused the conversation: {0}")]
    Raised(String),
    /// An operation failed where Python would raise.
    #[error("rendering failed: {0}")]
    Operation(String),
    /// The fuel ran out.
    #[error("the template needs more work than the limit allows")]
    OutOfFuel,
    /// The output is longer than the limit.
    #[error("the prompt is longer than {bytes_max} bytes")]
    OutputTooLong {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// A value is nested deeper than the limit.
    #[error("values nested deeper than {depth_max}")]
    TooDeep {
        /// The limit in levels.
        depth_max: usize,
    },
}

/// What is wrong with the conversation, where transformers checks it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConversationError {
    /// `messages` is not a list of objects.
    #[error("messages must be a list of objects")]
    MessagesShape,
    /// `messages` is empty.
    #[error("the conversation is empty")]
    Empty,
    /// `tools` is not a list of objects.
    #[error("tools must be a list of objects")]
    ToolsShape,
    /// `documents` is not a list of objects.
    #[error("documents must be a list of objects")]
    DocumentsShape,
    /// `continue_final_message` and `add_generation_prompt` exclude each other.
    #[error("continue_final_message excludes add_generation_prompt")]
    ContinueAndPrompt,
    /// The final message has nothing to continue.
    #[error("the final message has no text to continue")]
    NothingToContinue,
    /// The final message is not in the rendered prompt.
    #[error("the template drops parts of the final message")]
    FinalMessageDropped,
}
