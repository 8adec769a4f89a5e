//! Between HTTP and what is meant by it: refusals, bodies, headers.

mod paced;

pub(crate) use paced::{Moved, Pace, paced};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use lazaret_api::{FENCE_HEADER, PROTOCOL, PROTOCOL_HEADER};
use lazaret_domain::{Denial, DenialClass, DenialCode, Fence};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A denial as an answer.
#[derive(Debug)]
pub(crate) struct Refused(pub Denial);

impl From<Denial> for Refused {
    fn from(denial: Denial) -> Self {
        Self(denial)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.0.class() {
            DenialClass::Invalid => StatusCode::BAD_REQUEST,
            DenialClass::Unauthenticated => StatusCode::UNAUTHORIZED,
            DenialClass::Forbidden => StatusCode::FORBIDDEN,
            DenialClass::NotFound => StatusCode::NOT_FOUND,
            DenialClass::Conflict => StatusCode::CONFLICT,
            DenialClass::Gone => StatusCode::GONE,
            DenialClass::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            DenialClass::Capacity => StatusCode::TOO_MANY_REQUESTS,
            DenialClass::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            DenialClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, axum::Json(self.0)).into_response()
    }
}

/// What a handler answers.
pub(crate) type Answer = Result<Response, Refused>;

/// A value as JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Answer {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| crate::state::internal("write an answer", &error))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// A body as a value. Longer than `limit`, or with unknown fields: refused.
pub(crate) async fn read<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Denial> {
    let bytes = read_bytes(body, limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Denial::new(
            DenialCode::InvalidRequest,
            format!("the body is not of the documented form: {error}"),
        )
    })
}

/// A body whole.
pub(crate) async fn read_bytes<B>(body: B, limit: usize) -> Result<Bytes, Denial>
where
    B: http_body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Denial::new(
            DenialCode::TooLarge,
            format!("the body is larger than {limit} bytes"),
        )),
        Err(_) => Err(Denial::new(
            DenialCode::InvalidRequest,
            "the body was cut off",
        )),
    }
}

/// The fence of a call with an effect.
pub(crate) fn fence(headers: &HeaderMap) -> Result<Fence, Denial> {
    headers
        .get(FENCE_HEADER)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .map(Fence)
        .ok_or_else(|| {
            Denial::new(
                DenialCode::InvalidRequest,
                format!("the call needs a number in {FENCE_HEADER}"),
            )
        })
}

/// Refuses a caller that names a protocol generation we do not know.
pub(crate) fn known_protocol(headers: &HeaderMap) -> Result<(), Denial> {
    match headers.get(PROTOCOL_HEADER).map(|value| {
        value
            .to_str()
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
    }) {
        None => Ok(()),
        Some(Some(generation)) if generation == PROTOCOL => Ok(()),
        Some(_) => Err(Denial::new(
            DenialCode::HostVersion,
            format!("this host speaks protocol generation {PROTOCOL}; upgrade the older side"),
        )),
    }
}

/// The denial in an answer that is not a success, or what can be said about it.
pub(crate) async fn denial_of<B>(response: http::Response<B>) -> Denial
where
    B: http_body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    match read_bytes(response.into_body(), 64 << 10).await {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            Denial::new(
                DenialCode::Internal,
                format!("an answer of status {status} without a reason"),
            )
        }),
        Err(denial) => denial,
    }
}
