//! The controller's end of channel 2: an HTTP/2 server whose client is the host.
//!
//! What a host may ask for is a short list. A request must say from which sandbox's cable it came;
//! the shim sets that header and drops one the guest sent. The routes behind it get the sandbox as
//! a request extension, already parsed.
//!
//! All sandboxes of a host share this connection. Each has a few places on it, and the connection
//! takes in more than all places together may hold back. Who is silent is cut where it is known: the
//! host cuts a guest that does not go on, the routes a server that does not, and an uplink that
//! hangs as a whole answers no ping.

mod shares;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lazaret_api::public::Problem;
use lazaret_api::uplink::SANDBOX_HEADER;
use lazaret_api::{PROTOCOL, PROTOCOL_HEADER};
use lazaret_domain::{Denial, DenialCode, HostName, SandboxId};
use shares::Shares;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

/// The body of an answer.
pub type UplinkBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// What answers the routes that need a sandbox. Requests carry a [`SandboxId`] and the
/// [`HostName`] they came from as extensions.
pub type UplinkService = BoxCloneSyncService<Request<Incoming>, Response<UplinkBody>, Infallible>;

/// The most requests one host may have in flight.
const MAX_IN_FLIGHT: u32 = 256;
/// The most of them that are for one sandbox.
const PER_SANDBOX: usize = 4;
/// Bytes of one request that may lie here unread.
const STREAM_WINDOW: u32 = 128 << 10;
/// Bytes of all requests: if none of them is read, another one still gets through.
const CONNECTION_WINDOW: u32 = (MAX_IN_FLIGHT + 1) * STREAM_WINDOW;

/// The server for one host's channel 2.
#[derive(Clone)]
pub struct Uplink {
    host: HostName,
    routes: UplinkService,
    in_flight: Arc<Semaphore>,
    shares: Shares,
}

impl Uplink {
    /// A server for that host, passing on to these routes.
    #[must_use]
    pub fn new(host: HostName, routes: UplinkService) -> Self {
        Self {
            host,
            routes,
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT as usize)),
            shares: Shares::new(PER_SANDBOX),
        }
    }

    /// Serves one connection until it ends, and says why it did.
    pub async fn serve<S>(&self, stream: S) -> String
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let uplink = self.clone();
        let service = hyper::service::service_fn(move |request| {
            let uplink = uplink.clone();
            async move { Ok::<_, Infallible>(uplink.answer(request).await) }
        });
        let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_IN_FLIGHT)
            .max_header_list_size(32 << 10)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(1 << 20)
            .keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .serve_connection(TokioIo::new(stream), service)
            .await;
        match served {
            Ok(()) => "the host closed it".to_owned(),
            Err(error) => crate::client::chain(&error),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<UplinkBody> {
        let mut response = match self.route(request).await {
            Ok(response) => response,
            Err((status, denial)) => problem(status, &denial),
        };
        response
            .headers_mut()
            .insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
        response
    }

    async fn route(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<UplinkBody>, (StatusCode, Denial)> {
        if request.method() == Method::GET && request.uri().path() == "/v1/ping" {
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(response);
        }
        let sandbox = sandbox_of(&request).map_err(|denial| (StatusCode::BAD_REQUEST, denial))?;
        let Some(share) = self.shares.take(&sandbox) else {
            let text = format!("a sandbox has at most {PER_SANDBOX} requests in flight");
            let busy = Denial::new(DenialCode::RateLimited, text).retry_after(1);
            return Err((StatusCode::TOO_MANY_REQUESTS, busy));
        };
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            let busy = Denial::new(
                DenialCode::HostBusy,
                "too many requests of this host are in flight",
            )
            .retry_after(1);
            return Err((StatusCode::SERVICE_UNAVAILABLE, busy));
        };
        request.headers_mut().remove(SANDBOX_HEADER);
        request.extensions_mut().insert(sandbox);
        request.extensions_mut().insert(self.host.clone());
        let mut routes = self.routes.clone();
        let Ok(ready) = routes.ready().await;
        let Ok(response) = ready.call(request).await;
        // The place is kept until the last byte of the answer is on its way.
        Ok(response.map(|body| {
            body.map_frame(move |frame| {
                let _in_flight = (&permit, &share);
                frame
            })
            .boxed_unsync()
        }))
    }
}

fn sandbox_of<B>(request: &Request<B>) -> Result<SandboxId, Denial> {
    let mut values = request.headers().get_all(SANDBOX_HEADER).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default().parse(),
        _ => Err(Denial::new(
            DenialCode::InvalidId,
            "a request names the one sandbox it comes from",
        )),
    }
}

fn empty() -> UplinkBody {
    Full::new(Bytes::new())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A refusal as `application/problem+json`.
fn problem(status: StatusCode, denial: &Denial) -> Response<UplinkBody> {
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

#[cfg(test)]
mod tests;
