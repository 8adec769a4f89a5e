//! The days of a sandbox that came up: awake, asleep, awake again.
//!
//! ```text
//!   awake: nothing begins any more ─► work stands still ─► memory is saved ─► QEMU ends: asleep
//!            │ something goes on        │ the guest refuses   │ the disk is full
//!            └──────────────────────────┴─────────────────────┴─► awake as before, with a reason
//! ```
//!
//! Whatever fails on the way down, the guest goes on; only once QEMU is told to end is there no way
//! back but through [`super::wake`].

use super::super::guest::Guest;
use super::asks::{Order, What};
use super::cap::Cap;
use super::{Driver, Life, Over};
use crate::state::internal;
use crate::template::Key;
use crate::vmm;
use jiff::{SignedDuration, Timestamp};
use lazaret_api::host::WakeFrom;
use lazaret_domain::sandbox::{EndCause, SandboxEvent};
use lazaret_domain::{ByteSize, Denial, DenialCode};
use std::io;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// What was saved of a sandbox that sleeps.
pub(crate) const MEMORY: &str = "memory.lz4";
/// How long a guest may take to stop its work and write its disk out.
pub(super) const NAP: Duration = Duration::from_secs(60);
/// How long QEMU may take to end.
const FAREWELL: Duration = Duration::from_secs(30);
/// How long a guest that does not fall asleep may take to go on.
pub(super) const GO_ON: Duration = Duration::from_secs(60);

/// A sandbox that sleeps.
pub(super) struct Asleep {
    /// Since when.
    pub(super) since: Instant,
    /// What it needs to be loaded again; nothing is known to fit if there is none.
    pub(super) key: Option<Key>,
}

/// What became of falling asleep.
enum Fell {
    Asleep(Asleep),
    /// It is awake as before.
    Not(Denial),
    /// It did not survive it.
    Over(Over),
}

impl Driver {
    /// Goes through its days until something ends it.
    pub(super) async fn days(
        &self,
        life: &mut Option<Life>,
        mut guest: Guest,
        orders: &mut mpsc::Receiver<Order>,
        cap: &mut Cap,
    ) -> Over {
        loop {
            let asleep = match self.awake(life, guest, orders, cap).await {
                Ok(asleep) => asleep,
                Err(over) => return over,
            };
            guest = self.asleep(life, &asleep, orders, cap).await;
        }
    }

    async fn awake(
        &self,
        life: &mut Option<Life>,
        guest: Guest,
        orders: &mut mpsc::Receiver<Order>,
        cap: &mut Cap,
    ) -> Result<Asleep, Over> {
        self.take_up(&guest);
        loop {
            let Some(running) = life.as_mut() else {
                return Err(Over::new(EndCause::VmmDied, "QEMU is gone"));
            };
            let order = tokio::select! {
                biased;
                over = self.watch(running, &guest) => return Err(over),
                Some(order) = orders.recv() => Some(order),
                () = self.idle() => None,
            };
            match order.as_ref().map(|order| order.what) {
                Some(What::Wake(_)) => {
                    let _ = order.map(|order| order.answer(Ok(())));
                }
                Some(What::Keep(keep)) => {
                    self.change(|sandbox| sandbox.kept = keep);
                    let _ = order.map(|order| order.answer(Ok(())));
                }
                Some(What::Snapshot) => match self.snapshot(running, &guest).await {
                    Ok(taken) => {
                        let _ = order.map(|order| order.answer(taken));
                    }
                    Err(over) => return Err(over),
                },
                Some(What::Sleep) | None => match self.fall_asleep(life, &guest, cap).await {
                    Fell::Asleep(asleep) => {
                        let _ = order.map(|order| order.answer(Ok(())));
                        return Ok(asleep);
                    }
                    Fell::Not(denial) => {
                        tracing::warn!(%denial, "the sandbox did not fall asleep");
                        let _ = order.map(|order| order.answer(Err(denial)));
                    }
                    Fell::Over(over) => return Err(over),
                },
            }
        }
    }

    /// Lets work begin.
    fn take_up(&self, guest: &Guest) {
        self.guest.send_replace(Some(guest.clone()));
        self.activity.open();
    }

    async fn idle(&self) {
        match self.record.spec.idle_sleep {
            Some(span) => self.activity.idle_for(span.duration()).await,
            None => std::future::pending().await,
        }
    }

    async fn fall_asleep(&self, life: &mut Option<Life>, guest: &Guest, cap: &mut Cap) -> Fell {
        if let Err(going) = self.activity.close() {
            let text = format!(
                "{going} commands or file calls are under way; cancel them or wait for them"
            );
            return Fell::Not(Denial::new(DenialCode::SandboxBusy, text).retry_after(1));
        }
        self.guest.send_replace(None);
        let refused = self.lie_down(life, guest).await.err();
        let Some(running) = life.as_mut() else {
            return Fell::Over(Over::new(EndCause::VmmDied, "QEMU is gone"));
        };
        if let Some(denial) = refused {
            let gone_on = timeout(GO_ON, go_on(running, guest)).await;
            return match gone_on {
                Ok(Ok(())) => {
                    self.take_up(guest);
                    Fell::Not(denial)
                }
                // It neither sleeps nor works.
                _ => Fell::Over(Over::new(EndCause::GuestUnreachable, denial.to_string())),
            };
        }
        // In order, so that what QEMU holds of the disk is in its file.
        if let Err(error) = running.vmm.quit(FAREWELL).await {
            return Fell::Over(Over::new(EndCause::VmmDied, error.to_string()));
        }
        let mut key = None;
        if let Some(ended) = life.take() {
            key.clone_from(&ended.key);
            ended.end().await;
        }
        let since = Instant::now();
        let now = Timestamp::now();
        self.turn(SandboxEvent::Slept, |sandbox| {
            sandbox.asleep_since = Some(now);
        });
        self.count_down(since, cap);
        Fell::Asleep(Asleep { since, key })
    }

