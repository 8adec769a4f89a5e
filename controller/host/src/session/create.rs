//! Making a sandbox: everything that can be refused is refused before anything exists; the
//! directory appears whole; a shim that does not come up takes the directory with it.

use super::living::look;
use crate::image;
use crate::process::Identity;
use crate::shim::{RECORD, SHIM};
use crate::state::{Record, SandboxDir, State, internal};
use anyhow::Context;
use jiff::Timestamp;
use lazaret_api::host::{AccelChoice, Sandbox, SandboxSpec};
use lazaret_domain::{ByteSize, Denial, DenialCode, Fence, SandboxId};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// The least memory and disk with which a guest is of use.
const LEAST_MEMORY: ByteSize = ByteSize::mebibytes(128);
const LEAST_DISK: ByteSize = ByteSize::mebibytes(64);
/// How long a shim may take to answer.
const SHIM_DEADLINE: Duration = Duration::from_secs(10);

/// Refuses what this host does not give.
pub(super) fn within_bounds(
    config: &crate::config::HostConfig,
    spec: &SandboxSpec,
) -> Result<(), Denial> {
    let size = |value: ByteSize, least: ByteSize, most: ByteSize, field: &str| {
        if value < least || value > most {
            let text = format!("{field} is from {least} to {most} on this host, not {value}");
            return Err(Denial::new(DenialCode::InvalidSize, text).at(field));
        }
        Ok(())
    };
    size(spec.memory, LEAST_MEMORY, config.max_memory, "memory")?;
    size(spec.disk, LEAST_DISK, config.max_disk, "disk")?;
    if spec.cpus > config.max_cpus {
        let text = format!(
            "a sandbox has at most {} vCPUs on this host",
            config.max_cpus
        );
        return Err(Denial::new(DenialCode::InvalidCpus, text).at("cpus"));
    }
    if !(1..=10).contains(&spec.boot_tries) {
        return Err(
            Denial::new(DenialCode::InvalidRequest, "booting is tried 1 to 10 times")
                .at("boot_tries"),
        );
    }
    // A policy that cannot be applied whole is never applied in part.
    spec.egress.check()
}

/// Makes a sandbox, or finds the one of that id.
pub(super) async fn create(
    state: State,
    id: SandboxId,
    fence: Fence,
    spec: SandboxSpec,
) -> Result<Sandbox, Denial> {
    let dir = state.sandbox(&id);
    if dir.exists() {
        return same(&state, &id, fence, &spec).await;
    }
    // The slow checks come before the lock.
    can_boot(&state, &spec).await?;
    let lock = state.lock().await?;
    if dir.exists() {
        drop(lock);
        return same(&state, &id, fence, &spec).await;
    }
    admit(&state)?;
    let record = Record {
        id: id.clone(),
        spec,
        created_at: Timestamp::now(),
    };
    appear(&state, &record, fence).map_err(|error| {
        let _ = std::fs::remove_dir_all(state.passage(&id, "new"));
        internal("make the sandbox's directory", &error)
    })?;
    if let Err(denial) = start_shim(&state, &id, &dir).await {
        let _ = std::fs::remove_dir_all(dir.path());
        return Err(denial);
    }
    drop(lock);
    look(&state, &id).await
}

/// The sandbox that exists, if it is the one that is asked for.
async fn same(
    state: &State,
    id: &SandboxId,
    fence: Fence,
    spec: &SandboxSpec,
) -> Result<Sandbox, Denial> {
    state.sandbox(id).pass_fence(fence)?;
    let sandbox = look(state, id).await?;
    if sandbox.spec == *spec {
        Ok(sandbox)
    } else {
        Err(Denial::new(
            DenialCode::SpecMismatch,
            format!("sandbox {id} exists with another specification"),
        ))
    }
}

