//! rmcp's HTTP transport behind our guard. Its own checks of `Host`, `Origin` and body length are
//! set from the same settings, so that they hold even if a layer of ours were lost.

use crate::body::{self, Bounds};
use crate::problem::{problem_of, status_of};
use crate::settings::EdgeSettings;
use crate::state::Edge;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, any};
use lazaret_domain::{Denial, DenialCode};
use rmcp::ServerHandler;
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{SessionManager, StreamableHttpService};
use serde_json::json;
use std::sync::Arc;

/// The route of `/mcp`.
pub(crate) fn service<H: ServerHandler>(
    edge: &Edge,
    handler: impl Fn() -> H + Send + Sync + 'static,
) -> MethodRouter<Edge> {
    if edge.settings.mcp_sessions {
        route(handler, LocalSessionManager::default(), &edge.settings)
    } else {
        route(handler, NeverSessionManager::default(), &edge.settings)
    }
}

fn route<H: ServerHandler, M: SessionManager>(
    handler: impl Fn() -> H + Send + Sync + 'static,
    sessions: M,
    settings: &EdgeSettings,
) -> MethodRouter<Edge> {
    let (config, bounds) = (config(settings), Bounds::json(settings));
    let service = StreamableHttpService::new(move || Ok(handler()), Arc::new(sessions), config);
    any(move |request: Request| {
        let service = service.clone();
        async move {
            // The transport waits for a body without a time limit, so it gets bodies whole.
            let (parts, body) = request.into_parts();
            match body::read(&parts.headers, body, bounds).await {
                Ok(bytes) => {
                    let request = Request::from_parts(parts, Body::from(bytes));
                    told_in_json(service.handle(request).await.map(Body::new))
                }
                Err(denial) => {
                    let status = status_of(denial.code);
                    told(Response::new(Body::empty()), status, &denial)
                }
            }
        }
    })
}

fn config(settings: &EdgeSettings) -> StreamableHttpServerConfig {
    StreamableHttpServerConfig::default()
        .with_legacy_session_mode(settings.mcp_sessions)
        .with_allowed_hosts(settings.hosts.iter().map(crate::origin::Authority::host))
        .with_allowed_origins(
            settings
                .origins
                .iter()
                .map(crate::origin::Origin::with_port),
        )
        .enforce_origin_validation()
        .with_max_request_body_bytes(settings.json_body)
        .with_sse_keep_alive(Some(settings.comment_every))
        .with_cancellation_token(settings.stop.child_token())
}

/// The transport tells some of its refusals as plain text. Here they become JSON-RPC errors whose
/// data is the problem document.
fn told_in_json(response: Response) -> Response {
    let status = response.status();
    let plain = |value: &HeaderValue| !value.as_bytes().starts_with(b"application/json");
    let is_refusal = status.is_client_error() || status.is_server_error();
    if !is_refusal || !response.headers().get(CONTENT_TYPE).is_none_or(plain) {
        return response;
    }
    let (code, message) = match status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            (DenialCode::TooLarge, "the message is longer than allowed")
        }
        StatusCode::METHOD_NOT_ALLOWED => (
            DenialCode::MethodNotAllowed,
            "only POST: there are no sessions here",
        ),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => (
            DenialCode::UnsupportedMediaType,
            "a message is application/json",
        ),
        StatusCode::FORBIDDEN => (
            DenialCode::ForeignOrigin,
            "requests from other sites are refused",
        ),
        status if status.is_server_error() => (
            DenialCode::Internal,
            "a fault of ours; the server's log has more",
        ),
        _ => (
            DenialCode::InvalidRequest,
            "not a message of this protocol, or its headers do not fit",
        ),
    };
    told(response, status, &Denial::new(code, message))
}

/// The answer as a JSON-RPC error about this denial, under this status.
fn told(response: Response, status: StatusCode, denial: &Denial) -> Response {
    let mut problem = problem_of(denial);
    problem.status = status.as_u16();
    status
        .canonical_reason()
        .unwrap_or("Error")
        .clone_into(&mut problem.title);
    let error = json!({
        "jsonrpc": "2.0",
        "id": null,
        "error": { "code": -32600, "message": denial.message, "data": problem },
    });
    let (mut parts, _) = response.into_parts();
    parts.status = status;
    parts
        .headers
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(error.to_string()))
}
