//! Starting shims.
//!
//! Most of the time until a shim answers, its program is being loaded. So a session keeps one process
//! that has been loaded and waits to be told on its standard input whose shim it is. It holds nothing,
//! belongs to no sandbox, and ends when the session does: its standard input is closed then.

use crate::shim::{LOG, READY};
use crate::state::{SandboxDir, State};
use anyhow::{Context, ensure};
use lazaret_domain::{Denial, DenialCode, SandboxId};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a shim may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Where a session gets its shims from. Cheap to clone; all clones share the one that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Shims {
    waiting: Arc<Mutex<Option<Child>>>,
}

impl Shims {
    /// Has a process wait for the next sandbox, if none does. That it cannot be started is no harm:
    /// the next shim is started when it is needed, and says why then.
    pub(super) async fn prepare(&self, state: &State) {
        let mut waiting = self.waiting.lock().await;
        let waits = waiting
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !waits {
            *waiting = command(state)
                .arg("--waiting")
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .inspect_err(|error| tracing::warn!(%error, "no shim could be started ahead"))
                .ok();
        }
    }

    /// Starts the shim of a sandbox and waits until it answers. It inherits nothing, and nobody waits
    /// for its end.
    pub(super) async fn start(
        &self,
        state: &State,
        id: &SandboxId,
        dir: &SandboxDir,
    ) -> Result<(), Denial> {
        let fault = |error: anyhow::Error| {
            Denial::new(
                DenialCode::Internal,
                format!("the shim did not start: {error:#}"),
            )
        };
        if let Some(shim) = self.tell_waiting(id).await {
            match answers(shim, dir).await {
                Ok(()) => return Ok(()),
                // One that is started anew can say why, and may fare better.
                Err(error) => {
                    tracing::warn!(sandbox = %id, %error, "the shim that waited is of no use");
                }
            }
        }
        let _ = std::fs::remove_file(dir.shim_socket());
        let shim = shim_command(state, id, dir)
            .and_then(|mut command| command.spawn())
            .context("start the shim's process")
            .map_err(fault)?;
        answers(shim, dir).await.map_err(fault)
    }

    /// The process that waited, told whose shim it is. One that has died meanwhile is forgotten.
    async fn tell_waiting(&self, id: &SandboxId) -> Option<Child> {
        let mut shim = self.waiting.lock().await.take()?;
        let mut input = shim.stdin.take()?;
        input.write_all(format!("{id}\n").as_bytes()).await.ok()?;
        Some(shim)
    }
}

/// Waits until a shim answers. One that does not is ended.
async fn answers(mut shim: Child, dir: &SandboxDir) -> anyhow::Result<()> {
    let outcome = match timeout(DEADLINE, ready(&mut shim)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(_)) => "it ended at once".to_owned(),
        Err(_) => format!("it did not answer within {DEADLINE:?}"),
    };
    // One that has ended by itself keeps the status that it ended with.
    let _ = shim.start_kill();
    let status = crate::vmm::describe(shim.wait().await);
    let log = std::fs::read_to_string(dir.join(LOG)).unwrap_or_default();
    let last = log.lines().last().unwrap_or_default();
    anyhow::bail!("{outcome} ({status}): {last}")
}

/// Waits until a process of [`shim_command`], with its standard output piped, says that it is there
/// for whoever asks.
pub(super) async fn ready(shim: &mut Child) -> anyhow::Result<()> {
    let says = shim.stdout.take().context("its standard output")?;
    let mut said = Vec::new();
    says.take(READY.len() as u64).read_to_end(&mut said).await?;
    ensure!(said == READY, "it ended before it was ready; see the log");
    Ok(())
}

/// The process of a shim, whose log is in its directory.
pub(super) fn shim_command(
    state: &State,
    id: &SandboxId,
    dir: &SandboxDir,
) -> std::io::Result<Command> {
    let log = crate::state::private_file(&dir.join(LOG))?;
    let mut command = command(state);
    command
        .args(["--id", id.as_str()])
        .stdin(Stdio::null())
        .stderr(log);
    Ok(command)
}

fn command(state: &State) -> Command {
    // The running program itself, even if its file has been replaced or removed since.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("lazaret")
        .args(["host", "shim", "--state"])
        .arg(state.root())
        .current_dir("/")
        .env_remove("SSH_ORIGINAL_COMMAND")
        .stdout(Stdio::piped());
    command
}
