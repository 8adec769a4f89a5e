//! The route of the uplink below `/git/`.

use crate::base::GitBase;
use crate::forward::{Forwarder, Refused};
use crate::grants::GitGrants;
use crate::path::GitRequest;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use lazaret_api::public::Problem;
use lazaret_domain::{Denial, DenialClass, DenialCode, SandboxId};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The body of an answer.
pub type RouteBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Answers `/git/…` for the sandbox that the request carries as an extension. Clones share their
/// connections to the git host.
#[derive(Clone)]
pub struct GitRoute {
    forwarder: Forwarder,
    grants: Arc<dyn GitGrants>,
}

impl GitRoute {
    /// A route to that git host, under these grants.
    ///
    /// # Errors
    /// `internal` if no TLS client can be made.
    pub fn new(base: GitBase, grants: Arc<dyn GitGrants>) -> Result<Self, Denial> {
        Ok(Self {
            forwarder: Forwarder::new(base)?,
            grants,
        })
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<RouteBody>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        match self.forward(request).await {
            Ok(response) => response,
            Err((status, denial)) => {
                tracing::info!(%status, reason = %denial, "a git request was refused");
                problem(status, &denial)
            }
        }
    }

    async fn forward<B>(&self, request: Request<B>) -> Result<Response<RouteBody>, Refused>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        let git = GitRequest::parse(
            request.method(),
            request.uri().path(),
            request.uri().query(),
        )
        .map_err(|denial| (status_of(&denial), denial))?;
        let sandbox = request.extensions().get::<SandboxId>().cloned();
        let granted = match &sandbox {
            Some(sandbox) => self.grants.granted(sandbox, &git.repo).await,
            None => false,
        };
        if !granted {
            let denial = Denial::new(
                DenialCode::RepoNotGranted,
                format!("this run was not given {}", git.repo),
            );
            return Err((StatusCode::FORBIDDEN, denial));
        }
        self.forwarder.forward(&git, request).await
    }
}

impl<B> tower::Service<Request<B>> for GitRoute
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    type Response = Response<RouteBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let route = self.clone();
        Box::pin(async move { Ok(route.answer(request).await) })
    }
}

fn status_of(denial: &Denial) -> StatusCode {
    match (denial.code, denial.class()) {
        (DenialCode::MethodNotAllowed, _) => StatusCode::METHOD_NOT_ALLOWED,
        (_, DenialClass::Forbidden) => StatusCode::FORBIDDEN,
        (_, DenialClass::NotFound) => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    }
}

fn problem(status: StatusCode, denial: &Denial) -> Response<RouteBody> {
    let problem = Problem::of(
        denial,
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
    );
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(
        Full::new(body.into())
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response
}
