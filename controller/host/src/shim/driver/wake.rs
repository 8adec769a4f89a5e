//! Waking a sandbox: from what was saved of it, or from its disk alone.
//!
//! What was saved stays until the guest has answered and has its clock and entropy, so a wake that
//! fails before can be tried again. All that time its work stands still and its disk is as it was
//! written out before it slept; from the moment on at which work goes on, or a boot from the disk
//! begins, what was saved does not fit the disk any more, and is gone.

use super::super::guest::Guest;
use super::rest::{Asleep, MEMORY};
use super::{Driver, Life};
use crate::state::Waking;
use crate::template::Key;
use crate::vmm::{self, Control, Machine, Origin};
use lazaret_api::host::WakeFrom;
use lazaret_domain::{Denial, DenialCode};
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a wake from memory may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long the guest may take to answer on a first connection; on each further one twice as long.
/// It may still be busy with the connection that it was saved with.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(50);

impl Driver {
    /// Wakes it. What runs is in `life` then; after a failure nothing does.
    pub(super) async fn wake_up(
        &self,
        life: &mut Option<Life>,
        asleep: &Asleep,
        from: WakeFrom,
    ) -> Result<(Guest, Waking), Denial> {
        let place = self.state.place_for_waking(&self.record.id).await?;
        let machine = self.prepare().await?;
        let woken = match from {
            WakeFrom::Memory => self.load_memory(life, &machine, asleep).await,
            WakeFrom::Disk => self.boot_disk(life, &machine).await,
        };
        match woken {
            Ok(guest) => Ok((guest, place)),
            Err(denial) => {
                if let Some(failed) = life.take() {
                    failed.end().await;
                }
                Err(denial)
            }
        }
    }

    async fn load_memory(
        &self,
        life: &mut Option<Life>,
        machine: &Machine,
        asleep: &Asleep,
    ) -> Result<Guest, Denial> {
        if asleep.key != Some(self.key(machine)?) {
            return Err(unfit(
                "the host's QEMU or image is another than when it fell asleep",
            ));
        }
        let machine = Machine {
            origin: Origin::Saved,
            ..machine.clone()
        };
        timeout(DEADLINE, self.load(life, &machine))
            .await
            .unwrap_or_else(|_| Err(failed(format!("it did not answer within {DEADLINE:?}"))))
    }

    async fn load(&self, life: &mut Option<Life>, machine: &Machine) -> Result<Guest, Denial> {
        let (life, control) = self.launch(machine, life, Instant::now()).await?;
        vmm::load(&mut life.vmm, &self.dir.join(MEMORY))
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::NotFound => unfit(&error.to_string()),
                _ => failed(error.to_string()),
            })?;
        let guest = tokio::select! {
            guest = rouse(&control) => guest?,
            ended = life.vmm_ended() => return Err(failed(ended.message)),
        };
        // From the next step on the disk is another than what was saved knows.
        self.spend();
        guest
            .go_on()
            .await
            .map_err(|denial| failed(denial.message))?;
        Ok(guest)
    }

    /// What was saved is not to be loaded again.
    fn spend(&self) {
        let _ = std::fs::remove_file(self.dir.join(MEMORY));
    }

    async fn boot_disk(&self, life: &mut Option<Life>, machine: &Machine) -> Result<Guest, Denial> {
        self.spend();
        let deadline = self.record.spec.boot_deadline;
        match timeout(
            deadline.duration(),
            self.boot(machine, life, Instant::now()),
        )
        .await
        {
            Ok(Ok(guest)) => Ok(guest),
            Ok(Err(denial)) => Err(failed(denial.to_string())),
            Err(_) => Err(failed(format!("it was not ready after {deadline}"))),
        }
    }

    /// What a machine needs to be loaded from what was saved of it.
    pub(super) fn key(&self, machine: &Machine) -> Result<Key, Denial> {
        let spec = &self.record.spec;
        Key::of(&self.state, &spec.image, machine, spec.disk)
    }
}

/// Connects to a guest until it answers, and wakes it.
async fn rouse(control: &Control) -> Result<Guest, Denial> {
    let mut patience = FIRST;
    loop {
        let attempt = async {
            let guest = Guest::through(control).await?;
            let shown = guest.wake().await?;
            guest.right_clock(shown).await?;
            Ok::<_, Denial>(guest)
        };
        match timeout(patience, attempt).await {
            Ok(Ok(guest)) => return Ok(guest),
            Ok(Err(denial)) => tracing::debug!(%denial, "the guest does not answer yet"),
            Err(_) => tracing::debug!(?patience, "the guest does not answer yet"),
        }
        sleep(PAUSE).await;
        patience = (patience * 2).min(LONGEST);
    }
}

fn failed(why: impl AsRef<str>) -> Denial {
    Denial::new(
        DenialCode::WakeFailed,
        format!(
            "the sandbox did not wake: {}. It still sleeps; try again, or wake it from its disk",
            vmm::tame(why.as_ref())
        ),
    )
}

fn unfit(why: &str) -> Denial {
    Denial::new(
        DenialCode::SavedStateUnfit,
        format!("the sandbox's memory cannot be loaded ({why}); it can be woken from its disk"),
    )
}
