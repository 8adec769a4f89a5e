//! The one task that changes a sandbox.
//!
//! ```text
//!   spare ────────────────────────────────────────────────┐
//!   choose accelerator ─┬─ template ─► fork (a few tries) ─┼─► adopt ─► awake ─► … ─► end
//!                       └─ none ─────► boot (a few tries) ─┘            ⇅
//!                                                                     asleep
//! ```
//!
//! At every point the sandbox may be asked to end, reach its longest duration, or lose QEMU; each
//! way leads through the same end, which leaves no process, socket or disk.

mod asks;
mod boot;
mod cap;
mod copy;
mod fork;
mod rest;
mod spare;
mod vigil;
mod wake;

pub(crate) use asks::{Asks, What};
pub(crate) use copy::{Moment, ORIGIN, ORIGIN_MEMORY, SNAPSHOT, SNAPSHOT_MEMORY};
pub(crate) use spare::Begun;

use super::STATUS;
use super::activity::Activity;
use super::guest::Guest;
use crate::gateway::EgressLog;
use crate::image;
pub(super) use crate::state::DISK;
use crate::state::{Record, SandboxDir, State};
use crate::template::Key;
use crate::vmm::{self, Cage, Console, Machine, Seen, Vmm};
use asks::{Asked, Order};
use cap::Cap;
use jiff::Timestamp;
use lazaret_api::host::{Accel, AccelChoice, BootStages, Confinement, End, Sandbox};
use lazaret_domain::sandbox::{EndCause, SandboxEvent, SandboxState};
use lazaret_domain::{Denial, DenialCode};
use std::sync::atomic::AtomicU32;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Console lines that go into an explanation.
const LAST_LINES: usize = 12;
/// The longest detail of an end in bytes: what QEMU says and what the guest says, each bounded, fit.
const DETAIL: usize = 16 << 10;

/// A sandbox that has just been asked for.
pub(crate) fn newborn(record: &Record) -> Sandbox {
    let cap = i64::try_from(record.spec.max_duration.duration().as_millis()).unwrap_or(i64::MAX);
    Sandbox {
        id: record.id.clone(),
        spec: record.spec.clone(),
        state: SandboxState::Forking,
        end: None,
        created_at: record.created_at,
        deadline: record
            .created_at
            .checked_add(jiff::SignedDuration::from_millis(cap))
            .ok(),
        asleep_since: None,
        kept: false,
        accel: None,
        boot_id: None,
        kernel: None,
        stages: BootStages::default(),
        confinement: Confinement::default(),
    }
}

/// A cause with its detail.
struct Over {
    cause: EndCause,
    detail: String,
}

impl Over {
    /// The guest has a say in most details; none of them is passed on as it came.
    fn new(cause: EndCause, detail: impl AsRef<str>) -> Self {
        let detail = vmm::tame(detail.as_ref());
        Self {
            cause,
            detail: vmm::first_words(&detail, DETAIL).to_owned(),
        }
    }
}

/// A sandbox that has ended and whose end is not known outside yet.
pub(crate) struct Gone {
    pub sandbox: Sandbox,
    published: watch::Sender<Sandbox>,
}

impl Gone {
    /// Lets everybody know.
    pub(crate) fn announce(self) {
        self.published.send_replace(self.sandbox);
    }
}

/// What the driver works with.
pub(crate) struct Driver {
    pub state: State,
    pub dir: SandboxDir,
    pub record: Record,
    pub published: watch::Sender<Sandbox>,
    pub console: Console,
    pub guest: watch::Sender<Option<Guest>>,
    pub egress: EgressLog,
    pub activity: Activity,
    /// Layers that were laid over the disk since it was made.
    pub layers: AtomicU32,
}

/// What runs for a booted guest.
struct Life {
    vmm: Vmm,
    reading: JoinHandle<()>,
    /// Our end of the network card's cable, while it is plugged into nothing.
    cable: Option<UnixStream>,
    gateway: Option<JoinHandle<()>>,
    stop: CancellationToken,
    /// What a machine needs to be loaded from this one; of the QEMU that runs, not of one that may
    /// have been installed since.
    key: Option<Key>,
}

