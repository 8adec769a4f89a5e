//! What goes on on a connection: which of its requests are under way, each from its head to the last
//! byte of its answer, and whether the client takes what it asked for.
//!
//! A connection on which nothing goes on may be ended. One whose client takes nothing of an answer
//! for too long is ended too: an answer is given to the transport in small pieces, and the transport
//! asks for the next one only when there is room, so an answer that is not asked for is not read.

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// The most bytes of an answer that the transport gets at once: one frame of HTTP/2.
const PIECE: usize = 16 << 10;

/// The requests of one connection that are under way.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Requests>);

#[derive(Debug)]
struct Requests {
    /// How many there are.
    count: watch::Sender<usize>,
    waiting: Mutex<Waiting>,
}

/// Those whose client has something to take, and since when.
#[derive(Debug, Default)]
struct Waiting {
    since: HashMap<u64, Instant>,
    next: u64,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Requests {
            count: watch::Sender::new(0),
            waiting: Mutex::default(),
        }))
    }

    /// One more, until the answer's [`Busy`] is dropped.
    pub(super) fn begin(&self) -> Busy {
        self.0.count.send_modify(|count| *count += 1);
        let mut waiting = self.0.waiting();
        waiting.next += 1;
        Busy {
            requests: Arc::clone(&self.0),
            number: waiting.next,
        }
    }

    /// Waits until nothing has gone on for so long.
    pub(super) async fn idle_for(&self, span: Duration) {
        let mut count = self.0.count.subscribe();
        loop {
            // Neither fails: `self` holds a sender.
            let _ = count.wait_for(|count| *count == 0).await.is_ok();
            if timeout(span, count.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until the client of some request has taken nothing of what there is for so long.
    pub(super) async fn stalled_for(&self, span: Duration) {
        loop {
            let oldest = self.0.waiting().since.values().min().copied();
            // What begins to wait during this sleep ends it no earlier.
            let until = oldest.unwrap_or_else(Instant::now) + span;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl Requests {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy {
    requests: Arc<Requests>,
    number: u64,
}

impl Busy {
    /// The client has something to take, from now on.
    fn gives(&self) {
        let mut waiting = self.requests.waiting();
        waiting.since.insert(self.number, Instant::now());
    }

    /// The client has taken it.
    fn taken(&self) {
        self.requests.waiting().since.remove(&self.number);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.taken();
        self.requests.count.send_modify(|count| *count -= 1);
    }
}

/// The body of an answer; its request is under way until it was sent or given up.
pub(super) struct Sending {
    body: Body,
    /// What is left of the piece of `body` that is being given.
    rest: Bytes,
    busy: Busy,
}

impl Sending {
    pub(super) fn new(body: Body, busy: Busy) -> Self {
        // Its head.
        busy.gives();
        let rest = Bytes::new();
        Self { body, rest, busy }
    }

    /// The next bytes, as many as are given at once.
    fn piece(&mut self) -> Frame<Bytes> {
        Frame::data(self.rest.split_to(PIECE.min(self.rest.len())))
    }
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.busy.taken();
        let next = if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.rest = data;
                        Some(Ok(self.piece()))
                    }
                    Err(trailers) => Some(Ok(trailers)),
                },
                other => other,
            }
        } else {
            Some(Ok(self.piece()))
        };
        if next.is_some() {
            self.busy.gives();
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, hint) = (self.rest.len() as u64, self.body.size_hint());
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper().and_then(|upper| upper.checked_add(rest)) {
            whole.set_upper(upper);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use http_body::Body as _;
    use http_body_util::BodyExt;
    use std::convert::Infallible;
    use tokio::time::sleep;

    const SPAN: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_so_long_after_its_last_answer() {
        let activity = Activity::new();
        let begun = Instant::now();
        let busy = activity.begin();
        let work = async {
            sleep(SPAN * 3).await;
            drop(Sending::new(Body::empty(), busy));
            // One that begins and ends in between counts as well.
            sleep(SPAN / 2).await;
            drop(activity.begin());
        };
        tokio::join!(activity.idle_for(SPAN), work);
        assert_eq!(begun.elapsed().as_secs(), 180 + 30 + 60);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_noticed_after_that_time_and_who_takes_little_is_not() {
        let activity = Activity::new();
        let begun = Instant::now();
        let whole = vec![7; 10 * PIECE + 1];
        let mut slow = Sending::new(Body::from(whole.clone()), activity.begin());
        let never = async {
            sleep(SPAN * 20).await;
            Sending::new(Body::from("x"), activity.begin())
        };
        let reading = async {
            let mut read = Vec::new();
            while let Some(frame) = slow.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                assert!(data.len() <= PIECE);
                read.extend_from_slice(&data);
                sleep(SPAN - Duration::from_secs(1)).await;
            }
            drop(slow);
            read
        };
        let ((), _never, read) = tokio::join!(activity.stalled_for(SPAN), never, reading);
        assert!(read == whole, "what was read is not what was sent");
        assert_eq!(begun.elapsed(), SPAN * 21);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_still_being_made_is_waited_for() {
        let activity = Activity::new();
        // Without an answer yet, and with one that has said all it can for now.
        let _working = activity.begin();
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b": alive"))]);
        let silent = Body::from_stream(begun.chain(stream::pending()));
        let mut silent = Sending::new(silent, activity.begin());
        silent.frame().await.unwrap().unwrap();
        let waiting = async { timeout(SPAN * 100, silent.frame()).await.is_err() };
        let stalled = timeout(SPAN * 99, activity.stalled_for(SPAN));
        let (waiting, stalled) = tokio::join!(waiting, stalled);
        assert!(waiting && stalled.is_err());
    }

    #[tokio::test]
    async fn pieces_make_up_the_answer_and_its_length_is_known_from_the_start() {
        for length in [0, 1, PIECE, PIECE + 1, 5 * PIECE] {
            let body = Body::from(vec![1; length]);
            let mut sending = Sending::new(body, Activity::new().begin());
            let mut left = length as u64;
            while !sending.is_end_stream() {
                assert_eq!(sending.size_hint().exact(), Some(left));
                let frame = sending.frame().await.unwrap().unwrap();
                left -= frame.into_data().unwrap().len() as u64;
            }
            assert_eq!((left, sending.size_hint().exact()), (0, Some(0)));
        }
    }
}
