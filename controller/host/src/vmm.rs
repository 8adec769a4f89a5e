//! QEMU, started confined and watched. Nothing here knows about sandboxes or guests' agents: a
//! [`Machine`] goes in, a running [`Vmm`] with its open ends comes out.
//!
//! ```text
//!   we listen on four sockets ─► start QEMU ─► it connects to all four ─► the sockets' names go
//!                                                 monitor · console · control · cable
//!   (of a saved machine QEMU listens for `control`, and is connected to once the guest runs)
//! ```
//!
//! QEMU gets no descriptor from us, may make no process, may gain no rights, and is killed by the
//! kernel when the thread that started it ends.

mod arguments;
mod confine;
mod console;
mod control;
mod disk;
mod monitor;
mod saved;
mod tsc;
mod words;

pub(crate) use arguments::{Machine, Origin, TOOLS, find};
pub(crate) use confine::Cage;
pub(crate) use console::{Console, Seen};
pub(crate) use control::Control;
pub(crate) use disk::{base_of, copy_disk, make_disk, make_layer};
pub(crate) use monitor::Holds;
pub(crate) use saved::{load, load_plain, save};
pub(crate) use words::{first as first_words, tame};

use crate::process::Identity;
use lazaret_api::host::Confinement;
use lazaret_domain::{Denial, DenialCode};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, ChildStderr};
use tokio::task::JoinHandle;

/// As much of QEMU's own complaints as is kept.
const COMPLAINT: usize = 8 << 10;
/// How long a QEMU that failed may take to say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running QEMU.
pub(crate) struct Vmm {
    child: Child,
    cage: Cage,
    complaint: Arc<Mutex<String>>,
    complaints: JoinHandle<()>,
    /// Who it is, for whoever has to clean up after us.
    pub identity: Identity,
    /// What really confines it.
    pub confinement: Confinement,
    /// Layers that were laid over the disk while it ran.
    layers: u32,
    /// The file of the last of them.
    top: Option<PathBuf>,
    /// Kept open: QEMU's monitor accepts one connection.
    monitor: monitor::Monitor,
}

/// Our ends of what is connected to the guest.
pub(crate) struct Lines {
    /// The guest's serial console.
    pub console: UnixStream,
    /// The guest agent's port.
    pub control: Control,
    /// The other end of the guest's network card.
    pub cable: UnixStream,
}

/// Sockets that QEMU will connect to. Their names are removed once it has, or when this is dropped.
struct Ends {
    sockets: [(UnixListener, PathBuf); 3],
    control: control::End,
}

impl Ends {
    fn listen(machine: &Machine, dir: &Path) -> io::Result<Self> {
        let bind = |name: &str| {
            let path = dir.join(name);
            Ok::<_, io::Error>((control::bind(&path)?, path))
        };
        Ok(Self {
            sockets: [
                bind(arguments::MONITOR)?,
                bind(arguments::CONSOLE)?,
                bind(arguments::CABLE)?,
            ],
            control: control::End::of(&machine.origin, dir.join(arguments::CONTROL))?,
        })
    }

    async fn accept(&self) -> io::Result<([UnixStream; 3], Control)> {
        let [a, b, c] = &self.sockets;
        let (a, b, c, control) = tokio::try_join!(
            a.0.accept(),
            b.0.accept(),
            c.0.accept(),
            self.control.accept()
        )?;
        Ok(([a.0, b.0, c.0], control))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for (_, path) in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Starts QEMU in `dir` and waits until its monitor answers.
///
/// Must be called on the main thread: QEMU dies with the thread that starts it. Dropped before it has
/// returned, it kills QEMU; the cgroup may be busy until QEMU is reaped and stays then, see [`Cage`].
///
/// # Errors
/// `vmm_missing` if there is no such program; `internal` with QEMU's complaint if it does not start.
pub(crate) async fn start(
    machine: &Machine,
    dir: &Path,
    cage: Cage,
) -> Result<(Vmm, Lines), Denial> {
    let fault = |doing: &str, error: io::Error| crate::state::internal(doing, &error);
    let ends = Ends::listen(machine, dir).map_err(|error| fault("listen for QEMU", error))?;
    let mut command = machine.command(dir)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| fault("start QEMU", error))?;
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .unwrap_or_default();
    let confined = cage.hold(pid);
    let complaint = Arc::new(Mutex::new(String::new()));
    let complaints = tokio::spawn(collect(child.stderr.take(), Arc::clone(&complaint)));
    let connected = async {
        let ([monitor, console, cable], control) = ends.accept().await?;
        let monitor = monitor::Monitor::greet(monitor).await?;
        io::Result::Ok((
            monitor,
            Identity::of(pid)?,
            Lines {
                console,
                control,
                cable,
            },
        ))
    };
    let outcome = tokio::select! {
        outcome = connected => outcome,
        status = child.wait() => Err(io::Error::other(format!("it ended at once ({})", describe(status)))),
    };
    match outcome {
        Ok((monitor, identity, lines)) => {
            let confinement = machine.confinement(confined);
            Ok((
                Vmm {
                    child,
                    cage,
                    complaint,
                    complaints,
                    identity,
                    confinement,
                    layers: 0,
                    top: None,
                    monitor,
                },
                lines,
            ))
        }
        Err(error) => {
            let _ = child.kill().await;
            let _ = complaints.await;
            let words = text(&complaint);
            cage.open().await;
            Err(Denial::new(
                DenialCode::Internal,
                format!("QEMU did not start: {error}: {}", words.trim()),
            ))
        }
    }
}

impl Vmm {
    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// What QEMU said on its standard error.
    pub(crate) fn complaint(&self) -> String {
        text(&self.complaint)
    }