impl Life {
    /// Waits until QEMU ends while nobody wants it to, and says with what words.
    async fn vmm_ended(&mut self) -> Denial {
        let status = self.vmm.ended().await;
        let words = self.vmm.complaint();
        Denial::new(
            DenialCode::BootFailed,
            format!("QEMU ended ({}) {}", vmm::describe(status), words.trim()),
        )
    }

    /// Ends all of it.
    async fn end(self) {
        self.stop.cancel();
        self.vmm.end().await;
        if let Some(gateway) = self.gateway {
            let _ = gateway.await;
        }
        let _ = self.reading.await;
    }
}

impl Driver {
    /// Leads the sandbox through its life.
    pub(crate) async fn run(self, asked: Asked, begun: Option<Begun>) -> Gone {
        let Asked {
            mut end,
            mut orders,
        } = asked;
        let (mut cap, ends) = Cap::new(self.record.spec.max_duration);
        let (mut life, spare) = begun.map(Begun::taken).unzip();
        let over = tokio::select! {
            biased;
            _ = end.recv() => Over::new(EndCause::Teardown, ""),
            over = ends.reached() => over,
            () = terminated() => Over::new(EndCause::ShimDied, "the shim was told to stop"),
            over = self.live(&mut life, spare, &mut orders, &mut cap) => over,
        };
        self.guest.send_replace(None);
        if let Some(life) = life {
            life.end().await;
        }
        // A start that was given up leaves its cgroup if QEMU was not reaped yet.
        let cage = self.dir.cage(&self.record.id);
        Cage::left_by(&self.state.config().cgroup, cage.as_str())
            .open()
            .await;
        let mut sandbox = self.published.borrow().clone();
        sandbox.state = SandboxState::Gone;
        sandbox.end = Some(End {
            cause: over.cause,
            detail: over.detail,
            at: Timestamp::now(),
        });
        tracing::info!(sandbox = %sandbox.id, cause = over.cause.code(), "the sandbox has ended");
        Gone {
            sandbox,
            published: self.published,
        }
    }

    /// Comes up, and goes through its days until something ends it. This can be dropped at every
    /// point: what runs is in `life`, or belongs to [`vmm::start`], which kills QEMU when it is dropped.
    async fn live(
        &self,
        life: &mut Option<Life>,
        spare: Option<(Guest, Option<Accel>)>,
        orders: &mut mpsc::Receiver<Order>,
        cap: &mut Cap,
    ) -> Over {
        match self.come_up(life, spare).await {
            Ok(guest) => self.days(life, guest, orders, cap).await,
            Err(over) => over,
        }
    }

    /// A guest that was forked or else booted, and adopted.
    async fn come_up(
        &self,
        life: &mut Option<Life>,
        spare: Option<(Guest, Option<Accel>)>,
    ) -> Result<Guest, Over> {
        let asked_at = Instant::now();
        if let Some(guest) = self.claimed(life, spare, asked_at).await {
            self.turn(SandboxEvent::Adopted, |_| {});
            return Ok(guest);
        }
        let setup = |denial: Denial| Over::new(EndCause::SetupFailed, denial.to_string());
        let machine = self.prepare().await.map_err(setup)?;
        if self.record.spec.copy_of.is_some() {
            let guest = self.copied(&machine, life, asked_at).await?;
            self.turn(SandboxEvent::Adopted, |_| {});
            return Ok(guest);
        }
        let guest = match self.forked(&machine, life, asked_at).await {
            Some(guest) => guest,
            None => self.booted(&machine, life, asked_at).await?,
        };
        self.turn(SandboxEvent::Adopted, |_| {});
        Ok(guest)
    }

