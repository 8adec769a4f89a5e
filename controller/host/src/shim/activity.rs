//! What is going on in a sandbox: commands that run and files that move. Nothing begins in one that is
//! falling asleep, and one falls asleep only while nothing goes on; both are decided under one lock.

use lazaret_domain::{Denial, DenialCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
struct Now {
    going: usize,
    /// When the last of it ended.
    since: Instant,
    closed: bool,
}

/// What goes on. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Activity(Arc<watch::Sender<Now>>);

/// Something that goes on until this is dropped.
pub(crate) struct Going(Activity);

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Now {
            going: 0,
            since: Instant::now(),
            closed: true,
        })))
    }
}

impl Activity {
    /// Begins something.
    ///
    /// # Errors
    /// `sandbox_not_ready` while the sandbox sleeps or is on its way there or back.
    pub(crate) fn begin(&self) -> Result<Going, Denial> {
        let begun = self.0.send_if_modified(|now| {
            now.going += usize::from(!now.closed);
            !now.closed
        });
        if begun {
            return Ok(Going(self.clone()));
        }
        Err(Denial::new(DenialCode::SandboxNotReady, "the sandbox is not ready").retry_after(1))
    }

    /// Lets things begin.
    pub(crate) fn open(&self) {
        self.0.send_modify(|now| {
            now.closed = false;
            now.since = Instant::now();
        });
    }

    /// Lets nothing begin for a while; what goes on stands still meanwhile.
    pub(crate) fn pause(&self) {
        self.0.send_modify(|now| now.closed = true);
    }

    /// Lets nothing begin any more.
    ///
    /// # Errors
    /// How many things go on, if any do; more may begin then.
    pub(crate) fn close(&self) -> Result<(), usize> {
        let mut going = 0;
        self.0.send_if_modified(|now| {
            going = now.going;
            now.closed |= going == 0;
            going == 0
        });
        if going == 0 { Ok(()) } else { Err(going) }
    }

    /// Returns when something goes on, or else after so long.
    pub(crate) async fn busy_or_after(&self, long: Duration) {
        let mut seen = self.0.subscribe();
        let busy = seen.wait_for(|now| now.going > 0);
        // It is of no interest which it was; the sender lives in `self`.
        let _ = tokio::time::timeout(long, busy).await;
    }

    /// Returns when nothing has gone on for so long.
    pub(crate) async fn idle_for(&self, long: Duration) {
        let mut seen = self.0.subscribe();
        loop {
            let now = *seen.borrow_and_update();
            let rest = async {
                match now.going {
                    0 => tokio::time::sleep_until(now.since + long).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = rest => return,
                // The sender lives in `self`.
                _ = seen.changed() => {}
            }
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.0.0.send_modify(|now| {
            now.going -= 1;
            now.since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_goes_on_keeps_a_sandbox_awake_and_its_end_counts_from_then() {
        let activity = Activity::default();
        activity.open();
        let began = Instant::now();
        let minute = Duration::from_secs(60);
        let going = activity.begin().unwrap();
        let idle = tokio::spawn({
            let activity = activity.clone();
            async move { activity.idle_for(minute).await }
        });
        tokio::time::sleep(10 * minute).await;
        assert!(!idle.is_finished());
        drop(going);
        idle.await.unwrap();
        assert_eq!(began.elapsed(), 11 * minute);
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_on_is_heard_of_at_once_and_else_after_a_while() {
        let activity = Activity::default();
        activity.open();
        let (began, hour) = (Instant::now(), Duration::from_secs(3600));
        activity.busy_or_after(hour).await;
        assert_eq!(began.elapsed(), hour);
        let _going = activity.begin().unwrap();
        activity.busy_or_after(hour).await;
        assert_eq!(began.elapsed(), hour);
    }

    #[tokio::test]
    async fn nothing_begins_in_one_that_falls_asleep_and_one_at_work_does_not() {
        let activity = Activity::default();
        assert!(activity.begin().is_err(), "it is not up yet");
        activity.open();
        let going = [activity.begin().unwrap(), activity.begin().unwrap()];
        assert_eq!(activity.close(), Err(2));
        drop(activity.begin().unwrap());
        drop(going);
        activity.close().unwrap();
        let denial = activity.begin().err().unwrap();
        assert_eq!(denial.code, DenialCode::SandboxNotReady);
        activity.open();
        activity.begin().unwrap();
    }
}
