//! Runs commands as the agent user, bounded, and leaves none behind.
//!
//! ```text
//!              ┌─ its standard input is fed from the request
//!   spawn ──►  ├─ its output is framed into a short queue; a slow reader slows the command
//!              └─ wait for: its end │ its longest duration │ its caller gone
//!                                          └─ SIGTERM, grace, SIGKILL ─┘
//!   then: what it left in the background is killed, the rest of the output is read,
//!         and the exit frame is sent, always last
//! ```
//!
//! A command is its process group *and* a control group: a daemon that leaves the one is still in
//! the other. So a background process never survives its command.

mod cgroup;
mod child;
mod output;

pub use cgroup::Cgroups;
pub use child::RunAs;

use crate::children::Children;
use bytes::Bytes;
use cgroup::Containment;
use child::Child;
use futures::Stream;
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecEnd, ExecExit, ExecSpec};
use rustix::process::WaitStatus;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// How many frames wait for a slow reader.
const QUEUE: usize = 4;
/// How long what a command left behind may take to end by itself: the last `tee` of a pipeline,
/// say. After that it is killed.
const SETTLE: Duration = Duration::from_millis(250);

/// What all commands of a guest share.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    children: Children,
    cgroups: Option<Cgroups>,
    run_as: RunAs,
    /// Whether work stands still. Held while a command is started: in a group that stands still the
    /// new process would stop before its `exec`, and whoever waits for that with it.
    still: Mutex<bool>,
}

impl Engine {
    /// An engine that contains commands in control groups, as in a guest.
    #[must_use]
    pub fn new(children: Children, cgroups: Cgroups, run_as: RunAs) -> Self {
        Self {
            shared: Arc::new(Shared {
                children,
                cgroups: Some(cgroups),
                run_as,
                still: Mutex::default(),
            }),
        }
    }

    /// An engine for a process that is not PID 1: without control groups, as whoever it is.
    #[must_use]
    pub fn ordinary() -> Self {
        Self {
            shared: Arc::new(Shared {
                children: Children::Ordinary,
                cgroups: None,
                run_as: RunAs::Oneself,
                still: Mutex::default(),
            }),
        }
    }

    /// Starts a command. Its frames come out of the receiver; dropping that ends the command.
    pub fn start<S>(&self, spec: ExecSpec, stdin: S) -> mpsc::Receiver<Frame>
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        let (frames, receiver) = mpsc::channel(QUEUE);
        let engine = self.clone();
        tokio::spawn(async move {
            let started = Instant::now();
            let mut exit = match engine.spawn(&spec) {
                Ok(child) => run(child, &spec, stdin, &frames).await,
                Err(message) => ended(ExecEnd::NotStarted, None, Some(message)),
            };
            exit.duration_ms = lazaret_domain::millis(started.elapsed());
            let payload = serde_json::to_vec(&exit).unwrap_or_default();
            // Nobody may be there to read it any more.
            let _ = frames.send(Frame::Exit(payload.into())).await;
        });
        receiver
    }

    fn spawn(&self, spec: &ExecSpec) -> Result<Child, String> {
        let Shared {
            children,
            cgroups,
            run_as,
            still,
        } = &*self.shared;
        let still = still.lock().unwrap_or_else(PoisonError::into_inner);
        if *still {
            return Err("the sandbox is going to sleep".to_owned());
        }
        let containment = match cgroups {
            Some(cgroups) => Containment::Cgroup(
                cgroups
                    .group(spec.limits.processes)
                    .map_err(|error| format!("no control group: {error}"))?,
            ),
            None => Containment::ProcessGroup,
        };
        let child = Child::spawn(spec, *run_as, children, containment);
        drop(still);
        child
    }

    /// Stops all commands where they stand; none is started until [`Self::go_on`].
    ///
    /// # Errors
    /// The kernel refuses or takes too long. All goes on then.
    pub(crate) async fn stand_still(&self) -> io::Result<()> {
        self.set_still(true);
        let Some(cgroups) = &self.shared.cgroups else {
            return Ok(());
        };
        let stopped = cgroups.stop().await;
        if stopped.is_err() {
            let _ = self.go_on();
        }
        stopped
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        if let Some(cgroups) = &self.shared.cgroups {
            cgroups.go_on()?;
        }
        self.set_still(false);
        Ok(())
    }

    /// Ends all commands, also ones that stand still. Returns when none is left.
    ///
    /// # Errors
    /// The kernel refuses or takes too long.
    pub(crate) async fn end_all(&self) -> io::Result<()> {
        match &self.shared.cgroups {
            Some(cgroups) => cgroups.end_all().await,
            None => Ok(()),
        }
    }

    fn set_still(&self, still: bool) {
        *self
            .shared
            .still
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = still;
    }
}

/// Accompanies a command from its start to its end.
async fn run<S>(
    mut child: Child,
    spec: &ExecSpec,
    stdin: S,
    frames: &mpsc::Sender<Frame>,
) -> ExecExit
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let feeder = child
        .stdin
        .take()
        .map(|pipe| tokio::spawn(output::feed(stdin, pipe)));
    let reader = tokio::spawn(output::read(
        child.stdout.take(),
        child.stderr.take(),
        frames.clone(),
    ));

    let end = tokio::select! {
        _ = child.status() => ExecEnd::Exited,
        () = sleep(spec.limits.max_duration.duration()) => ExecEnd::TimedOut,
        () = frames.closed() => ExecEnd::Cancelled,
    };
    if end == ExecEnd::Exited {
        child.containment.settle(SETTLE).await;
    } else {
        ask_to_end(&mut child, spec.limits.kill_grace.duration()).await;
    }
    child.containment.kill(child.pid).await;
    let status = child.status().await;
    if let Some(feeder) = feeder {
        feeder.abort();
    }
    drain(reader, frames).await;
    ended(end, status, None)
}

/// SIGTERM to all of it, and a while to comply.
async fn ask_to_end(child: &mut Child, grace: Duration) {
    child.containment.terminate(child.pid);
    let _ = timeout(grace, async {
        child.status().await;
        child.containment.settle(Duration::MAX).await;
    })
    .await;
}

/// Reads what is still in the pipes. Their writers are dead, so this ends as fast as the reader at
/// the other side takes it.
async fn drain(reader: JoinHandle<()>, frames: &mpsc::Sender<Frame>) {
    let abort = reader.abort_handle();
    tokio::select! {
        _ = reader => {}
        () = frames.closed() => abort.abort(),
    }
}

fn ended(end: ExecEnd, status: Option<WaitStatus>, message: Option<String>) -> ExecExit {
    ExecExit {
        end,
        code: status.and_then(WaitStatus::exit_status),
        signal: status.and_then(WaitStatus::terminating_signal),
        message,
        duration_ms: 0,
        egress_seq: None,
    }
}
