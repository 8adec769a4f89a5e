//! Who waits for what a run does. The events themselves are in the store: a feed only says that
//! there are more, so a slow reader never holds up a driver, loses nothing, and costs no memory.

use lazaret_domain::RunId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// One feed for each run that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    feeds: Mutex<HashMap<RunId, watch::Sender<u64>>>,
}

impl Feeds {
    /// The number of the run's latest event, as it grows. Read the store after this, not before:
    /// then nothing can come between.
    pub(crate) fn subscribe(&self, run: &RunId) -> watch::Receiver<u64> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.retain(|_, feed| feed.receiver_count() > 0);
        feeds
            .entry(run.clone())
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    /// Says that the run has events up to this number.
    pub(crate) fn publish(&self, run: &RunId, seq: u64) {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = feeds.get(run) {
            feed.send_if_modified(|last| {
                let more = seq > *last;
                *last = seq.max(*last);
                more
            });
        }
    }

    /// Wakes whoever waits for this run though it has no new event: it was removed, say.
    pub(crate) fn nudge(&self, run: &RunId) {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = feeds.get(run) {
            feed.send_modify(|_| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_lasts_as_long_as_somebody_waits() {
        let (feeds, run) = (
            Feeds::default(),
            RunId::make(jiff::Timestamp::UNIX_EPOCH, 1),
        );
        let mut receiver = feeds.subscribe(&run);
        feeds.publish(&run, 3);
        assert!(receiver.has_changed().unwrap());
        assert_eq!(*receiver.borrow_and_update(), 3);
        feeds.publish(&run, 2);
        assert!(
            !receiver.has_changed().unwrap(),
            "an older number is no news"
        );
        drop(receiver);
        let other = RunId::make(jiff::Timestamp::UNIX_EPOCH, 2);
        let _kept = feeds.subscribe(&other);
        assert_eq!(feeds.feeds.lock().unwrap().len(), 1);
    }
}