    async fn booted(
        &self,
        machine: &Machine,
        life: &mut Option<Life>,
        asked_at: Instant,
    ) -> Result<Guest, Over> {
        let disk = self.dir.join(DISK);
        if let Err(denial) = vmm::make_disk(&self.state.disks(), &disk, self.record.spec.disk).await
        {
            return Err(Over::new(EndCause::SetupFailed, denial.to_string()));
        }
        let tries = self.record.spec.boot_tries.max(1);
        let mut why = Over::new(EndCause::BootFailed, "");
        for attempt in 1..=tries {
            self.change(|sandbox| {
                sandbox.stages = BootStages {
                    tries: attempt,
                    ..BootStages::default()
                }
            });
            let boot = self.boot(machine, life, asked_at);
            let deadline = self.record.spec.boot_deadline;
            let failure = match tokio::time::timeout(deadline.duration(), boot).await {
                Ok(Ok(guest)) => return Ok(guest),
                Ok(Err(denial)) => denial.to_string(),
                Err(_) => format!("it was not ready after {deadline}"),
            };
            let seen = *self.console.seen().borrow();
            if let Some(failed) = life.take() {
                failed.end().await;
            }
            let lines = self.console.last_lines(LAST_LINES);
            tracing::warn!(attempt, failure, "a boot failed");
            let cause = match seen {
                Seen { flooded: true, .. } => EndCause::ConsoleFlood,
                Seen { panicked: true, .. } => EndCause::GuestPanic,
                _ => EndCause::BootFailed,
            };
            why = Over::new(
                cause,
                format!("try {attempt} of {tries}: {failure}\n{lines}"),
            );
        }
        Err(why)
    }

    /// What the machine is to be, whether it is forked or booted.
    async fn prepare(&self) -> Result<Machine, Denial> {
        let spec = &self.record.spec;
        let accel = match spec.accel {
            // Booting is the proof, and what was asked for is what is used.
            AccelChoice::Tcg => Accel::Tcg,
            choice => crate::probe::resolve(&self.state, choice).await?,
        };
        self.change(|sandbox| sandbox.accel = Some(accel));
        let (state, digest) = (self.state.clone(), spec.image.clone());
        let image = tokio::task::spawn_blocking(move || image::verified(&state, &digest))
            .await
            .map_err(|error| crate::state::internal("verify the image", &error))??;
        Ok(Machine {
            qemu: self.state.config().qemu.clone(),
            image,
            accel,
            memory: spec.memory,
            cpus: spec.cpus,
            disk: Some(self.disk()),
            probe: false,
            kernel_args: self.state.config().kernel_args.clone(),
            origin: vmm::Origin::Boot,
        })
    }

    /// Changes what is published because something happened to the sandbox.
    fn turn(&self, event: SandboxEvent, more: impl FnOnce(&mut Sandbox)) {
        self.change(|sandbox| {
            match sandbox.state.after(event) {
                Ok(state) => sandbox.state = state,
                Err(denial) => tracing::error!(%denial, "a sandbox did what it cannot do"),
            }
            more(sandbox);
        });
    }

    /// Notes how long a stage of coming up took. Waking has the same stages, and they are not these.
    fn stage(&self, note: impl FnOnce(&mut BootStages)) {
        if self.published.borrow().state == SandboxState::Forking {
            self.change(|sandbox| note(&mut sandbox.stages));
        }
    }

    /// Changes what is published, and writes it down for those who come after the shim.
    fn change(&self, change: impl FnOnce(&mut Sandbox)) {
        self.published.send_modify(change);
        if let Err(error) = self.dir.write(STATUS, &*self.published.borrow()) {
            tracing::error!(%error, "the status could not be written");
        }
    }
}

fn millis(since: Instant) -> u64 {
    lazaret_domain::millis(since.elapsed())
}

/// Returns when the process is asked to stop.
pub(super) async fn terminated() {
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(error) => {
            tracing::warn!(%error, "requests to stop cannot be heard");
            std::future::pending::<()>().await;
        }
    }
}
