//! Failures in the API's own shape: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::tokens::PromptError;
use crate::model::SubmitError;

/// Why a request is not answered with tokens. The status says whether a retry elsewhere helps: 4xx
/// no, 5xx yes.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The body is JSON of another shape.
    #[error("{reason}")]
    WrongShape {
        /// What is wrong.
        reason: String,
        /// The field that is wrong.
        param: Option<&'static str>,
    },
    /// The body cannot be read: too long, or cut off.
    #[error("{reason}")]
    Body {
        /// The status that says which.
        status: StatusCode,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer refuses the prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// Prompt and output do not fit.
    #[error(
        "This model's maximum context length is {context_tokens_max} tokens. However, you requested {output_tokens} output tokens and your prompt contains {prompt_tokens} input tokens. Please reduce the length of the input prompt or the number of requested output tokens."
    )]
    TooLong {
        /// Tokens in the prompt.
        prompt_tokens: u32,
        /// Output tokens asked for.
        output_tokens: u32,
        /// The longest context.
        context_tokens_max: u32,
    },
    /// Another model is served.
    #[error("The model `{model}` does not exist.")]
    UnknownModel {
        /// The model asked for.
        model: String,
    },
    /// The engine refuses the request.
    #[error(transparent)]
    Engine(#[from] SubmitError),
    /// The engine is told to fail with this status, or dropped the request in a reset.
    #[error("the engine failed")]
    Failed {
        /// The status.
        status: StatusCode,
    },
}

impl ApiError {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotJson(_) | Self::WrongShape { .. } | Self::Prompt(_) | Self::TooLong { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::Body { status, .. } | Self::Failed { status } => *status,
            Self::UnknownModel { .. } => StatusCode::NOT_FOUND,
            Self::Engine(SubmitError::Full) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Engine(_) => StatusCode::BAD_REQUEST,
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            Self::WrongShape { param, .. } => *param,
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let kind = match status {
            StatusCode::NOT_FOUND => "NotFoundError",
            status if status.is_client_error() => "BadRequestError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        let body = json!({"error": {
            "message": self.to_string(),
            "type": kind,
            "param": self.param(),
            "code": status.as_u16(),
        }});
        (status, Json(body)).into_response()
    }
}
