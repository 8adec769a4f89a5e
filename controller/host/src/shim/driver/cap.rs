//! How long a sandbox may still live: awake, what is left of its longest duration; asleep, its sleep
//! TTL. Both are counted by the monotonic clock: setting the wall clock neither shortens nor stretches
//! a sandbox.

use super::Over;
use lazaret_domain::Span;
use lazaret_domain::sandbox::EndCause;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Clone, Debug)]
struct Limit {
    /// When it is reached; never, if nothing is said.
    at: Option<Instant>,
    cause: EndCause,
    span: Span,
}

/// What is left.
pub(super) struct Cap {
    whole: Span,
    left: Duration,
    awake_since: Option<Instant>,
    limit: watch::Sender<Limit>,
}

/// Where the end of a limit is waited for.
pub(super) struct Ends(watch::Receiver<Limit>);

impl Cap {
    /// The cap of a sandbox that begins now.
    pub(super) fn new(whole: Span) -> (Self, Ends) {
        let now = Instant::now();
        let limit = Limit {
            at: now.checked_add(whole.duration()),
            cause: EndCause::RunCap,
            span: whole,
        };
        let (limit, ends) = watch::channel(limit);
        let cap = Self {
            whole,
            left: whole.duration(),
            awake_since: Some(now),
            limit,
        };
        (cap, Ends(ends))
    }

    /// It is awake from now on. Says how long it may be.
    pub(super) fn awake(&mut self) -> Duration {
        let now = *self.awake_since.get_or_insert_with(Instant::now);
        self.limit.send_replace(Limit {
            at: now.checked_add(self.left),
            cause: EndCause::RunCap,
            span: self.whole,
        });
        self.left
    }

    /// It sleeps, since then, and may for so long; for ever, if nothing is said.
    pub(super) fn asleep(&mut self, since: Instant, longest: Option<Span>) {
        if let Some(awake_since) = self.awake_since.take() {
            let passed = since.saturating_duration_since(awake_since);
            self.left = self.left.saturating_sub(passed);
        }
        self.limit.send_replace(Limit {
            at: longest.and_then(|span| since.checked_add(span.duration())),
            cause: EndCause::SleepTtl,
            span: longest.unwrap_or(self.whole),
        });
    }
}

impl Ends {
    /// Returns when the limit that is in force is reached.
    pub(super) async fn reached(mut self) -> Over {
        loop {
            let limit = self.0.borrow_and_update().clone();
            let wait = async {
                match limit.at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => return Over::new(limit.cause, format!("after {}", limit.span)),
                changed = self.0.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    async fn after(ends: Ends) -> (EndCause, Duration) {
        let began = Instant::now();
        let over = ends.reached().await;
        (over.cause, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_does_not_count_as_being_awake() {
        let (mut cap, ends) = Cap::new(Span::seconds(600));
        let ended = tokio::spawn(after(ends));
        tokio::time::sleep(4 * MINUTE).await;
        cap.asleep(Instant::now(), Some(Span::seconds(3600)));
        tokio::time::sleep(50 * MINUTE).await;
        assert_eq!(cap.awake(), 6 * MINUTE);
        assert_eq!(ended.await.unwrap(), (EndCause::RunCap, 60 * MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn the_ttl_counts_from_the_nap_and_not_for_one_that_is_kept() {
        let (mut cap, ends) = Cap::new(Span::seconds(36_000));
        let ended = tokio::spawn(after(ends));
        tokio::time::sleep(300 * MINUTE).await;
        let nap = Instant::now();
        cap.asleep(nap, Some(Span::seconds(3600)));
        tokio::time::sleep(50 * MINUTE).await;
        cap.asleep(nap, None);
        tokio::time::sleep(5000 * MINUTE).await;
        assert!(!ended.is_finished());
        // The TTL applies again, counted from the nap: it is over.
        cap.asleep(nap, Some(Span::seconds(3600)));
        assert_eq!(ended.await.unwrap(), (EndCause::SleepTtl, 5350 * MINUTE));
    }
}
