//! `/sim/`: what tests and benches want to know of an engine, or to break in it.
//!
//! | route | what |
//! |---|---|
//! | `GET /sim/requests` | the engine's own record of what it served, oldest first |
//! | `GET /sim/stats` | its counters and gauges, and the fault in force |
//! | `POST /sim/reset` | start over: drops requests, cache, counters, records and fault |
//! | `POST /sim/fail` | puts a [`Fault`] in force |

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use super::command::Command;
use super::driver::EngineHandle;
use super::error::ApiError;
use super::fault::Fault;
use super::record::RequestRecord;

pub(super) fn router() -> Router<EngineHandle> {
    Router::new()
        .route("/sim/requests", get(requests))
        .route("/sim/stats", get(stats))
        .route("/sim/reset", post(reset))
        .route("/sim/fail", post(fail))
}

async fn requests(State(engine): State<EngineHandle>) -> Response {
    // Serializing thousands of records under the lock would hold up the engine's task.
    let (records, forgotten) = {
        let log = engine.log();
        let records: Vec<RequestRecord> = log.iter().cloned().collect();
        (records, log.forgotten())
    };
    Json(json!({"forgotten": forgotten, "requests": records})).into_response()
}

async fn stats(State(engine): State<EngineHandle>) -> Response {
    let Ok((stats, now)) = engine.ask(Command::Stats).await else {
        return gone();
    };
    let profile = &engine.config().profile;
    Json(json!({
        "model_time_ms": now.as_millis_f64(),
        "profile": profile.name,
        "speed": engine.config().speed,
        "block_size_tokens": profile.block_size_tokens,
        "num_gpu_blocks": profile.num_gpu_blocks(),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": stats.kv_usage,
        "kv_used_blocks": stats.kv_used_blocks,
        "kv_usable_blocks": stats.kv_usable_blocks,
        "kv_hashed_blocks": stats.kv_hashed_blocks,
        "prompt_tokens": stats.prompt_tokens,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "generation_tokens": stats.generation_tokens,
        "preemptions": stats.preemptions,
        "evictions": stats.evictions,
        "submitted": stats.submitted,
        "finished": stats.finished,
        "aborted": stats.aborted,
        "steps": stats.steps,
        "fault": engine.fault().get(),
    }))
    .into_response()
}

async fn reset(State(engine): State<EngineHandle>) -> Response {
    match engine.ask(Command::Reset).await {
        Ok(()) => Json(json!({"success": true})).into_response(),
        Err(_) => gone(),
    }
}

async fn fail(State(engine): State<EngineHandle>, body: Bytes) -> Response {
    let fault: Fault = match serde_json::from_slice(&body) {
        Ok(fault) => fault,
        Err(error) => return ApiError::NotJson(error).into_response(),
    };
    if !(fault.slow_factor.is_finite() && fault.slow_factor > 0.0) {
        return ApiError::WrongShape {
            reason: "`slow_factor` must be positive and finite".to_owned(),
            param: Some("slow_factor"),
        }
        .into_response();
    }
    match engine.ask(|done| Command::SetFault(fault, done)).await {
        Ok(()) => Json(json!({"success": true})).into_response(),
        Err(_) => gone(),
    }
}

fn gone() -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiError::Failed { status }.into_response()
}
