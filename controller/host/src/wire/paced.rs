//! Bodies that nobody is waited for without end.
//!
//! A body has two ends: where it comes from, and who takes it. hyper asks a body for more only when
//! there is room for it, so a body whose taker has stopped is never polled and no timer within it
//! would fire; meanwhile it keeps its share of a connection's window. Here a task of its own moves
//! the bytes and looks at the clock on both sides. When it gives up, it lets go of the origin, which
//! gives the share back, and the taker learns that the body was cut, not that it ended.

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long each end of a body may be silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Where it comes from.
    pub origin: Duration,
    /// Who takes it.
    pub taker: Duration,
}

/// How the moving of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// All of it was handed over.
    Whole,
    /// The origin broke off, or the taker has dropped it.
    Dropped,
    /// The origin was silent for too long.
    OriginSilent,
    /// The taker was silent for too long.
    TakerSilent,
}

/// The same body, cut if either end is silent for too long; and how it ended. `hold` is let go of
/// when the body has been moved, cut or dropped.
pub(crate) fn paced<B, H>(body: B, pace: Pace, hold: H) -> (Body, oneshot::Receiver<Moved>)
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
    H: Send + 'static,
{
    let (end, ended) = oneshot::channel();
    if body.is_end_stream() {
        drop(hold);
        let _ = end.send(Moved::Whole);
        return (Body::empty(), ended);
    }
    let hint = body.size_hint();
    let (frames, taken) = mpsc::channel(1);
    tokio::spawn(async move {
        let moved = move_on(body, pace, &frames).await;
        drop(hold);
        let _ = end.send(moved);
        // Only now, so that who sees a body cut also finds out why.
        drop(frames);
    });
    let body = Body::new(Taken {
        frames: taken,
        left: hint.exact(),
        over: false,
    });
    (body, ended)
}

/// What goes from the moving task to the taker. `None` is the end; without it the body was cut.
type Piece = Result<Option<Frame<Bytes>>, axum::BoxError>;

async fn move_on<B>(mut body: B, pace: Pace, frames: &mpsc::Sender<Piece>) -> Moved
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
    B::Error: Into<axum::BoxError>,
{
    loop {
        let (piece, moved) = tokio::select! {
            () = frames.closed() => return Moved::Dropped,
            next = timeout(pace.origin, body.frame()) => match next {
                Ok(Some(Ok(frame))) => (Ok(Some(frame)), None),
                Ok(Some(Err(error))) => (Err(error.into()), Some(Moved::Dropped)),
                Ok(None) => (Ok(None), Some(Moved::Whole)),
                Err(_) => return Moved::OriginSilent,
            },
        };
        match timeout(pace.taker, frames.send(piece)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Moved::Dropped,
            Err(_) => return Moved::TakerSilent,
        }
        if let Some(moved) = moved {
            return moved;
        }
    }
}

/// The taker's end.
struct Taken {
    frames: mpsc::Receiver<Piece>,
    /// Bytes still to come, where that is known.
    left: Option<u64>,
    over: bool,
}

impl HttpBody for Taken {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let piece = match ready!(self.frames.poll_recv(context)) {
            Some(Ok(Some(frame))) => {
                if let (Some(left), Some(data)) = (&mut self.left, frame.data_ref()) {
                    *left = left.saturating_sub(u64::try_from(data.len()).unwrap_or(u64::MAX));
                }
                Some(Ok(frame))
            }
            Some(Ok(None)) => None,
            Some(Err(error)) => Some(Err(error)),
            None => Some(Err("the body was cut off".into())),
        };
        self.over = !matches!(piece, Some(Ok(_)));
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests;
