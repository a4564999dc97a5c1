//! The URL space of one engine.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::command::{Command, Submission, SubmissionItem};
use super::connection::ConnectionControl;
use super::driver::EngineHandle;
use super::error::ApiError;
use super::fault::{FailMode, Fault, MetricsFault};
use super::garbage;
use super::record::{RecordState, RequestRecord};
use super::request::{self, Api, GenerationRequest};
use super::response::{Generation, GenerationParts};
use super::{sent, sim_routes};
use crate::limits::{BODY_BYTES_MAX, INLINE_PARSE_BYTES_MAX};
use crate::model::RequestId;

/// Asks for a load report in the answer's headers.
const LOAD_FORMAT_HEADER: &str = "endpoint-load-metrics-format";
/// Carries it.
const LOAD_HEADER: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// The routes of one engine.
pub(super) fn router(engine: EngineHandle) -> Router {
    Router::new()
        .route(Api::Chat.path(), post(chat))
        .route(Api::Completions.path(), post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(engine.clone(), wait_while_paused))
        .merge(sim_routes::router())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(engine)
}

/// Leaves requests unread while the engine is paused.
async fn wait_while_paused(
    State(engine): State<EngineHandle>,
    request: Request,
    next: Next,
) -> Response {
    engine.fault().resumed().await;
    next.run(request).await
}

/// Reads the body before it says no: a connection closed with a body on its way may take the answer
/// with it.
async fn unknown(body: BodyResult) -> StatusCode {
    drop(body);
    StatusCode::NOT_FOUND
}

type BodyResult = Result<Bytes, BytesRejection>;

async fn chat(
    State(engine): State<EngineHandle>,
    ConnectInfo(control): ConnectInfo<ConnectionControl>,
    headers: HeaderMap,
    body: BodyResult,
) -> Response {
    generate(Api::Chat, engine, control, &headers, body).await
}

async fn completions(
    State(engine): State<EngineHandle>,
    ConnectInfo(control): ConnectInfo<ConnectionControl>,
    headers: HeaderMap,
    body: BodyResult,
) -> Response {
    generate(Api::Completions, engine, control, &headers, body).await
}

async fn generate(
    api: Api,
    engine: EngineHandle,
    control: ConnectionControl,
    headers: &HeaderMap,
    body: BodyResult,
) -> Response {
    let number = engine.next_id();
    let id = answer_id(api, headers, number);
    let (bytes, body) = match body {
        Ok(bytes) => (bytes.clone(), Ok(bytes)),
        Err(rejection) => (Bytes::new(), Err(rejection)),
    };
    let record = RequestRecord::new(id.clone(), api.path(), headers, &bytes);
    let fault = engine.fault().get();
    if let Some(broken) = break_early(fault.mode, &engine, &control, record.clone()).await {
        return broken;
    }
    let mid_stream = (fault.mode == FailMode::ResetMidStream).then_some(control);
    let rejected = record.clone();
    let answer = match read(api, &engine, body).await {
        Ok(request) => answer(api, &engine, request, record, (fault, mid_stream)).await,
        Err(error) => Err(error),
    };
    answer.map_or_else(
        |error| {
            let status = error.status().as_u16();
            let rejected = RequestRecord { state: RecordState::Rejected, status, ..rejected };
            let number = engine.log().push(rejected);
            sent::counted(error.into_response(), &engine, vec![number])
        },
        |response| with_load_report(response, &engine, headers),
    )
}

/// The id that the answer carries: the caller's own, if it gave one, as vLLM does.
fn answer_id(api: Api, headers: &HeaderMap, number: RequestId) -> String {
    let prefix = match api {
        Api::Chat => "chatcmpl",
        Api::Completions => "cmpl",
    };
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    match given {
        Some(given) => format!("{prefix}-{given}"),
        None => format!("{prefix}-sim-{:08x}", number.0),
    }
}

/// Carries out the faults that need no tokens.
async fn break_early(
    fault: FailMode,
    engine: &EngineHandle,
    control: &ConnectionControl,
    record: RequestRecord,
) -> Option<Response> {
    let status = match fault {
        FailMode::Ok | FailMode::ResetMidStream => return None,
        FailMode::Http500 | FailMode::ResetBeforeHeaders | FailMode::Hang => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        FailMode::Http503 => StatusCode::SERVICE_UNAVAILABLE,
    };
    let failed = RequestRecord { state: RecordState::Failed, status: status.as_u16(), ..record };
    let number = engine.log().push(failed);
    match fault {
        FailMode::Hang => std::future::pending().await,
        FailMode::ResetBeforeHeaders => control.reset(),
        _ => {}
    }
    Some(sent::counted(ApiError::Failed { status }.into_response(), engine, vec![number]))
}

/// Reads and tokenizes the body, off the async workers when it is large.
async fn read(
    api: Api,
    engine: &EngineHandle,
    body: BodyResult,
) -> Result<GenerationRequest, ApiError> {
    let body = body.map_err(|rejection| ApiError::Body {
        status: rejection.status(),
        reason: rejection.body_text(),
    })?;
    if body.len() <= INLINE_PARSE_BYTES_MAX {
        return request::parse(api, &body, engine.config(), engine.tokenizer());
    }
    let engine = engine.clone();
    tokio::task::spawn_blocking(move || {
        request::parse(api, &body, engine.config(), engine.tokenizer())
    })
    .await
    .unwrap_or(Err(ApiError::Failed { status: StatusCode::INTERNAL_SERVER_ERROR }))
}

