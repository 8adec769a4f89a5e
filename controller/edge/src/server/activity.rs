//! What goes on on a connection: how many of its requests are under way, each from its head to the
//! last byte of its answer. A connection on which nothing goes on may be ended.

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// The requests of one connection that are under way.
#[derive(Clone, Debug)]
pub(super) struct Activity(watch::Sender<usize>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// One more, until the answer's [`Busy`] is dropped.
    pub(super) fn begin(&self) -> Busy {
        self.0.send_modify(|count| *count += 1);
        Busy(self.0.clone())
    }

    /// Waits until nothing has gone on for so long.
    pub(super) async fn idle_for(&self, span: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // Neither fails: `self` holds a sender.
            let _ = count.wait_for(|count| *count == 0).await.is_ok();
            if tokio::time::timeout(span, count.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy(watch::Sender<usize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The body of an answer; its request is under way until it was sent or given up.
pub(super) struct Sending {
    body: Body,
    _busy: Busy,
}

impl Sending {
    pub(super) fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_so_long_after_its_last_answer() {
        let activity = Activity::new();
        let span = Duration::from_secs(60);
        let begun = Instant::now();
        let busy = activity.begin();
        let work = async {
            tokio::time::sleep(span * 3).await;
            drop(Sending::new(Body::empty(), busy));
            // One that begins and ends in between counts as well.
            tokio::time::sleep(span / 2).await;
            drop(activity.begin());
        };
        tokio::join!(activity.idle_for(span), work);
        assert_eq!(begun.elapsed().as_secs(), 180 + 30 + 60);
    }
}