    /// Stops it, writes the state of its devices and has it end in order. Its memory is a file
    /// already.
    ///
    /// # Errors
    /// QEMU refuses, or does not end within `limit`.
    pub(crate) async fn freeze(
        &mut self,
        state: &std::fs::File,
        limit: Duration,
    ) -> io::Result<()> {
        self.monitor.freeze(state).await?;
        self.quit(limit).await
    }

    /// Loads the state of a machine that waits for one. It does not run before [`Self::go_on`].
    ///
    /// # Errors
    /// QEMU refuses the state; its own words are in the error.
    pub(crate) async fn load(&mut self, state: &std::fs::File, holds: Holds) -> io::Result<()> {
        let Err(error) = self.monitor.load(state, holds).await else {
            return Ok(());
        };
        // It ends when it refuses a state, and has said why by then.
        let _ = tokio::time::timeout(LAST_WORDS, self.child.wait()).await;
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.complaints).await;
        let words = self.complaint();
        Err(io::Error::other(format!("{error}: {}", words.trim())))
    }

    /// Stops the machine and writes all of it, memory included, where `state` leads. It stays stopped.
    ///
    /// # Errors
    /// QEMU refuses or cannot write. The machine may be stopped then, see [`Self::go_on`].
    pub(crate) async fn save(&mut self, state: &std::fs::File) -> io::Result<()> {
        self.monitor.save(state).await
    }

    /// Stops the machine, lays a layer over its disk, and writes all of it. It stays stopped.
    ///
    /// # Errors
    /// QEMU refuses or cannot write. The machine may be stopped then, see [`Self::go_on`].
    pub(crate) async fn copy(&mut self, state: &std::fs::File, layer: &Path) -> io::Result<()> {
        self.monitor
            .copy(state, layer, &mut self.layers, &mut self.top)
            .await
    }

    /// Whether that is the layer of the disk that it writes to, laid over it while it ran.
    pub(crate) fn writes_to(&self, layer: &Path) -> bool {
        self.top.as_deref() == Some(layer)
    }

    /// Lets a machine run that was loaded or stopped.
    ///
    /// # Errors
    /// QEMU refuses.
    pub(crate) async fn go_on(&mut self) -> io::Result<()> {
        self.monitor.run().await
    }

    /// Has it end in order, so that its disk is whole.
    ///
    /// # Errors
    /// QEMU refuses, or does not end within `limit`.
    pub(crate) async fn quit(&mut self, limit: Duration) -> io::Result<()> {
        self.monitor.quit().await?;
        let status = tokio::time::timeout(limit, self.child.wait()).await??;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("QEMU ended with {status}")))
        }
    }

    /// Kills it, reaps it and removes what confined it. Returns when nothing of it is left.
    pub(crate) async fn end(mut self) {
        if let Err(error) = self.child.kill().await {
            tracing::error!(%error, "QEMU could not be killed");
        }
        if !self.complaints.is_finished() {
            let _ = (&mut self.complaints).await;
        }
        self.cage.open().await;
    }
}

/// How a process ended, for people.
pub(crate) fn describe(status: io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn text(shared: &Mutex<String>) -> String {
    shared
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Reads to the end and keeps the first part, so that the writer never waits.
async fn collect(stream: Option<ChildStderr>, into: Arc<Mutex<String>>) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut chunk = [0_u8; 1024];
    while let Ok(count @ 1..) = reader.read(&mut chunk).await {
        let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < COMPLAINT {
            kept.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
    }
}
