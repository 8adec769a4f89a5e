//! The one task that changes a sandbox.
//!
//! ```text
//!   choose accelerator ─┬─ template ─► fork (a few tries) ─┬─► adopt ─► ready ─► watch ─► end
//!                       └─ none ─────► boot (a few tries) ─┘
//! ```
//!
//! At every point the sandbox may be asked to end, reach its longest duration, or lose QEMU; each
//! way leads through the same end, which leaves no process, socket or disk.

mod boot;
mod fork;
mod vigil;

use super::STATUS;
use super::guest::Guest;
use crate::gateway::EgressLog;
use crate::image;
pub(super) use crate::state::DISK;
use crate::state::{Record, SandboxDir, State};
use crate::vmm::{self, Cage, Console, Machine, Seen, Vmm};
use jiff::Timestamp;
use lazaret_api::host::{Accel, AccelChoice, BootStages, Confinement, End, Sandbox};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{Denial, DenialCode};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Console lines that go into an explanation.
const LAST_LINES: usize = 12;
/// The longest detail of an end in bytes: what QEMU says and what the guest says, each bounded, fit.
const DETAIL: usize = 16 << 10;

/// Where requests to end the sandbox are made.
#[derive(Clone)]
pub(crate) struct Asks(mpsc::Sender<()>);

impl Asks {
    pub(crate) fn channel() -> (Self, mpsc::Receiver<()>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Asks for the end. One ask that waits is as good as many.
    pub(crate) fn end(&self) {
        let _ = self.0.try_send(());
    }
}

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
            .saturating_add(jiff::SignedDuration::from_millis(cap))
            .unwrap_or(Timestamp::MAX),
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
}

/// What runs for a booted guest.
struct Life {
    vmm: Vmm,
    reading: JoinHandle<()>,
    gateway: JoinHandle<()>,
    stop: CancellationToken,
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
        let _ = self.gateway.await;
        let _ = self.reading.await;
    }
}

impl Driver {
    /// Leads the sandbox through its life.
    pub(crate) async fn run(self, mut asked: mpsc::Receiver<()>) -> Gone {
        // The monotonic clock: setting the wall clock neither shortens nor stretches a sandbox.
        let cap = tokio::time::sleep(self.record.spec.max_duration.duration());
        let mut life = None;
        let over = tokio::select! {
            biased;
            _ = asked.recv() => Over::new(EndCause::Teardown, ""),
            () = cap => Over::new(EndCause::RunCap, format!("after {}", self.record.spec.max_duration)),
            () = terminated() => Over::new(EndCause::ShimDied, "the shim was told to stop"),
            over = self.live(&mut life) => over,
        };
        self.guest.send_replace(None);
        if let Some(life) = life {
            life.end().await;
        }
        // A start that was given up leaves its cgroup if QEMU was not reaped yet.
        Cage::left_by(&self.state.config().cgroup, self.record.id.as_str())
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

    /// Boots and watches until something ends it. This can be dropped at every point: what runs is
    /// in `life`, or belongs to [`vmm::start`], which kills QEMU when it is dropped.
    async fn live(&self, life: &mut Option<Life>) -> Over {
        let asked_at = Instant::now();
        let machine = match self.prepare().await {
            Ok(machine) => machine,
            Err(denial) => return Over::new(EndCause::SetupFailed, denial.to_string()),
        };
        if let Some(guest) = self.forked(&machine, life, asked_at).await {
            return self.settled(life, guest).await;
        }
        let disk = self.dir.join(DISK);
        if let Err(denial) = vmm::make_disk(&self.state.disks(), &disk, self.record.spec.disk).await
        {
            return Over::new(EndCause::SetupFailed, denial.to_string());
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
            let boot = self.boot(&machine, life, asked_at);
            let deadline = self.record.spec.boot_deadline;
            let failure = match tokio::time::timeout(deadline.duration(), boot).await {
                Ok(Ok(guest)) => return self.settled(life, guest).await,
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
        why
    }

    /// Watches over a guest that was adopted.
    async fn settled(&self, life: &mut Option<Life>, guest: Guest) -> Over {
        self.guest.send_replace(Some(guest.clone()));
        match life {
            Some(life) => self.watch(life, &guest).await,
            None => Over::new(EndCause::VmmDied, "QEMU is gone"),
        }
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
            disk: Some(self.dir.join(DISK)),
            probe: false,
            kernel_args: self.state.config().kernel_args.clone(),
            origin: vmm::Origin::Boot,
        })
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
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Returns when the process is asked to stop.
async fn terminated() {
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
