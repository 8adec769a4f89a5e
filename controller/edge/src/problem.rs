//! Refusals on the wire: RFC 9457, always JSON, whoever refuses. The one place that gives a
//! [`DenialCode`] its status number.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lazaret_api::public::Problem;
use lazaret_domain::{Denial, DenialClass, DenialCode};
use std::any::Any;

/// The media type of a problem.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// A denial on its way out.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Denial);

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self(outward(&denial))
    }
}

/// The status of a code.
pub(crate) fn status_of(code: DenialCode) -> StatusCode {
    match code {
        DenialCode::UnsupportedMediaType => return StatusCode::UNSUPPORTED_MEDIA_TYPE,
        DenialCode::MethodNotAllowed => return StatusCode::METHOD_NOT_ALLOWED,
        DenialCode::DiskFull => return StatusCode::INSUFFICIENT_STORAGE,
        // The sandbox is there and does not answer: a failed read behind us, not our absence.
        DenialCode::GuestUnreachable => return StatusCode::BAD_GATEWAY,
        _ => {}
    }
    match code.class() {
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
    }
}

/// A denial as callers see it: to them a run's sandbox that its host does not know is gone.
pub(crate) fn outward(denial: &Denial) -> Denial {
    match denial.code {
        DenialCode::SandboxNotFound => Denial {
            code: DenialCode::SandboxGone,
            message: "the run's sandbox is not on its host any more".to_owned(),
            ..denial.clone()
        },
        _ => denial.clone(),
    }
}

/// The problem document of a denial.
pub(crate) fn problem_of(denial: &Denial) -> Problem {
    let status = status_of(denial.code);
    Problem::of(
        denial,
        status.as_u16(),
        status.canonical_reason().unwrap_or("Error"),
    )
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = status_of(self.0.code);
        let retry_after = self.0.retry_after;
        if status.is_server_error() {
            tracing::warn!(code = %self.0.code, reason = self.0.message, "a request could not be served");
        }
        let mut response = (status, Json(problem_of(&self.0))).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            // Bare on purpose: naming resource metadata sends clients into an OAuth flow that
            // nothing here would answer.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What is not there, such as `/.well-known/oauth-protected-resource`, which MCP clients try first.
pub(crate) async fn no_such_route() -> Refusal {
    Refusal(Denial::new(
        DenialCode::NoSuchRoute,
        "there is no such route; see /api/v1/openapi.json",
    ))
}

/// A known path, another method. The router adds `Allow`.
pub(crate) async fn method_not_allowed() -> Refusal {
    Refusal(Denial::new(
        DenialCode::MethodNotAllowed,
        "the route has no such method; see the Allow header",
    ))
}

/// A handler panicked: a fault of ours, told like any other.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the layer gives the panic away"
)]
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&'static str>().copied())
        .unwrap_or("no message");
    tracing::error!(panic = what, "a request handler panicked");
    Refusal(Denial::new(
        DenialCode::Internal,
        "a fault of ours; the server's log has more",
    ))
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spoken between controller and hosts or to guests, and never to callers of the API.
    const INNER: &[DenialCode] = &[
        DenialCode::SandboxNotFound,
        DenialCode::ExecNotFound,
        DenialCode::SpecMismatch,
        DenialCode::StaleFence,
        DenialCode::GitUpstream,
    ];

    #[test]
    fn the_manual_lists_every_code_under_its_status() {
        let manual = include_str!("../../../docs/api.md");
        let (_, table) = manual.split_once("| status | codes |").unwrap();
        let mut listed = Vec::new();
        for row in table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'))
        {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let groups = cells[1].split(" · ");
            for (status, codes) in cells[0].split(" · ").zip(groups) {
                for code in codes.split_whitespace() {
                    let code: DenialCode = code.trim_matches('`').parse().unwrap();
                    assert_eq!(status_of(code).as_str(), status, "{code}");
                    listed.push(code);
                }
            }
        }
        for code in DenialCode::ALL {
            let times = listed.iter().filter(|listed| *listed == code).count();
            assert_eq!(times, usize::from(!INNER.contains(code)), "{code}");
        }
    }

    #[test]
    fn a_sandbox_that_its_host_does_not_know_is_gone() {
        let inner = Denial::new(DenialCode::SandboxNotFound, "no sandbox s1 on this host");
        let Refusal(told) = Refusal::from(inner);
        assert_eq!(told.code, DenialCode::SandboxGone);
        assert!(!told.message.contains("s1"));
    }

    #[test]
    fn every_code_has_an_error_status() {
        for code in DenialCode::ALL {
            let status = status_of(*code);
            assert!(
                status.is_client_error() || status.is_server_error(),
                "{code}: {status}"
            );
        }
    }
}
