//! Asks the git host.

use crate::base::GitBase;
use crate::path::{GitRequest, GitRequestKind};
use crate::route::RouteBody;
use bytes::Bytes;
use futures::TryStreamExt;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName,
};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyDataStream, BodyExt, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body, Frame};
use lazaret_domain::{Denial, DenialCode};
use rustls_platform_verifier::BuilderVerifierExt;
use std::sync::Arc;
use std::time::Duration;

/// The largest request for a pack: what a clone wants and has, in git's own compact form.
const MAX_REQUEST: usize = 16 << 20;
/// A connection to the git host takes at most this long.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A git host that says nothing for so long is given up. Making a large pack can take it a while.
const SILENCE: Duration = Duration::from_secs(120);

/// All that a guest's request keeps on its way out. No credential, no cookie, nothing about the
/// guest.
const FORWARDED: [HeaderName; 4] = [
    ACCEPT,
    CONTENT_TYPE,
    CONTENT_ENCODING,
    HeaderName::from_static("git-protocol"),
];
/// All that the git host's answer keeps on its way back.
const RETURNED: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_ENCODING, CACHE_CONTROL];

/// A refusal with the status it goes out with.
pub(crate) type Refused = (StatusCode, Denial);

/// The client side of the route.
#[derive(Clone)]
pub(crate) struct Forwarder {
    client: reqwest::Client,
    base: GitBase,
}

impl Forwarder {
    pub(crate) fn new(base: GitBase) -> Result<Self, Denial> {
        let fault = |error: &dyn std::fmt::Display| {
            Denial::new(
                DenialCode::Internal,
                format!("the client for the git host could not be made: {error}"),
            )
        };
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .map_err(|error| fault(&error))?
        .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("git/lazaret-", env!("CARGO_PKG_VERSION")))
            // A redirect would lead to a place nobody granted.
            .redirect(reqwest::redirect::Policy::none())
            // The operator's base URL decides, not the environment of the controller.
            .no_proxy()
            .referer(false)
            .connect_timeout(CONNECT_DEADLINE)
            .read_timeout(SILENCE)
            .build()
            .map_err(|error| fault(&error))?;
        Ok(Self { client, base })
    }

    /// Forwards a request that was parsed and granted.
    pub(crate) async fn forward<B>(
        &self,
        git: &GitRequest,
        request: Request<B>,
    ) -> Result<Response<RouteBody>, Refused>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        let mut headers = kept(request.headers(), &FORWARDED);
        let mut outgoing = self
            .client
            .request(git.kind.method(), self.base.url_of(git));
        if git.kind == GitRequestKind::UploadPack {
            let length = request.body().size_hint().exact();
            if length.is_some_and(|length| length > MAX_REQUEST as u64) {
                return Err(too_large());
            }
            if let Some(length) = length {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            let body = BodyDataStream::new(Limited::new(request.into_body(), MAX_REQUEST));
            outgoing = outgoing.body(reqwest::Body::wrap_stream(body));
        }
        let answer = match outgoing.headers(headers).send().await {
            Ok(answer) => answer,
            Err(error) if caused_by_length(&error) => return Err(too_large()),
            Err(error) => {
                return Err(upstream(
                    StatusCode::BAD_GATEWAY,
                    &format!("did not answer: {}", reason(&error)),
                ));
            }
        };
        check(git, answer.status(), answer.headers())?;
        let mut response = Response::new(());
        *response.headers_mut() = kept(answer.headers(), &RETURNED);
        let body = StreamBody::new(
            answer
                .bytes_stream()
                .map_ok(Frame::data)
                .map_err(Into::into),
        );
        Ok(response.map(|()| body.boxed_unsync()))
    }
}

/// Whether this is how a git host answers that request.
fn check(git: &GitRequest, status: StatusCode, headers: &HeaderMap) -> Result<(), Refused> {
    match status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            return Err(upstream(
                StatusCode::NOT_FOUND,
                &format!(
                    "says {status} about {}: it does not exist or needs a credential",
                    git.repo
                ),
            ));
        }
        other if other.is_redirection() => {
            return Err(upstream(
                StatusCode::BAD_GATEWAY,
                &format!(
                    "redirects {}, and redirects are not followed: use the name it has now",
                    git.repo
                ),
            ));
        }
        other => {
            return Err(upstream(
                StatusCode::BAD_GATEWAY,
                &format!("answered {other}"),
            ));
        }
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if kind == git.kind.answer_type() {
        Ok(())
    } else {
        Err(upstream(
            StatusCode::BAD_GATEWAY,
            "did not answer in git's smart HTTP form",
        ))
    }
}

fn kept(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in names {
        if let Some(value) = headers.get(name) {
            kept.insert(name, value.clone());
        }
    }
    kept
}

fn upstream(status: StatusCode, what: &str) -> Refused {
    (
        status,
        Denial::new(DenialCode::GitUpstream, format!("the git host {what}")),
    )
}

fn too_large() -> Refused {
    let denial = Denial::new(
        DenialCode::TooLarge,
        format!("a request to git-upload-pack is at most {MAX_REQUEST} bytes"),
    );
    (StatusCode::PAYLOAD_TOO_LARGE, denial)
}

fn caused_by_length(error: &reqwest::Error) -> bool {
    causes(error).any(|cause| cause.is::<LengthLimitError>())
}

/// What went wrong, without the URL that reqwest adds.
fn reason(error: &reqwest::Error) -> String {
    causes(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(error), |cause| cause.source())
}
