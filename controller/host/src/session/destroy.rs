//! Ending a sandbox from every state, and leaving nothing.

use super::living;
use crate::process::Identity;
use crate::shim::{SHIM, VMM};
use crate::state::{SandboxDir, State, internal};
use crate::vmm::Cage;
use axum::body::Body;
use axum::extract::Request;
use lazaret_api::FENCE_HEADER;
use lazaret_domain::{Denial, DenialCode, Fence, SandboxId};
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long a shim may take to end its sandbox when asked, before it is killed.
const ORDERLY: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a killed process.
const KILLED: Duration = Duration::from_secs(10);

/// Ends and removes a sandbox; one that is not there is success. Returns when nothing is left.
pub(super) async fn destroy(state: State, id: SandboxId, fence: Fence) -> Result<(), Denial> {
    let dir = state.sandbox(&id);
    // Remembered also for one that is not there, so that no older executor makes it again.
    let passed = dir.pass_fence(fence);
    if !dir.exists() {
        // Whoever is making it now comes first.
        let _lock = state.lock().await?;
        if !dir.exists() {
            if passed.is_ok() {
                // Its directory may have been removed from under it.
                end_strays(&dir).await?;
                Cage::left_by(&state.config().cgroup, id.as_str())
                    .open()
                    .await;
            }
            return Ok(());
        }
    }
    passed?;
    if let Some(shim) = living::shim(&dir) {
        end_orderly(&state, &id, fence, &shim).await;
    }
    // With the lock, nobody is making this sandbox or removing it.
    let _lock = state.lock().await?;
    take_away(&state, &id).await
}

/// Ends what still runs of a sandbox and removes all that is left. The caller holds the lock.
pub(super) async fn take_away(state: &State, id: &SandboxId) -> Result<(), Denial> {
    take_away_dir(state, id, &state.sandbox(id)).await
}

/// The same for a directory that is a sandbox's, or a spare's.
pub(super) async fn take_away_dir(
    state: &State,
    id: &SandboxId,
    dir: &SandboxDir,
) -> Result<(), Denial> {
    for role in [SHIM, VMM] {
        if let Some(process) = dir.read::<Identity>(role)
            && !process.kill(KILLED).await
        {
            return Err(Denial::new(
                DenialCode::Internal,
                format!("a process of sandbox {id} could not be ended"),
            ));
        }
    }
    end_strays(dir).await?;
    Cage::left_by(&state.config().cgroup, dir.cage(id).as_str())
        .open()
        .await;
    let leaving = state.passage(id, "old");
    let from = dir.path().to_owned();
    let owner = state.clone();
    let remove = move || {
        remove_by(&from, &leaving)?;
        owner.collect_layers();
        Ok(())
    };
    tokio::task::spawn_blocking(remove)
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(|error| internal("remove the sandbox's directory", &error))
}

/// Kills shim and QEMU of a sandbox that say no more who they are: both work in its directory.
async fn end_strays(dir: &SandboxDir) -> Result<(), Denial> {
    let strays = Identity::working_in(dir.path()).into_iter();
    // Nobody's shell that stands there: shims and what they start have no terminal.
    for stray in strays.filter(|stray| !stray.has_terminal()) {
        tracing::warn!(pid = stray.pid, dir = %dir.path().display(), "a process without a record is killed");
        if !stray.kill(KILLED).await {
            let text = format!("process {} of the sandbox could not be ended", stray.pid);
            return Err(Denial::new(DenialCode::Internal, text));
        }
    }
    Ok(())
}

/// A directory disappears by one rename. What a crash left on the same way goes first.
fn remove_by(from: &Path, leaving: &Path) -> io::Result<()> {
    let absent = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    };
    std::fs::remove_dir_all(leaving).or_else(absent)?;
    std::fs::rename(from, leaving).or_else(absent)?;
    std::fs::remove_dir_all(leaving).or_else(absent)
}

/// Asks the shim to end its sandbox, and waits for the shim itself to end.
async fn end_orderly(state: &State, id: &SandboxId, fence: Fence, shim: &Identity) {
    let request = Request::delete(format!("/v1/sandboxes/{id}"))
        .header(FENCE_HEADER, fence.0)
        .body(Body::empty());
    let Ok(request) = request else { return };
    let asked = async {
        living::ask_shim(state, id, request).await;
        shim.ended_within(ORDERLY).await
    };
    if !tokio::time::timeout(ORDERLY, asked).await.unwrap_or(false) {
        tracing::warn!(sandbox = %id, "the shim did not end when asked and is killed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;

    #[test]
    fn a_directory_leaves_by_a_rename_also_when_a_crash_left_one_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let (from, leaving) = (dir.path().join("s"), dir.path().join(".old-s"));
        for path in [&from, &leaving] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), "").unwrap();
        }
        remove_by(&from, &leaving).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        remove_by(&from, &leaving).unwrap();
    }

    #[tokio::test]
    async fn a_destroy_is_remembered_where_there_was_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().join("s"), HostConfig::default()).unwrap();
        let id = SandboxId::make(jiff::Timestamp::UNIX_EPOCH, 5);
        destroy(state.clone(), id.clone(), Fence(7)).await.unwrap();
        destroy(state.clone(), id.clone(), Fence(6)).await.unwrap();
        let denial = state.sandbox(&id).pass_fence(Fence(6)).unwrap_err();
        assert_eq!(denial.code, DenialCode::StaleFence);
    }
}
