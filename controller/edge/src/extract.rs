//! What handlers take: bodies, queries, paths and headers, already checked.

use crate::auth::Caller;
use crate::body::{self, Bounds};
use crate::client::Client;
use crate::decode;
use crate::places::Place;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use lazaret_domain::{Denial, DenialCode};
use lazaret_services::IdempotencyKey;
use serde::de::DeserializeOwned;
use std::str::FromStr;

/// A JSON body of a known shape, at most the JSON limit long.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Edge> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, edge: &Edge) -> Result<Self, Refusal> {
        if !is_json(request.headers()) {
            let denial = Denial::new(
                DenialCode::UnsupportedMediaType,
                "the body is JSON: content-type application/json",
            );
            return Err(denial.into());
        }
        let (parts, body) = request.into_parts();
        let bytes = body::read(&parts.headers, body, Bounds::json(&edge.settings)).await?;
        Ok(Self(decode::from_slice(&bytes)?))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split(';').next());
    essence.is_some_and(|text| text.trim().eq_ignore_ascii_case("application/json"))
}

/// The bytes of an upload, at most the upload limit long. Only so many are in memory at the same
/// time, until the handler has done with them, and only some of those are one caller's.
pub(crate) struct UploadBody {
    pub(crate) bytes: Bytes,
    pub(crate) held: Place,
}

impl FromRequest<Edge> for UploadBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, edge: &Edge) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let Caller(by) = Caller::from_request_parts(&mut parts, edge).await?;
        let OneClient(client) = OneClient::from_request_parts(&mut parts, edge).await?;
        let held = edge.uploads.take(client, &by.key)?;
        let bytes = body::read(&parts.headers, body, Bounds::upload(&edge.settings)).await?;
        Ok(Self { bytes, held })
    }
}

/// The client that was noted in the request.
pub(crate) struct OneClient(pub(crate) Client);

impl<S: Sync> FromRequestParts<S> for OneClient {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let client = parts.extensions.get::<Client>().copied().map(Self);
        client.ok_or_else(|| {
            Denial::new(DenialCode::Internal, "the client could not be told apart").into()
        })
    }
}

/// A query of a known shape; names that it does not have are refused.
pub(crate) struct UrlQuery<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for UrlQuery<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(query) => Ok(Self(query.0)),
            Err(rejection) => Err(decode::query_denial(&rejection).into()),
        }
    }
}

/// One path parameter, read by its own type.
pub(crate) struct Segment<T>(pub(crate) T);

impl<T: FromStr<Err = Denial>, S: Send + Sync> FromRequestParts<S> for Segment<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| unreadable(&error))?;
        Ok(Self(text.parse()?))
    }
}

/// Two path parameters, each read by its own type.
pub(crate) struct Segments<A, B>(pub(crate) A, pub(crate) B);

impl<A: FromStr<Err = Denial>, B: FromStr<Err = Denial>, S: Send + Sync> FromRequestParts<S>
    for Segments<A, B>
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path((first, second)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| unreadable(&error))?;
        Ok(Self(first.parse()?, second.parse()?))
    }
}

fn unreadable(_: &PathRejection) -> Refusal {
    Denial::new(DenialCode::InvalidId, "a part of the path is not UTF-8").into()
}

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The `Idempotency-Key` header. Mutations that are idempotent by themselves need it for nothing,
/// and still refuse one that is out of form.
pub(crate) struct Idempotency(pub(crate) Option<IdempotencyKey>);

impl<S: Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else {
            return Ok(Self(None));
        };
        if values.next().is_some() {
            return Err(Denial::new(
                DenialCode::InvalidIdempotencyKey,
                "there is more than one Idempotency-Key",
            )
            .into());
        }
        // What is not ASCII fails as an empty key does.
        Ok(Self(Some(value.to_str().unwrap_or_default().parse()?)))
    }
}
