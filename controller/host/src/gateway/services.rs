//! The gateway's own HTTP services, at `http://gateway.lazaret/`.
//!
//! `/git/…` goes to the uplink's socket, with a header that says which sandbox asks. That header is
//! set here, from the cable the request came in on; whatever the guest says about itself, or tries
//! to authenticate with, is dropped. Everything else does not exist.

use super::flow::Surroundings;
use super::forward::{self, Body, pass_on, problem};
use super::stream::GuestStream;
use http::header::{AUTHORIZATION, COOKIE, HOST};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use lazaret_api::guest::net::GATEWAY_NAME;
use lazaret_api::uplink::SANDBOX_HEADER;
use lazaret_domain::DenialCode;
use tokio::net::UnixStream;

/// What all headers of ours begin with.
const OWN_HEADERS: &str = "lazaret-";

/// Serves a connection to the gateway itself.
pub(super) async fn serve(stream: GuestStream, around: &Surroundings) {
    forward::serve(stream, |request| answer(request, around)).await;
}

async fn answer(request: Request<Incoming>, around: &Surroundings) -> Response<Body> {
    let path = request.uri().path();
    if !path.starts_with("/git/") {
        around
            .log
            .refuse("service", &GATEWAY_NAME, Some(80), &"no such service");
        return problem(
            StatusCode::NOT_FOUND,
            DenialCode::NoSuchRoute,
            "the gateway has no such service",
        );
    }
    if !is_plain(path) {
        around.log.refuse(
            "service",
            &GATEWAY_NAME,
            Some(80),
            &"git: the path can be read in two ways",
        );
        return problem(
            StatusCode::BAD_REQUEST,
            DenialCode::InvalidPath,
            "the path can be read in two ways",
        );
    }
    let down = || {
        around.log.allow(
            "service",
            &GATEWAY_NAME,
            Some(80),
            &"git; the uplink is down",
        );
        let mut response = problem(
            StatusCode::SERVICE_UNAVAILABLE,
            DenialCode::UplinkDown,
            "the controller can't be reached from here just now; try again in a while",
        );
        response
            .headers_mut()
            .insert(http::header::RETRY_AFTER, HeaderValue::from_static("5"));
        response
    };
    let Ok(uplink) = UnixStream::connect(&around.uplink).await else {
        return down();
    };
    match pass_on(uplink, for_uplink(request, around)).await {
        Ok(response) => {
            around.log.allow("service", &GATEWAY_NAME, Some(80), &"git");
            response
        }
        Err(_) => down(),
    }
}

/// A path that every reader takes apart in the same way: no segment that leads up, nothing encoded
/// that would be a separator or a dot, no empty segment.
fn is_plain(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    !["%2e", "%2f", "%5c", "%00", "%25", "\\", "//", ";"]
        .iter()
        .any(|odd| lower.contains(odd))
        && !path
            .split('/')
            .any(|segment| segment == "." || segment == "..")
}

/// The request as the uplink gets it.
fn for_uplink(mut request: Request<Incoming>, around: &Surroundings) -> Request<Incoming> {
    let path = request
        .uri()
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
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
    headers.insert(HOST, HeaderValue::from_static(GATEWAY_NAME));
    if let Ok(sandbox) = HeaderValue::from_str(around.sandbox.as_str()) {
        headers.insert(SANDBOX_HEADER, sandbox);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

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
