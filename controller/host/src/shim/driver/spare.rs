//! A spare: a fork that is up before anybody asks for a sandbox, and becomes one when it is claimed.
//!
//! It is sealed and holds nothing: its network card is plugged into nothing, it was not told who it
//! is, and what it starts to warm up has ended by the time it is offered.

use super::super::guest::Guest;
use super::{DISK, Driver, Life, Over, millis};
use crate::template::Template;
use crate::vmm::{Console, Machine, Origin};
use lazaret_api::host::{Accel, BootStages};
use lazaret_domain::{Denial, DenialCode};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a spare may take to warm up, and once claimed to confirm its adoption.
const WARMING: Duration = Duration::from_secs(90);
const ADOPTION: Duration = Duration::from_secs(20);

/// What a spare brings along into the sandbox that it becomes.
pub(crate) struct Begun {
    life: Life,
    guest: Guest,
    accel: Option<Accel>,
    /// What its guest said so far.
    pub(crate) console: Console,
}

impl Driver {
    /// A fork that is up, warm, and not adopted. What runs is in `life` then.
    ///
    /// # Errors
    /// `boot_failed` if there is nothing to fork; else what kept it from coming up.
    async fn get_ready(&self, life: &mut Option<Life>) -> Result<Guest, Denial> {
        let machine = self.prepare().await?;
        let template: Template = self.template(&machine).await.ok_or_else(|| {
            Denial::new(DenialCode::BootFailed, "there is no template for a spare")
        })?;
        let machine = Machine {
            origin: Origin::Fork(template.memory()),
            ..machine
        };
        let began = Instant::now();
        self.copy_template_disk(&template)?;
        let (life, control) = self.launch_unplugged(&machine, life, began).await?;
        self.load_template(life, &template).await?;
        let warming = async {
            let guest = Guest::through(&control).await?;
            guest.warm(&self.record.id).await?;
            Ok(guest)
        };
        tokio::select! {
            guest = timeout(WARMING, warming) => guest.unwrap_or_else(|_| Err(Denial::new(
                DenialCode::GuestUnreachable,
                format!("a spare was not warm within {WARMING:?}"),
            ))),
            ended = life.vmm_ended() => Err(ended),
        }
    }

    /// Gets ready, and waits until the spare is claimed: `offered` returns then.
    ///
    /// # Errors
    /// Why there is no spare, or no longer. What still runs of it is ended.
    pub(crate) async fn stand_by<T>(
        &self,
        offered: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<(T, Begun)> {
        let mut life = None;
        let claimed = async {
            let guest = self.get_ready(&mut life).await?;
            let running = life
                .as_mut()
                .ok_or_else(|| anyhow::anyhow!("QEMU is gone"))?;
            tokio::select! {
                biased;
                Over { cause, detail } = self.watch(running, &guest) => anyhow::bail!("{}: {detail}", cause.code()),
                claim = offered => Ok((claim?, guest)),
            }
        }
        .await;
        match (claimed, life) {
            (Ok((claim, guest)), Some(life)) => {
                let begun = Begun {
                    life,
                    guest,
                    accel: self.published.borrow().accel,
                    console: self.console.clone(),
                };
                Ok((claim, begun))
            }
            (outcome, life) => {
                if let Some(life) = life {
                    life.end().await;
                }
                Err(outcome
                    .err()
                    .unwrap_or_else(|| anyhow::anyhow!("QEMU is gone")))
            }
        }
    }

    /// The guest of a spare that became this sandbox, adopted. One that does not confirm who it is
    /// is destroyed.
    pub(super) async fn claimed(
        &self,
        life: &mut Option<Life>,
        spare: Option<(Guest, Option<Accel>)>,
        asked_at: Instant,
    ) -> Option<Guest> {
        let ((guest, accel), running) = (spare?, life.as_mut()?);
        self.change(|sandbox| {
            sandbox.accel = accel;
            sandbox.confinement = running.vmm.confinement.clone();
            sandbox.stages = BootStages {
                shim_ms: Some(millis(asked_at)),
                forked: true,
                spare: true,
                tries: 1,
                ..BootStages::default()
            };
        });
        self.plug(running);
        let failure = tokio::select! {
            adopted = timeout(ADOPTION, self.adopt(&guest, asked_at)) => match adopted {
                Ok(Ok(())) => return Some(guest),
                Ok(Err(denial)) => denial.to_string(),
                Err(_) => format!("it did not confirm its adoption within {ADOPTION:?}"),
            },
            ended = running.vmm_ended() => ended.to_string(),
        };
        tracing::warn!(failure, "a spare failed");
        if let Some(failed) = life.take() {
            failed.end().await;
        }
        let _ = std::fs::remove_file(self.dir.join(DISK));
        None
    }
}

impl Begun {
    pub(super) fn taken(self) -> (Life, (Guest, Option<Accel>)) {
        (self.life, (self.guest, self.accel))
    }
}
