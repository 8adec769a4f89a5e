//! The shim: one process that owns one sandbox.
//!
//! ```text
//!            ┌────────────── shim ──────────────┐
//!  session ──┤ api ──asks──► driver ── owns ──► │ QEMU
//!            │  │              │   console      │
//!            │  ├──► execs ──► guest (control) ─┼─► guest agent
//!            │  └──► egress ◄─ gateway ─────────┼─► network card
//!            └───────────────────────────────────┘
//! ```
//!
//! One task, the [`driver`], changes the sandbox; everybody else asks it or watches what it
//! published. The shim is started by a session and outlives it. It ends when its sandbox has:
//! status, console, egress records and command output then lie in the sandbox's directory until the
//! sandbox is destroyed. Killed, it takes QEMU along, because QEMU dies with the thread that
//! started it.

mod activity;
mod api;
mod driver;
mod execs;
mod guest;
mod log;
mod recording;
mod spare;
mod waiting;

pub(crate) use api::{After, Reading, read_frames};
pub(crate) use driver::{Moment, ORIGIN, ORIGIN_MEMORY, SNAPSHOT, SNAPSHOT_MEMORY, newborn};
pub(crate) use execs::{NOTE, Note};
pub(crate) use log::Bounded;
pub(crate) use recording::{Recording, exit_frame};
pub use spare::run as run_spare;
pub(crate) use spare::{KEY, OFFER, claim};
pub(crate) use waiting::{log_in_its_place, wait_for_sandbox};

use crate::gateway::EgressLog;
use crate::process::Identity;
use crate::state::{CAGE, LAYERS, Record, SandboxDir, State};
use crate::vmm::Console;
use activity::Activity;
use anyhow::Context;
use driver::{Asks, Begun, Driver};
use lazaret_api::host::{EgressRecords, Sandbox};
use lazaret_domain::SandboxId;
use lazaret_domain::sandbox::SandboxState;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The files of a sandbox that shims write and sessions read.
pub(crate) const RECORD: &str = "record.json";
pub(crate) const SHIM: &str = "shim.json";
pub(crate) const VMM: &str = "vmm.json";
pub(crate) const STATUS: &str = "status.json";
pub(crate) const CONSOLE: &str = "console.txt";
pub(crate) const EGRESS: &str = "egress.json";
pub(crate) const EXECS: &str = "execs";
pub(crate) const LOG: &str = "shim.log";

/// What of a sandbox's directory stays when the sandbox has ended, to be asked for.
const KEPT: [&str; 8] = [RECORD, SHIM, STATUS, CONSOLE, EGRESS, EXECS, LOG, CAGE];

/// What a shim says on its standard output once it can be reached.
pub(crate) const READY: &[u8] = b"ready\n";

/// How long answers in flight may take once the sandbox has ended.
const FAREWELL: Duration = Duration::from_secs(3);

/// Owns a sandbox from its making to its end.
///
/// # Errors
/// If its directory is not as a session makes it. What happens to the sandbox is no error.
pub async fn run(state: State, id: SandboxId) -> anyhow::Result<()> {
    alone();
    let dir = state.sandbox(&id);
    let record: Record = dir.read(RECORD).context("the sandbox has no record")?;
    own(state, dir, record, None, || {
        // Its session has gone if this fails; the sandbox is found by its id.
        let _ = say_ready();
    })
    .await
}

/// Tells the session on standard output that this shim can be reached, or this spare be claimed.
fn say_ready() -> std::io::Result<()> {
    std::io::stdout().write_all(READY)
}

