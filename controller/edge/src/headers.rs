//! What every answer carries, refusals and panics included. There is no CORS header anywhere: other
//! sites have no business here.

use crate::state::Edge;
use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Data is never a document: it loads nothing and stands in no frame.
pub(crate) const DATA_POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A guest's bytes are shut in besides, should a browser be made to show them.
pub(crate) const BYTES_POLICY: &str =
    "default-src 'none'; sandbox; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FIXED: [(HeaderName, &str); 7] = [
    (
        STRICT_TRANSPORT_SECURITY,
        "max-age=31536000; includeSubDomains",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "accelerometer=(), autoplay=(), camera=(), display-capture=(), encrypted-media=(), fullscreen=(), \
         geolocation=(), gyroscope=(), magnetometer=(), microphone=(), midi=(), payment=(), \
         publickey-credentials-get=(), screen-wake-lock=(), usb=(), xr-spatial-tracking=()",
    ),
];

/// Completes an answer.
pub(crate) async fn finish(State(edge): State<Edge>, mut response: Response) -> Response {
    edge.counters.answered(response.status());
    let headers = response.headers_mut();
    for (name, value) in FIXED {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(DATA_POLICY));
    response
}
