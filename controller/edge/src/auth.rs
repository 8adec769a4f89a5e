//! Who asks. One guard stands before every route; a handler gets the [`Caller`] from it, and cannot
//! ask the services anything without one.

pub(crate) mod guard;
pub(crate) mod throttle;

use crate::problem::Refusal;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use lazaret_domain::{Denial, DenialCode};
use lazaret_services::Principal;
use std::fmt;

/// The principal that the guard let in.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Principal);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| unauthenticated().into())
    }
}

/// The token as it was presented, for streams that ask again whether it is still good. Its debug
/// form shows nothing.
#[derive(Clone)]
pub(crate) struct Presented(pub(crate) String);

impl fmt::Debug for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presented(…)")
    }
}

/// The bearer token of a request. A URL never carries one, and two of them are none.
fn bearer(headers: &HeaderMap) -> Option<Presented> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
        .then(|| Presented(token.to_owned()))
}

pub(crate) fn unauthenticated() -> Denial {
    Denial::new(
        DenialCode::Unauthenticated,
        "this needs 'Authorization: Bearer' with a key that is good now",
    )
}
