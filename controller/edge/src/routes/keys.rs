//! API keys.

use crate::auth::Caller;
use crate::detached::detached;
use crate::extract::{Idempotency, JsonBody, NotIdempotent, Segment};
use crate::problem::Refusal;
use crate::state::Edge;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use lazaret_api::public::{CreateKey, Key, KeyList, NewKey};
use lazaret_domain::KeyId;

/// List keys, without their secrets
#[utoipa::path(get, path = "/api/v1/keys", tag = "keys",
    responses((status = 200, description = "All keys.", body = KeyList)))]
pub(super) async fn list_keys(
    State(edge): State<Edge>,
    Caller(by): Caller,
) -> Result<Json<KeyList>, Refusal> {
    Ok(Json(edge.services.keys.list(&by).await?))
}

/// Make a key
///
/// The answer shows its token, and nothing ever shows it again. Asked again it makes another key, so it
/// refuses `Idempotency-Key`.
#[utoipa::path(post, path = "/api/v1/keys", tag = "keys", request_body = CreateKey,
    responses((status = 201, description = "The key and its token.", body = NewKey)))]
pub(super) async fn create_key(
    State(edge): State<Edge>,
    Caller(by): Caller,
    _: NotIdempotent,
    JsonBody(request): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<NewKey>), Refusal> {
    let key = detached(async move { edge.services.keys.create(&by, request).await }).await?;
    Ok((StatusCode::CREATED, Json(key)))
}

/// Revoke a key
///
/// It stops working at once.
#[utoipa::path(delete, path = "/api/v1/keys/{id}", tag = "keys",
    params(("id" = KeyId, Path, description = "The key's id.")),
    responses((status = 200, description = "The key as it is now.", body = Key)))]
pub(super) async fn revoke_key(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(id): Segment<KeyId>,
    _: Idempotency,
) -> Result<Json<Key>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.keys.revoke(&by, &id).await }).await?,
    ))
}
