//! Hosts: the machines that run sandboxes.

use crate::auth::Caller;
use crate::detached::detached;
use crate::extract::{Idempotency, JsonBody, Segment};
use crate::problem::Refusal;
use crate::state::Edge;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use lazaret_api::public::{EnrollHost, Host, HostList, SetAdmission};
use lazaret_domain::HostName;

/// List hosts
#[utoipa::path(get, path = "/api/v1/hosts", tag = "hosts",
    responses((status = 200, description = "All hosts.", body = HostList)))]
pub(super) async fn list_hosts(
    State(edge): State<Edge>,
    Caller(by): Caller,
) -> Result<Json<HostList>, Refusal> {
    Ok(Json(edge.services.hosts.list(&by).await?))
}

/// Enrol a host
///
/// Connects to it first; its host key must be the one given. The same host again is success.
#[utoipa::path(post, path = "/api/v1/hosts", tag = "hosts", request_body = EnrollHost,
    responses((status = 201, description = "It is enrolled.", body = Host)))]
pub(super) async fn enroll_host(
    State(edge): State<Edge>,
    Caller(by): Caller,
    _: Idempotency,
    JsonBody(request): JsonBody<EnrollHost>,
) -> Result<(StatusCode, Json<Host>), Refusal> {
    let host = detached(async move { edge.services.hosts.enroll(&by, request).await }).await?;
    Ok((StatusCode::CREATED, Json(host)))
}

/// Say whether new sandboxes go to a host
#[utoipa::path(patch, path = "/api/v1/hosts/{name}", tag = "hosts", request_body = SetAdmission,
    params(("name" = HostName, Path, description = "The host's name.")),
    responses((status = 200, description = "The host as it is now.", body = Host)))]
pub(super) async fn set_admission(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(name): Segment<HostName>,
    _: Idempotency,
    JsonBody(request): JsonBody<SetAdmission>,
) -> Result<Json<Host>, Refusal> {
    let host = detached(async move {
        edge.services
            .hosts
            .set_admission(&by, &name, request.admission)
            .await
    })
    .await?;
    Ok(Json(host))
}
