//! Copies of a sandbox that runs: what it is at one moment is written down, and each copy starts from
//! that as a sandbox of its own.
//!
//! ```text
//!   work stands still ─► vCPU stops ─► a layer over the disk ─► memory to a file ─► all goes on
//! ```
//!
//! The source goes on whatever fails. In a copy all work ends before it is adopted: what ran belongs to
//! the source, and so does what it drew at random. Connections end with it.

use super::super::guest::Guest;
use super::rest::{GO_ON, NAP, go_on, unsaved};
use super::{DISK, Driver, Life, Over, millis};
use crate::state::{internal, private_file};
use crate::template::Key;
use crate::vmm::{self, Control, Machine, Origin};
use lazaret_api::host::BootStages;
use lazaret_domain::sandbox::EndCause;
use lazaret_domain::{Denial, DenialCode};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// In the directory of the source: what it was at that moment.
pub(crate) const SNAPSHOT: &str = "snapshot.json";
pub(crate) const SNAPSHOT_MEMORY: &str = "snapshot.memory";
/// In the directory of a copy: what it starts from.
pub(crate) const ORIGIN: &str = "origin.json";
pub(crate) const ORIGIN_MEMORY: &str = "origin.memory";

/// How long a copy may take to confirm its adoption, and how often that is tried.
const DEADLINE: Duration = Duration::from_secs(60);
const TRIES: u8 = 2;
/// How long it may take to answer on one connection. It may still be busy with the source's.
const ANSWER: Duration = Duration::from_secs(25);
const PAUSE: Duration = Duration::from_millis(50);
/// Layers that a disk may lie in: QEMU keeps each of them open, and each one makes reading slower.
const MOST_LAYERS: usize = 32;
/// With less of the disk free than this, what could not be written did not fit.
const FULL: u64 = 64 << 20;

/// What a sandbox was at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Moment {
    /// What a machine needs to be loaded from it.
    key: Key,
    /// The layer that its disk was.
    layer: PathBuf,
    /// For how long the sandbox stood still, in milliseconds.
    pub(crate) pause_ms: u64,
}

impl Driver {
    /// Its disk: the layer that is written to.
    pub(super) fn disk(&self) -> PathBuf {
        match self.layers.load(Ordering::SeqCst) {
            0 => self.dir.join(DISK),
            layers => self.dir.join(&format!("disk-{layers}.qcow2")),
        }
    }

    /// Writes down what the sandbox is, and lets it go on.
    ///
    /// # Errors
    /// If it did not go on: it is over then. That it was not written down is the inner result.
    pub(super) async fn snapshot(
        &self,
        life: &mut Life,
        guest: &Guest,
    ) -> Result<Result<(), Denial>, Over> {
        let (layer, next) = match self.layer().await {
            Ok(layer) => layer,
            Err(denial) => return Ok(Err(denial)),
        };
        let began = Instant::now();
        // What would begin now would find a guest that does not answer.
        self.activity.pause();
        let taken = self.stand_still(life, guest, &next).await;
        if life.vmm.writes_to(&next) {
            self.layers.fetch_add(1, Ordering::SeqCst);
        } else {
            // What was prepared is not used.
            let _ = std::fs::remove_file(&next);
        }
        match timeout(GO_ON, go_on(life, guest)).await {
            Ok(Ok(())) => {}
            Ok(Err(denial)) => return Err(Over::new(EndCause::GuestUnreachable, denial.message)),
            Err(_) => return Err(Over::new(EndCause::GuestUnreachable, "it did not go on")),
        }
        self.activity.open();
        let pause = millis(began);
        Ok(match taken {
            Ok(()) => self.note(life, layer, pause),
            Err(denial) => Err(denial),
        })
    }

    /// What the disk is becomes a layer, and the next one is made ready, while the guest still runs.
    async fn layer(&self) -> Result<(PathBuf, PathBuf), Denial> {
        self.has_room_for_memory()?;
        let number = self.layers.load(Ordering::SeqCst) + 1;
        let below = self.dir.layers();
        if below >= MOST_LAYERS {
            let text = format!(
                "the sandbox's disk lies in {below} layers of copies, and {MOST_LAYERS} are the most; begin a new run"
            );
            return Err(Denial::new(DenialCode::TooManyLayers, text));
        }
        let name = format!("{}-{number}.qcow2", self.record.id);
        let next = self.dir.join(&format!("disk-{number}.qcow2"));
        let layer = self.state.layers().join(&name);
        // One that was prepared before and not used is the same file.
        if !layer.exists() {
            self.state
                .make_layer(&self.disk(), &name, &self.dir)
                .map_err(|error| internal("make a layer of the disk", &error))?;
        }
        vmm::make_layer(&layer, &next, self.record.spec.disk).await?;
        Ok((layer, next))
    }

