//! Bodies: what a request brings, read piece by piece and bounded, and what an answer carries.

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{Response, StatusCode};
use http_body::Frame as BodyFrame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use lazaret_api::frame::Frame;
use lazaret_domain::{Denial, DenialCode};
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use tokio::sync::mpsc;

/// The body of an answer. An error in it resets the stream, so that a cut is seen as one.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The body of a request.
pub(super) struct Input<B> {
    body: B,
    /// Bytes that came with the last piece and are not used up.
    rest: BytesMut,
}

impl<B> Input<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    pub(super) fn new(body: B) -> Self {
        Self {
            body,
            rest: BytesMut::new(),
        }
    }

    /// Adds the next piece to `rest`; says whether there was one.
    async fn more(&mut self) -> Result<bool, Denial> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| invalid(format!("the body broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The whole body, of at most `limit` bytes.
    pub(super) async fn whole(&mut self, limit: usize) -> Result<Bytes, Denial> {
        while self.more().await? {
            check_size(self.rest.len(), limit)?;
        }
        Ok(self.rest.split().freeze())
    }

    /// The bytes after a big-endian length; what follows them stays.
    pub(super) async fn prefixed(&mut self, limit: usize) -> Result<Bytes, Denial> {
        let length = u32::from_be_bytes(self.take(4).await?.as_ref().try_into().unwrap_or_default())
            as usize;
        check_size(length, limit)?;
        self.take(length).await
    }

    async fn take(&mut self, length: usize) -> Result<Bytes, Denial> {
        while self.rest.len() < length {
            if !self.more().await? {
                return Err(invalid("the body is shorter than it says".into()));
            }
        }
        Ok(self.rest.split_to(length).freeze())
    }

    /// What is left, as a stream that ends with an error if the body breaks off.
    pub(super) fn pieces(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static
    where
        B: Send + 'static,
    {
        let rest = self.rest.freeze();
        let first = futures::stream::iter((!rest.is_empty()).then_some(Ok(rest)));
        first.chain(BodyStream::new(self.body).filter_map(|frame| {
            std::future::ready(match frame {
                Ok(frame) => frame.into_data().ok().map(Ok),
                Err(error) => Some(Err(io::Error::other(error.to_string()))),
            })
        }))
    }

    /// What is left, as a stream that simply ends if the body breaks off: the answer of the same
    /// request breaks with it, and that is what counts.
    pub(super) fn until_broken(self) -> impl Stream<Item = Bytes> + Send + 'static
    where
        B: Send + 'static,
    {
        self.pieces()
            .scan((), |(), piece| std::future::ready(piece.ok()))
    }
}

fn check_size(size: usize, limit: usize) -> Result<(), Denial> {
    if size > limit {
        return Err(Denial::new(
            DenialCode::TooLarge,
            format!("at most {limit} bytes are taken here"),
        ));
    }
    Ok(())
}

fn invalid(message: String) -> Denial {
    Denial::new(DenialCode::InvalidRequest, message)
}

fn response(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static(content_type),
    );
    response
}

fn never(error: Infallible) -> io::Error {
    match error {}
}

/// An answer in JSON.
pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    response(
        status,
        "application/json",
        Full::from(bytes).map_err(never).boxed_unsync(),
    )
}

/// An answer that is made while it is sent.
pub(super) fn stream(
    content_type: &'static str,
    pieces: mpsc::Receiver<io::Result<Bytes>>,
) -> Response<Body> {
    let pieces = futures::stream::unfold(pieces, |mut pieces| async {
        Some((pieces.recv().await?, pieces))
    });
    let body = StreamBody::new(pieces.map(|piece| piece.map(BodyFrame::data)));
    response(StatusCode::OK, content_type, body.boxed_unsync())
}

/// The output of a command.
pub(super) fn frames(frames: mpsc::Receiver<Frame>) -> Response<Body> {
    let frames = futures::stream::unfold(frames, |mut frames| async {
        Some((frames.recv().await?, frames))
    });
    let body = StreamBody::new(frames.map(|frame| Ok(BodyFrame::data(frame.encode()))));
    response(
        StatusCode::OK,
        "application/vnd.lazaret.frames",
        body.boxed_unsync(),
    )
}
