//! API keys.

use crate::auth::Caller;
use crate::detached::detached;
use crate::extract::{Idempotency, JsonBody, Segment};
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
/// The answer shows its token, and nothing ever shows it again. Under an `Idempotency-Key` one key is
/// made: asking again is refused with `already_done`, which names the key that was made. Whoever lost
/// its token revokes it and creates another, under another `Idempotency-Key`.
#[utoipa::path(post, path = "/api/v1/keys", tag = "keys", request_body = CreateKey,
    params(("Idempotency-Key" = Option<String>, Header, description = "Asking again under the same key makes no second one.")),
    responses((status = 201, description = "The key and its token.", body = NewKey)))]
pub(super) async fn create_key(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Idempotency(once): Idempotency,
    JsonBody(request): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<NewKey>), Refusal> {
    let key = detached(async move { edge.services.keys.create(&by, once, request).await }).await?;
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