    async fn stand_still(&self, life: &mut Life, guest: &Guest, next: &Path) -> Result<(), Denial> {
        let late = |what: &str| Denial::new(DenialCode::GuestUnreachable, what);
        timeout(NAP, guest.nap())
            .await
            .map_err(|_| late("the guest did not stop its work in time"))??;
        let file = self.dir.join(SNAPSHOT_MEMORY);
        let _ = std::fs::remove_file(&file);
        let memory =
            private_file(&file).map_err(|error| internal("make a file for the memory", &error))?;
        life.vmm.copy(&memory, next).await.map_err(|error| {
            // QEMU says only that it could not write.
            let full = self.state.disk_free().is_ok_and(|free| free < FULL);
            unsaved(&if full {
                io::ErrorKind::StorageFull.into()
            } else {
                error
            })
        })
    }

    fn note(&self, life: &Life, layer: PathBuf, pause_ms: u64) -> Result<(), Denial> {
        tracing::info!(pause_ms, "the sandbox was written down for copies");
        let unknown = || Denial::new(DenialCode::Internal, "the machine's own kind is not known");
        let key = life.key.clone().ok_or_else(unknown)?;
        self.dir
            .write(
                SNAPSHOT,
                &Moment {
                    key,
                    layer,
                    pause_ms,
                },
            )
            .map_err(|error| internal("note what the sandbox was", &error))
    }

    /// A guest that was copied and adopted.
    pub(super) async fn copied(
        &self,
        machine: &Machine,
        life: &mut Option<Life>,
        asked_at: Instant,
    ) -> Result<Guest, Over> {
        let failed = |why: String| Over::new(EndCause::BootFailed, why);
        let Some(origin) = self.dir.read::<Moment>(ORIGIN) else {
            return Err(failed("there is nothing that it was copied from".into()));
        };
        if self.key(machine).ok().as_ref() != Some(&origin.key) {
            return Err(failed("its source ran on another QEMU or image".into()));
        }
        let machine = Machine {
            origin: Origin::Saved,
            ..machine.clone()
        };
        let mut why = String::new();
        for attempt in 1..=TRIES {
            self.stage(|stages| {
                *stages = BootStages {
                    tries: attempt,
                    forked: true,
                    ..BootStages::default()
                }
            });
            let copy = self.copy(&machine, &origin, life, asked_at);
            why = match timeout(DEADLINE, copy).await {
                Ok(Ok(guest)) => {
                    let _ = std::fs::remove_file(self.dir.join(ORIGIN_MEMORY));
                    return Ok(guest);
                }
                Ok(Err(denial)) => denial.to_string(),
                Err(_) => format!("it did not confirm its adoption within {DEADLINE:?}"),
            };
            if let Some(failed) = life.take() {
                failed.end().await;
            }
            tracing::warn!(attempt, why, "a copy did not come up");
        }
        Err(failed(format!("the copy did not come up: {why}")))
    }

    async fn copy(
        &self,
        machine: &Machine,
        origin: &Moment,
        life: &mut Option<Life>,
        asked_at: Instant,
    ) -> Result<Guest, Denial> {
        let disk = self.disk();
        match std::fs::remove_file(&disk) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(internal("make the copy's disk", &error));
            }
            _ => vmm::make_layer(&origin.layer, &disk, self.record.spec.disk).await?,
        }
        let (life, control) = self.launch(machine, life, asked_at).await?;
        vmm::load_plain(&mut life.vmm, &self.dir.join(ORIGIN_MEMORY))
            .await
            .map_err(|error| internal("load a copy", &error))?;
        self.stage(|stages| stages.running_ms = Some(millis(asked_at)));
        tokio::select! {
            guest = self.become_itself(&control, asked_at) => guest,
            ended = life.vmm_ended() => Err(ended),
        }
    }

    /// The guest of a copy that confirmed its adoption on a connection that was given up.
    async fn adopted_already(&self, control: &Control, denial: Denial) -> Result<Guest, Denial> {
        let guest = Guest::through(control).await?;
        let health = guest.health().await?;
        if !health.adopted || health.napping {
            return Err(denial);
        }
        guest.right_clock(0).await?;
        self.change(|sandbox| {
            sandbox.boot_id = health.boot_id;
            sandbox.kernel = Some(health.kernel);
        });
        Ok(guest)
    }

    /// Connects until the guest answers, and tells it who it is.
    async fn become_itself(&self, control: &Control, asked_at: Instant) -> Result<Guest, Denial> {
        loop {
            let attempt = async {
                let guest = Guest::through(control).await?;
                self.adopt(&guest, asked_at).await?;
                Ok::<_, Denial>(guest)
            };
            match timeout(ANSWER, attempt).await {
                Ok(Ok(guest)) => return Ok(guest),
                // Nobody else speaks to it: it is adopted, and its answer was lost.
                Ok(Err(denial)) if denial.code == DenialCode::AlreadyExists => {
                    return self.adopted_already(control, denial).await;
                }
                Ok(Err(denial)) => tracing::debug!(%denial, "the guest does not answer yet"),
                Err(_) => tracing::debug!("the guest does not answer yet"),
            }
            sleep(PAUSE).await;
        }
    }
}
