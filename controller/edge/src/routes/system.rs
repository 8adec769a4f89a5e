//! The controller about itself.

use crate::auth::Caller;
use crate::openapi;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use lazaret_api::public::System;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The state of the controller
#[utoipa::path(get, path = "/api/v1/system", tag = "system",
    responses((status = 200, description = "The controller as it is now.", body = System)))]
pub(super) async fn get_system(
    State(edge): State<Edge>,
    Caller(by): Caller,
) -> Result<Json<System>, Refusal> {
    Ok(Json(edge.services.system(&by).await?))
}

/// Counters, in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, description = "Text.", body = String, content_type = "text/plain")))]
pub(super) async fn get_metrics(
    State(edge): State<Edge>,
    Caller(by): Caller,
) -> Result<([(HeaderName, &'static str); 1], String), Refusal> {
    let system = edge.services.system(&by).await?;
    let mut text = edge.counters.text();
    for (name, value) in [
        ("lazaret_active_runs", system.active_runs),
        ("lazaret_sandboxes", system.sandboxes),
    ] {
        let _ = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
    }
    Ok((
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    ))
}

/// This document
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "system",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object)))]
pub(super) async fn get_openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(openapi::document())
}

/// Whether the server answers
#[utoipa::path(get, path = "/healthz", tag = "system",
    responses((status = 200, description = "It does.", body = Object)))]
pub(super) async fn get_health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}
