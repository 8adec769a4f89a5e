//! What all use cases share.

use crate::driver::Drivers;
use crate::feed::Feeds;
use crate::hosts::Registry;
use crate::ports::store::StoreError;
use crate::runs::{LiveDiffs, Places, Turns};
use crate::{Ports, ServicesSettings};
use jiff::Timestamp;
use lazaret_domain::HostName;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The ports, the settings and the tasks.
pub(crate) struct Core {
    pub(crate) ports: Ports,
    pub(crate) settings: ServicesSettings,
    pub(crate) feeds: Feeds,
    pub(crate) hosts: Registry,
    pub(crate) drivers: Drivers,
    pub(crate) diffs: LiveDiffs,
    /// Forks of one run are made one after another.
    pub(crate) forks: Turns,
    pub(crate) places: Places,
    pub(crate) started_at: Timestamp,
    /// Told once: end in order.
    pub(crate) stop: CancellationToken,
    /// All background tasks; [`crate::Services::stop`] waits for them.
    pub(crate) tasks: TaskTracker,
}

impl Core {
    pub(crate) fn now(&self) -> Timestamp {
        self.ports.clock.now()
    }

    /// How many runs hold a sandbox that is awake or being woken on each host.
    pub(crate) async fn holding(&self) -> Result<BTreeMap<HostName, u32>, StoreError> {
        let (mut holding, waking) = (BTreeMap::new(), self.places.waking());
        for run in self.ports.store.open_runs().await? {
            if run.holds && (!run.facts.sleeps() || waking.contains(&run.id)) {
                *holding.entry(run.plan.host).or_default() += 1;
            }
        }
        Ok(holding)
    }

    /// Starts a background task that ends when all is stopped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Waits that grow, up to a longest one.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(pace: &crate::Pace) -> Self {
        Self {
            next: pace.retry_min,
            max: pace.retry_max,
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.max);
        wait
    }
}

/// Milliseconds from one time to another; none if the clock went back.
pub(crate) fn millis_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_millisecond() - from.as_millisecond()).unwrap_or(0)
}