    /// Has the guest stand still, and saves it.
    async fn lie_down(&self, life: &mut Option<Life>, guest: &Guest) -> Result<(), Denial> {
        self.has_room_for_memory()?;
        let late = |what: &str| Denial::new(DenialCode::GuestUnreachable, what);
        timeout(NAP, guest.nap())
            .await
            .map_err(|_| late("the guest did not stop its work in time"))??;
        let Some(life) = life else {
            return Err(late("QEMU is gone"));
        };
        let file = self.dir.join(MEMORY);
        // Without a limit of its own: in the middle of it there is no way back. What ends a sandbox
        // ends this too.
        vmm::save(&mut life.vmm, &file)
            .await
            .map_err(|error| unsaved(&error))
    }

    /// The memory may take up to its whole size, and the host keeps what it has to keep free.
    pub(super) fn has_room_for_memory(&self) -> Result<(), Denial> {
        let free = self
            .state
            .disk_free()
            .map_err(|error| internal("see how much disk is free", &error))?;
        let memory = self.record.spec.memory;
        let least = self.state.config().min_free_disk.bytes();
        if free.saturating_sub(least) < memory.bytes() {
            let text = format!(
                "only {} are free on this host; to sleep, a sandbox with {memory} of memory may need that much besides \
                 {} that must stay free",
                ByteSize::mebibytes(free >> 20),
                self.state.config().min_free_disk,
            );
            return Err(Denial::new(DenialCode::DiskFull, text).retry_after(60));
        }
        Ok(())
    }

    /// Sleeps until it is woken.
    async fn asleep(
        &self,
        life: &mut Option<Life>,
        asleep: &Asleep,
        orders: &mut mpsc::Receiver<Order>,
        cap: &mut Cap,
    ) -> Guest {
        loop {
            let Some(order) = orders.recv().await else {
                // Nobody can wake it any more; what ends it comes another way.
                std::future::pending::<()>().await;
                continue;
            };
            match order.what {
                What::Sleep => order.answer(Ok(())),
                What::Snapshot => order.answer(Err(Denial::new(
                    DenialCode::SandboxAsleep,
                    "the sandbox sleeps; wake it first",
                ))),
                What::Keep(keep) => {
                    self.change(|sandbox| sandbox.kept = keep);
                    self.count_down(asleep.since, cap);
                    order.answer(Ok(()));
                }
                What::Wake(from) => match self.wake_up(life, asleep, from).await {
                    Ok((guest, place)) => {
                        self.woken(cap, from);
                        // It counts as awake by now.
                        drop(place);
                        order.answer(Ok(()));
                        return guest;
                    }
                    Err(denial) => {
                        tracing::warn!(%denial, "the sandbox did not wake");
                        order.answer(Err(denial));
                    }
                },
            }
        }
    }

    fn woken(&self, cap: &mut Cap, from: WakeFrom) {
        let left = SignedDuration::try_from(cap.awake()).unwrap_or(SignedDuration::MAX);
        let deadline = Timestamp::now().checked_add(left).ok();
        self.turn(SandboxEvent::Woke, |sandbox| {
            sandbox.asleep_since = None;
            sandbox.deadline = deadline;
        });
        tracing::info!(?from, "the sandbox woke");
    }

    /// Has the TTL count, or not, as the sandbox is kept or not.
    fn count_down(&self, since: Instant, cap: &mut Cap) {
        let ttl = self.record.spec.sleep_ttl;
        let longest = (!self.published.borrow().kept).then_some(ttl);
        cap.asleep(since, longest);
        self.change(|sandbox| {
            let span = longest.and_then(|span| SignedDuration::try_from(span.duration()).ok());
            let end = |span| sandbox.asleep_since?.checked_add(span).ok();
            sandbox.deadline = span.and_then(end);
        });
    }
}

/// Why memory could not be written to a file.
pub(super) fn unsaved(error: &io::Error) -> Denial {
    match error.kind() {
        io::ErrorKind::StorageFull => Denial::new(
            DenialCode::DiskFull,
            "the host's disk is too full to save the sandbox's memory",
        )
        .retry_after(60),
        _ => internal("save the sandbox's memory", error),
    }
}

/// Has a guest that did not fall asleep take up its work again.
pub(super) async fn go_on(life: &mut Life, guest: &Guest) -> Result<(), Denial> {
    life.vmm
        .go_on()
        .await
        .map_err(|error| internal("let the sandbox go on", &error))?;
    let shown = guest.wake().await?;
    guest.right_clock(shown).await?;
    guest.go_on().await
}
