//! An HTTP/2 client for the host API over any byte stream.

mod patience;

use crate::calls::{Body, Call};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lazaret_api::{FENCE_HEADER, PROTOCOL, PROTOCOL_HEADER};
use lazaret_domain::{Denial, DenialCode};
use lazaret_services::ports::host_link::ByteStream;
use patience::{Progress, bounded, within};
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// The largest answer that is read whole.
const MAX_ANSWER: usize = 16 << 20;
/// The largest refusal that is read.
const MAX_DENIAL: usize = 64 << 10;
/// The most bytes of one answer that a slow reader may hold in memory: enough for the bandwidth of a
/// loopback or a nearby host.
const STREAM_WINDOW: u32 = 256 << 10;
/// The most bytes of all answers: with as many slow readers as calls are let in by default
/// ([`crate::SshSettings`]), another answer still gets through.
const CONNECTION_WINDOW: u32 = 513 * STREAM_WINDOW;
/// A host that does nothing about a call for so long is given up for that call. It is more patient
/// than the host is with its guests, so that the host's reason comes first.
const SILENCE: Duration = Duration::from_secs(120);

type RequestBody = UnsyncBoxBody<Bytes, Denial>;

/// How a call can fail.
#[derive(Debug)]
pub enum CallError {
    /// The connection broke before an answer began.
    Broken(String),
    /// The answer is a refusal, or not an answer at all.
    Denied(Denial),
}

/// One end of an HTTP/2 connection to a host; clones share it.
#[derive(Clone)]
pub struct HostClient {
    requests: SendRequest<RequestBody>,
    silence: Duration,
}

impl HostClient {
    /// Speaks HTTP/2 over a byte stream. The second value drives the connection and resolves to
    /// the reason it ended; run it as a task.
    ///
    /// # Errors
    /// `host_unreachable` if the stream breaks at once.
    pub async fn over<S>(
        stream: S,
    ) -> Result<(Self, impl Future<Output = String> + Send + 'static), Denial>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(1 << 20)
            .keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| {
                Denial::new(
                    DenialCode::HostUnreachable,
                    format!("HTTP/2 did not start: {error}"),
                )
            })?;
        let driver = async move {
            match connection.await {
                Ok(()) => "the host closed the connection".to_owned(),
                Err(error) => chain(&error),
            }
        };
        let client = Self {
            requests,
            silence: SILENCE,
        };
        Ok((client, driver))
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// Sends a call and returns the answer once its head is there and is a success. A body may take
    /// any time as long as it goes on.
    ///
    /// # Errors
    /// [`CallError`]; `host_unreachable` also if nothing happens for two minutes.
    pub async fn call(&self, call: Call) -> Result<Response<Incoming>, CallError> {
        let own_failure = OwnFailure::default();
        let (progress, patience) = (Progress::default(), self.silence + call.wait);
        let (method, path, asked) = (call.method.clone(), call.path.clone(), Instant::now());
        let request = request(call, &own_failure, &progress).map_err(CallError::Denied)?;
        let mut requests = self.requests.clone();
        // Dropping the answer to come resets the stream, and with it the request's body.
        let sent = tokio::select! {
            sent = requests.send_request(request) => sent,
            silent = progress.stalled(patience) => return Err(CallError::Denied(silent)),
        };
        let response = match sent {
            Ok(response) => response,
            Err(error) => {
                return Err(match own_failure.take() {
                    // Our own body ended the request; the connection is fine.
                    Some(denial) => CallError::Denied(denial),
                    None => CallError::Broken(chain(&error)),
                });
            }
        };
        tracing::debug!(%method, path, status = response.status().as_u16(), took = ?asked.elapsed(), "the host answered");
        check_protocol(&response).map_err(CallError::Denied)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let reading = Limited::new(response.into_body(), MAX_DENIAL).collect();
        let denial = match within(self.silence, reading)
            .await
            .map_err(CallError::Denied)?
        {
            Ok(body) => serde_json::from_slice::<Denial>(&body.to_bytes()).ok(),
            Err(_) => None,
        };
        Err(CallError::Denied(denial.unwrap_or_else(|| {
            Denial::new(
                DenialCode::HostRefused,
                format!("the host answered {status} without a reason that can be read"),
            )
        })))
    }
}

/// An answer's body as bytes, read whole.
pub(crate) async fn whole<B>(body: B) -> Result<Bytes, Denial>
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error> + Send + Unpin + 'static,
{
    let mut pieces = bounded(chunks(body), SILENCE);
    let mut all = BytesMut::new();
    while let Some(piece) = pieces.try_next().await? {
        if all.len() + piece.len() > MAX_ANSWER {
            return Err(Denial::new(
                DenialCode::Internal,
                format!("the host's answer is longer than {MAX_ANSWER} bytes"),
            ));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// An answer's body as a value.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Denial> {
    serde_json::from_slice(body).map_err(|error| {
        Denial::new(
            DenialCode::Internal,
            format!("the host's answer is not of the agreed form: {error}"),
        )
    })
}

/// An answer's body as it arrives, for as long as that takes.
pub(crate) fn stream(body: Incoming) -> ByteStream {
    chunks(body)
}

/// An answer's body as it arrives, unless it falls silent.
pub(crate) fn attentive(body: Incoming) -> ByteStream {
    bounded(chunks(body), SILENCE)
}

fn chunks<B>(body: B) -> ByteStream
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error> + Send + 'static,
{
    Box::pin(BodyDataStream::new(body).map_err(|error| {
        Denial::new(
            DenialCode::HostUnreachable,
            format!("the connection broke within the answer: {}", chain(&error)),
        )
    }))
}

fn request(
    call: Call,
    own_failure: &OwnFailure,
    progress: &Progress,
) -> Result<Request<RequestBody>, Denial> {
    let mut request = Request::builder()
        .method(call.method)
        .uri(format!("http://host{}", call.path))
        .header(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
    if let Some(fence) = call.fence {
        request = request.header(FENCE_HEADER, HeaderValue::from(fence.0));
    }
    if call.json {
        request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let body = match call.body {
        Body::Bytes(bytes) => Full::new(bytes)
            .map_err(|never| match never {})
            .boxed_unsync(),
        Body::Stream(stream) => {
            let own_failure = own_failure.clone();
            let progress = progress.clone();
            let stream = stream
                .inspect_ok(move |_| progress.note())
                .inspect_err(move |denial| own_failure.put(denial));
            StreamBody::new(stream.map_ok(Frame::data)).boxed_unsync()
        }
    };
    request.body(body).map_err(|error| {
        Denial::new(
            DenialCode::Internal,
            format!("a request could not be formed: {error}"),
        )
    })
}

fn check_protocol<B>(response: &Response<B>) -> Result<(), Denial> {
    let theirs = response
        .headers()
        .get(PROTOCOL_HEADER)
        .and_then(|value| value.to_str().ok());
    match theirs.and_then(|text| text.parse::<u32>().ok()) {
        Some(PROTOCOL) => Ok(()),
        Some(other) => Err(Denial::new(
            DenialCode::HostVersion,
            format!(
                "the host speaks generation {other} of the host API, this controller {PROTOCOL}: update the older one"
            ),
        )),
        None => Err(Denial::new(
            DenialCode::HostVersion,
            "the host's answer does not name its generation of the host API",
        )),
    }
}

/// Why the body of a request of ours ended early. HTTP/2 tells of it only as a reset stream.
#[derive(Clone, Default)]
struct OwnFailure(Arc<Mutex<Option<Denial>>>);

impl OwnFailure {
    fn put(&self, denial: &Denial) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(denial.clone());
    }

    fn take(&self) -> Option<Denial> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
