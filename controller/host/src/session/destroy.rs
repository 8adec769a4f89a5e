//! Ending a sandbox from every state, and leaving nothing.

use super::living;
use crate::process::Identity;
use crate::shim::{SHIM, VMM};
use crate::state::{State, internal};
use crate::vmm::Cage;
use axum::body::Body;
use axum::extract::Request;
use lazaret_api::FENCE_HEADER;
use lazaret_domain::{Denial, DenialCode, Fence, SandboxId};
use std::time::Duration;

/// How long a shim may take to end its sandbox when asked, before it is killed.
const ORDERLY: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a killed process.
const KILLED: Duration = Duration::from_secs(10);

/// Ends and removes a sandbox; one that is not there is success. Returns when nothing is left.
pub(super) async fn destroy(state: State, id: SandboxId, fence: Fence) -> Result<(), Denial> {
    let dir = state.sandbox(&id);
    if !dir.exists() {
        return Ok(());
    }
    dir.pass_fence(fence)
        .or_else(|denial| if dir.exists() { Err(denial) } else { Ok(()) })?;
    if let Some(shim) = living::shim(&dir) {
        end_orderly(&state, &id, fence, &shim).await;
    }
    // With the lock, nobody is making this sandbox or removing it.
    let lock = state.lock().await?;
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
    Cage::left_by(&state.config().cgroup, id.as_str())
        .open()
        .await;
    let leaving = state.passage(&id, "old");
    match std::fs::rename(dir.path(), &leaving) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        renamed => {
            renamed.map_err(|error| internal("take the sandbox's directory away", &error))?;
        }
    }
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(leaving)).await;
    drop(lock);
    match removed {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(internal("remove the sandbox's directory", &error)),
        Err(error) => Err(internal("remove the sandbox's directory", &error)),
    }
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
