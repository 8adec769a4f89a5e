//! The gateway's own HTTP services, at `http://gateway.lazaret/`.
//!
//! `/git/…` goes to the uplink's socket, with a header that says which sandbox asks. That header is
//! set here, from the cable the request came in on; whatever the guest says about itself, or tries
//! to authenticate with, is dropped. Everything else does not exist.

use super::flow::Surroundings;
use super::forward::{self, Body, pass_on, problem};
use super::stream::{GuestStream, SERVICE_PLACES};
use crate::wire::{Pace, paced};
use http::header::{AUTHORIZATION, COOKIE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use lazaret_api::guest::net::GATEWAY_NAME;
use lazaret_api::uplink::SANDBOX_HEADER;
use lazaret_domain::{Denial, DenialCode, SandboxId};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all headers of ours begin with.
const OWN_HEADERS: &str = "lazaret-";
/// How long the guest may be silent within a request, or not take what is there of the answer.
/// Whatever it holds of the way to the controller it then holds no longer.
const GUEST_SILENCE: Duration = Duration::from_secs(60);
/// How long the controller may be silent. It gives a git host two minutes itself.
const CONTROLLER_SILENCE: Duration = Duration::from_secs(180);
/// The guest speaks, the controller listens.
const ASKING: Pace = Pace {
    origin: GUEST_SILENCE,
    taker: CONTROLLER_SILENCE,
};
/// The controller speaks, the guest listens.
const ANSWERING: Pace = Pace {
    origin: CONTROLLER_SILENCE,
    taker: GUEST_SILENCE,
};

/// Serves a connection to the gateway itself.
pub(super) async fn serve(stream: GuestStream, around: &Surroundings) {
    let places = stream.service_places();
    forward::serve(stream, |request| answer(request, around, &places)).await;
}

async fn answer(
    request: Request<Incoming>,
    around: &Surroundings,
    places: &Arc<Semaphore>,
) -> Response<Body> {
    let refuse = |status, denial: &Denial, reason: &str| {
        around
            .log
            .refuse("service", &GATEWAY_NAME, Some(80), &reason);
        problem(status, denial)
    };
    if !is_git(&request) {
        let denial = Denial::new(DenialCode::NoSuchRoute, "the gateway has no such service");
        return refuse(StatusCode::NOT_FOUND, &denial, "no such service");
    }
    if !is_plain(request.uri().path()) {
        let denial = Denial::new(DenialCode::InvalidPath, "the path can be read in two ways");
        let reason = format!("git: {}", denial.message);
        return refuse(StatusCode::BAD_REQUEST, &denial, &reason);
    }
    // All sandboxes of a host share its one way to the controller; each has a few places on it.
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        let text = format!("a sandbox has at most {SERVICE_PLACES} git requests at once");
        let denial = Denial::new(DenialCode::RateLimited, text).retry_after(1);
        let reason = format!("git: {}", denial.message);
        return refuse(StatusCode::TOO_MANY_REQUESTS, &denial, &reason);
    };
    let allow = |reason: &str| {
        around
            .log
            .allow("service", &GATEWAY_NAME, Some(80), &reason);
    };
    match ask(request, around, place).await {
        Some(response) => {
            allow("git");
            response
        }
        None => {
            allow("git; the uplink is down");
            let denial = Denial::new(
                DenialCode::UplinkDown,
                "the controller can't be reached from here just now; try again in a while",
            );
            problem(StatusCode::SERVICE_UNAVAILABLE, &denial.retry_after(5))
        }
    }
}

/// Asks the controller. The place is held until neither body is on its way any more; nothing if
/// there is no answer.
async fn ask(
    request: Request<Incoming>,
    around: &Surroundings,
    place: OwnedSemaphorePermit,
) -> Option<Response<Body>> {
    let uplink = UnixStream::connect(&around.uplink).await.ok()?;
    let (request, ours) = for_uplink(request, &around.sandbox)?;
    let place = Arc::new(place);
    let (parts, body) = request.into_parts();
    let (body, asked) = paced(body, ASKING, Arc::clone(&place));
    // The controller may think only when it has the whole question.
    let patience = async {
        let _ = asked.await;
        tokio::time::sleep(CONTROLLER_SILENCE).await;
    };
    let request = Request::from_parts(parts, body);
    let answer = tokio::select! {
        answer = pass_on(uplink, request, ours) => answer.ok()?,
        () = patience => return None,
    };
    Some(answer.map(|body| paced(body, ANSWERING, place).0))
}

/// Whether a request is for git. One for a tunnel never is, whatever it says the tunnel leads to.
pub(super) fn is_git<B>(request: &Request<B>) -> bool {
    request.uri().path().starts_with("/git/") && request.method() != Method::CONNECT
}

/// A path that every reader takes apart in the same way: no segment that leads up, nothing encoded
/// that would be a separator or a dot, no empty segment.
pub(super) fn is_plain(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    !["%2e", "%2f", "%5c", "%00", "%25", "\\", "//", ";"]
        .iter()
        .any(|odd| lower.contains(odd))
        && !path
            .split('/')
            .any(|segment| segment == "." || segment == "..")
}

/// The request without what the guest says about itself or would authenticate with, and the headers
/// that say it instead.
pub(super) fn for_uplink<B>(
    mut request: Request<B>,
    sandbox: &SandboxId,
) -> Option<(Request<B>, HeaderMap)> {
    *request.uri_mut() = forward::target(request.uri());
    let headers = request.headers_mut();
    let own: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(OWN_HEADERS))
        .cloned()
        .collect();
    for name in own {
        headers.remove(name);
    }
    headers.remove(AUTHORIZATION);
    headers.remove(COOKIE);
    let ours = HeaderMap::from_iter([
        (HOST, HeaderValue::from_static(GATEWAY_NAME)),
        (
            HeaderName::from_static(SANDBOX_HEADER),
            HeaderValue::from_str(sandbox.as_str()).ok()?,
        ),
    ]);
    Some((request, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_is_no_request_for_git() {
        for (method, target, git) in [
            ("GET", "/git/a/b", true),
            ("GET", "http://gateway.lazaret/git/a/b", true),
            ("GET", "/other/git/a", false),
            ("CONNECT", "/git/a/b", false),
            ("CONNECT", "a.example:80", false),
        ] {
            let request = Request::builder().method(method).uri(target).body(());
            assert_eq!(is_git(&request.unwrap()), git, "{method} {target}");
        }
    }

    #[test]
    fn t42_paths_that_can_be_read_in_two_ways_are_refused() {
        for path in [
            "/git/acme/demo.git/info/refs",
            "/git/a-b/c_d.git/git-upload-pack",
            "/git/a/b%20c",
        ] {
            assert!(is_plain(path), "{path}");
        }
        for path in [
            "/git/a/../b",
            "/git/./a",
            "/git/%2e%2e/b",
            "/git/a%2Fb",
            "/git//a",
            "/git/a;x=1/b",
            "/git/a\\b",
            "/git/a%00",
            "/git/%252e",
            "/git/..",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