/// Refuses now what would fail later: no image, no QEMU, no accelerator.
async fn can_boot(state: &State, spec: &SandboxSpec) -> Result<(), Denial> {
    crate::vmm::find(&state.config().qemu)?;
    for tool in crate::vmm::TOOLS {
        crate::vmm::find(Path::new(tool))?;
    }
    if spec.accel != AccelChoice::Tcg {
        crate::probe::refuse_if_known_to_fail(state, spec.accel)?;
    }
    let (state, digest) = (state.clone(), spec.image.clone());
    tokio::task::spawn_blocking(move || image::verified(&state, &digest).map(drop))
        .await
        .map_err(|error| internal("verify the image", &error))?
}

/// The caps of this host. The caller holds the lock, so two sessions cannot both take the last
/// place. A sandbox whose shim is dead holds no place.
fn admit(state: &State) -> Result<(), Denial> {
    let fault = |error: std::io::Error| internal("count the sandboxes", &error);
    let alive = state
        .ids()
        .map_err(fault)?
        .iter()
        .filter(|id| super::living::shim(&state.sandbox(id)).is_some())
        .count();
    let most = state.config().max_sandboxes;
    if alive >= usize::try_from(most).unwrap_or(usize::MAX) {
        let text = format!("this host runs at most {most} sandboxes at once");
        return Err(Denial::new(DenialCode::SandboxCap, text).retry_after(30));
    }
    let (free, least) = (
        state.disk_free().map_err(fault)?,
        state.config().min_free_disk,
    );
    if free < least.bytes() {
        let text = format!(
            "only {}M of disk are free on this host; {least} must stay free",
            free >> 20
        );
        return Err(Denial::new(DenialCode::DiskFull, text).retry_after(60));
    }
    Ok(())
}

/// The directory appears by one rename.
fn appear(state: &State, record: &Record, fence: Fence) -> std::io::Result<()> {
    let making = state.passage(&record.id, "new");
    crate::state::private_dir(&making)?;
    let dir = SandboxDir::at(making.clone());
    dir.write(RECORD, record)?;
    dir.pass_fence(fence).map_err(std::io::Error::other)?;
    std::fs::rename(making, state.sandbox(&record.id).path())
}

/// Starts the shim and waits until it answers. It inherits nothing, and nobody waits for its end.
async fn start_shim(state: &State, id: &SandboxId, dir: &SandboxDir) -> Result<(), Denial> {
    let fault = |error: anyhow::Error| {
        Denial::new(
            DenialCode::Internal,
            format!("the shim did not start: {error:#}"),
        )
    };
    let mut shim = spawn_shim(state, id, dir).map_err(fault)?;
    let answering = async {
        while tokio::net::UnixStream::connect(dir.shim_socket())
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let outcome = tokio::select! {
        () = answering => return Ok(()),
        status = shim.wait() => format!("it ended at once ({})", crate::vmm::describe(status)),
        () = tokio::time::sleep(SHIM_DEADLINE) => format!("it did not answer within {SHIM_DEADLINE:?}"),
    };
    let _ = shim.kill().await;
    if let Some(identity) = dir.read::<Identity>(SHIM) {
        identity.kill(SHIM_DEADLINE).await;
    }
    let log = std::fs::read_to_string(dir.join("shim.log")).unwrap_or_default();
    let last = log.lines().last().unwrap_or_default();
    Err(fault(anyhow::anyhow!("{outcome}: {last}")))
}

fn spawn_shim(state: &State, id: &SandboxId, dir: &SandboxDir) -> anyhow::Result<Child> {
    let log = crate::state::private_file(&dir.join("shim.log"))?;
    // The running program itself, even if its file has been replaced or removed since.
    Command::new("/proc/self/exe")
        .arg0("lazaret")
        .args(["host", "shim", "--state"])
        .arg(state.root())
        .args(["--id", id.as_str()])
        .current_dir("/")
        .env_remove("SSH_ORIGINAL_COMMAND")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("start the shim's process")
}