/// A session of its own, so that no signal to the starter's group arrives here, and files that nobody
/// else may read.
fn alone() {
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// Owns a sandbox, which may have begun as a spare. `answers` is called once its socket does.
async fn own(
    state: State,
    dir: SandboxDir,
    record: Record,
    begun: Option<Begun>,
    answers: impl FnOnce(),
) -> anyhow::Result<()> {
    let id = record.id.clone();
    // So that it is found by its directory, whatever becomes of what it writes down there.
    std::env::set_current_dir(dir.path()).context("enter the sandbox's directory")?;
    crate::state::private_dir(&dir.join(EXECS)).context("make the directory of commands")?;
    dir.write(SHIM, &Identity::own()?)
        .context("write who the shim is")?;

    let (published, status) = watch::channel(newborn(&record));
    dir.write(STATUS, &*status.borrow())
        .context("write the status")?;
    let console = match &begun {
        Some(begun) => begun.console.clone(),
        None => console_of(&state),
    };
    let egress = EgressLog::default();
    let execs = execs::Execs::new(dir.join(EXECS), egress.clone());
    let (asks, asked) = Asks::channel();
    let activity = Activity::default();
    let (guest, guest_seen) = watch::channel(None);
    let api = api::Shim {
        id: id.clone(),
        dir: dir.clone(),
        status: status.clone(),
        guest: guest_seen,
        console: console.clone(),
        execs: execs.clone(),
        egress: egress.clone(),
        asks,
        activity: activity.clone(),
        transfers: Arc::new(Semaphore::new(api::TRANSFERS)),
    };
    let listener = UnixListener::bind(dir.shim_socket()).context("listen on the shim's socket")?;
    let (closing, connections) = (CancellationToken::new(), TaskTracker::new());
    let server = tokio::spawn(accept(
        listener,
        api.router(),
        closing.clone(),
        connections.clone(),
    ));

    answers();

    let driver = Driver {
        state: state.clone(),
        dir: dir.clone(),
        record,
        published,
        console: console.clone(),
        guest,
        egress: egress.clone(),
        activity,
        layers: AtomicU32::new(0),
    };
    let gone = driver.run(asked, begun).await;
    execs.end_all().await;
    keep(&dir, &gone.sandbox, &console, &egress);
    state.collect_layers();
    gone.announce();

    closing.cancel();
    let _ = server.await;
    connections.close();
    let _ = tokio::time::timeout(FAREWELL, connections.wait()).await;
    Ok(())
}

fn console_of(state: &State) -> Console {
    let config = state.config();
    Console::new(
        config.console_budget.bytes(),
        config.console_window.duration(),
    )
}

/// Leaves behind what is asked for after the end.
fn keep(dir: &SandboxDir, sandbox: &Sandbox, console: &Console, egress: &EgressLog) {
    let kept = crate::state::replace(&dir.join(CONSOLE), console.text().as_bytes())
        .and_then(|()| dir.write(EGRESS, &all_egress(egress)))
        .and_then(|()| dir.write(STATUS, sandbox));
    if let Err(error) = kept {
        tracing::error!(%error, "the end of the sandbox could not be written down");
    }
    leave_what_is_asked_for(dir);
}

/// Removes what of a sandbox's directory nobody asks for once the sandbox has ended.
pub(crate) fn leave_what_is_asked_for(dir: &SandboxDir) {
    let entries = std::fs::read_dir(dir.path())
        .into_iter()
        .flatten()
        .flatten();
    for entry in entries {
        let name = entry.file_name();
        let kept = KEPT.iter().any(|kept| name == *kept);
        if name == LAYERS {
            let _ = std::fs::remove_dir_all(entry.path());
        } else if !kept {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// All records that are still known; the log gives them in pages.
fn all_egress(egress: &EgressLog) -> EgressRecords {
    let mut all = egress.after(0);
    while let Some(last) = all.records.last().map(|record| record.seq) {
        let page = egress.after(last).records;
        if page.is_empty() {
            break;
        }
        all.records.extend(page);
    }
    all
}

async fn accept(
    listener: UnixListener,
    router: axum::Router,
    closing: CancellationToken,
    connections: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let serve = crate::pipe::serve(stream, router.clone());
                connections.spawn(async move {
                    if let Err(error) = serve.await {
                        tracing::debug!(%error, "a session's connection ended");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others will be closed.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Whether a sandbox is on its way up.
pub(crate) fn is_forking(sandbox: &Sandbox) -> bool {
    sandbox.state == SandboxState::Forking
}