/// Puts the prompts into the engine and answers with what comes out.
async fn answer(
    api: Api,
    engine: &EngineHandle,
    request: GenerationRequest,
    record: RequestRecord,
    (fault, break_with): (Fault, Option<ConnectionControl>),
) -> Result<Response, ApiError> {
    let (stream, include_usage) = (request.stream, request.include_usage);
    let id = record.id.clone();
    let items = submission_items(engine, request, &record);
    let requests: Vec<RequestId> = items.iter().map(|item| item.id).collect();
    let records: Vec<u64> = items.iter().map(|item| item.record).collect();
    let (sender, progress) = mpsc::unbounded_channel();
    // From here on, dropping this future or the answer aborts the prompts.
    let generation = Generation::new(GenerationParts {
        api,
        id,
        engine: engine.clone(),
        progress,
        requests,
        include_usage,
        usage_fault: fault.usage,
        break_with,
    });
    let (taken, was_taken) = oneshot::channel();
    let submission = Submission { items, progress: sender, taken };
    let gone = ApiError::Failed { status: StatusCode::SERVICE_UNAVAILABLE };
    if engine.send(Command::Submit(submission)).await.is_err() {
        return Err(gone);
    }
    let refused = match was_taken.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(ApiError::from(error)),
        Err(_) => Some(gone),
    };
    if let Some(error) = refused {
        let mut log = engine.log();
        for record in &records {
            if let Some(record) = log.get_mut(*record) {
                record.state = RecordState::Rejected;
                record.status = error.status().as_u16();
            }
        }
        drop(log);
        return Ok(sent::counted(error.into_response(), engine, records));
    }
    let response = if stream { generation.into_sse() } else { generation.into_json().await? };
    Ok(sent::counted(response, engine, records))
}

fn submission_items(
    engine: &EngineHandle,
    request: GenerationRequest,
    record: &RequestRecord,
) -> Vec<SubmissionItem> {
    let mut log = engine.log();
    request
        .prompts
        .into_iter()
        .zip(request.output_tokens)
        .zip(0..)
        .map(|((prompt, output_tokens), index)| SubmissionItem {
            id: engine.next_id(),
            index,
            record: log.push(RequestRecord {
                index,
                prompt_tokens: prompt.token_count(),
                ..record.clone()
            }),
            prompt,
            output_tokens,
        })
        .collect()
}

/// Adds the ORCA load report to a JSON answer if the request asks for it. vLLM adds none to
/// streams, whose headers leave before any token is computed.
fn with_load_report(
    mut response: Response,
    engine: &EngineHandle,
    headers: &HeaderMap,
) -> Response {
    let streams = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_none_or(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let Some(format) = headers.get(LOAD_FORMAT_HEADER).filter(|_| !streams) else {
        return response;
    };
    let report = engine.metrics().load_report();
    // `{:?}` prints whole numbers as Python does: 0.0 and not 0.
    let text = if format.as_bytes().eq_ignore_ascii_case(b"text") {
        let pairs = report.map(|(name, value)| format!("named_metrics.{name}={value:?}"));
        format!("TEXT {}", pairs.join(", "))
    } else if format.as_bytes().eq_ignore_ascii_case(b"json") {
        let pairs = report.map(|(name, value)| format!("\"{name}\": {value:?}"));
        format!("JSON {{\"named_metrics\": {{{}}}}}", pairs.join(", "))
    } else {
        return response;
    };
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(LOAD_HEADER, value);
    }
    response
}

async fn models(State(engine): State<EngineHandle>) -> Response {
    let config = engine.config();
    let data: Vec<_> = config
        .served_model_names
        .iter()
        .map(|name| {
            json!({
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "vllm",
                "root": config.model_name(),
                "parent": null,
                "max_model_len": config.profile.context_tokens_max(),
            })
        })
        .collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn health(State(engine): State<EngineHandle>) -> StatusCode {
    match engine.fault().get().mode {
        FailMode::Http500 | FailMode::Http503 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    }
}

async fn version() -> Response {
    Json(json!({"version": env!("CARGO_PKG_VERSION")})).into_response()
}

async fn metrics(State(engine): State<EngineHandle>) -> Response {
    let mut text = match engine.metrics().text() {
        Ok(text) => text.into_bytes(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    match engine.fault().get().metrics {
        MetricsFault::Ok => {}
        MetricsFault::Http500 => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        MetricsFault::Hang => std::future::pending().await,
        MetricsFault::Garbage => {
            text = garbage::page(engine.config().seed, engine.next_id().0);
        }
        MetricsFault::Truncated => {
            // Behind the second half's first digit, so that a number may be cut too.
            let half = text.len() / 2;
            let digit = text[half..].iter().position(u8::is_ascii_digit);
            text.truncate(half + digit.map_or(0, |digit| digit + 1));
        }
    }
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn reset_prefix_cache(State(engine): State<EngineHandle>) -> Response {
    let success = engine.ask(Command::ResetPrefixCache).await.unwrap_or(false);
    Json(json!({"success": success})).into_response()
}
