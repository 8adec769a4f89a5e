//! Sandboxes as they are: from their shim while it lives, else from what it wrote down.

use crate::process::Identity;
use crate::shim::{RECORD, SHIM, STATUS, VMM, leave_what_is_asked_for};
use crate::state::{Record, SandboxDir, State, StateLock};
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use lazaret_api::host::{End, Sandbox};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{Denial, DenialCode, SandboxId};
use std::time::Duration;

/// How long a shim that answers no more may take to be gone.
const PASSING: Duration = Duration::from_secs(5);
/// The longest answer about a sandbox.
const STATUS_SIZE: usize = 1 << 20;

/// A sandbox that is not here.
pub(super) fn not_found(id: &SandboxId) -> Denial {
    Denial::new(
        DenialCode::SandboxNotFound,
        format!("no sandbox {id} on this host"),
    )
}

/// Whether the sandbox's shim lives.
pub(super) fn shim(dir: &SandboxDir) -> Option<Identity> {
    dir.read::<Identity>(SHIM).filter(Identity::is_alive)
}

/// Passes a request on to the sandbox's shim. Nothing if there is no shim that could answer; it is
/// dead then, not only slow.
pub(super) async fn ask_shim(state: &State, id: &SandboxId, request: Request) -> Option<Response> {
    let dir = state.sandbox(id);
    let shim = shim(&dir)?;
    let answer = match crate::pipe::ask_socket(&dir.shim_socket()).await {
        Ok(mut sender) => sender.send_request(addressed(request)).await.ok(),
        Err(_) => None,
    };
    match answer {
        Some(answer) => Some(answer.map(Body::new).into_response()),
        None if shim.ended_within(PASSING).await => None,
        None => {
            let denial = Denial::new(DenialCode::HostBusy, "the sandbox's shim does not answer")
                .retry_after(1);
            Some(crate::wire::Refused(denial).into_response())
        }
    }
}

/// The same request with an authority, which a client has to name.
fn addressed(request: Request) -> Request {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = format!("http://shim{path}").parse() {
        parts.uri = uri;
    }
    parts.version = http::Version::HTTP_2;
    Request::from_parts(parts, body)
}

/// A sandbox as it is now.
pub(super) async fn look(state: &State, id: &SandboxId) -> Result<Sandbox, Denial> {
    let request = Request::get(format!("/v1/sandboxes/{id}"))
        .body(Body::empty())
        .map_err(|error| crate::state::internal("ask a shim", &error))?;
    // A shim that hangs must not hide the others: then what it last wrote down is told.
    let asked = tokio::time::timeout(PASSING, ask_shim(state, id, request)).await;
    if asked.is_err()
        && let Some(known) = state.sandbox(id).read::<Sandbox>(STATUS)
    {
        return Ok(known);
    }
    if let Ok(Some(answer)) = asked {
        let bytes = crate::wire::read_bytes(answer.into_body(), STATUS_SIZE).await?;
        return serde_json::from_slice(&bytes)
            .map_err(|error| crate::state::internal("read a shim's answer", &error));
    }
    let dir = state.sandbox(id);
    if super::remains::has_come_up(state, &dir).await? {
        return Box::pin(look(state, id)).await;
    }
    dead(&dir).ok_or_else(|| not_found(id))
}

/// Removes what sandboxes whose shim was killed left of memory and disk. What they were, and said, stays.
pub(super) fn sweep(state: &State, _lock: &StateLock) {
    for id in state.ids().unwrap_or_default() {
        let dir = state.sandbox(&id);
        let qemu = dir.read::<Identity>(VMM).filter(Identity::is_alive);
        if shim(&dir).is_none()
            && qemu.is_none()
            // Records may be lost and programs renamed; what works there is alive all the same.
            && Identity::working_in(dir.path()).is_empty()
            && dead(&dir).is_some()
        {
            leave_what_is_asked_for(&dir);
        }
    }
    state.collect_layers();
}

/// A sandbox without a shim, from what was written down. One that had not ended by then ended with
/// its shim, and that is written down now.
pub(super) fn dead(dir: &SandboxDir) -> Option<Sandbox> {
    let known = dir.read::<Sandbox>(STATUS);
    let mut sandbox = match known {
        Some(sandbox) => sandbox,
        None => crate::shim::newborn(&dir.read::<Record>(RECORD)?),
    };
    if sandbox.state != SandboxState::Gone {
        let restarted = dir
            .read::<Identity>(SHIM)
            .is_some_and(|shim| !shim.is_of_this_boot());
        let (cause, detail) = if restarted {
            (EndCause::HostRestarted, "the host has restarted since")
        } else {
            (EndCause::ShimDied, "the shim was killed, and QEMU with it")
        };
        sandbox.state = SandboxState::Gone;
        sandbox.end = Some(End {
            cause,
            detail: detail.into(),
            at: Timestamp::now(),
        });
        if let Err(error) = dir.write(STATUS, &sandbox) {
            tracing::warn!(%error, "the end of a sandbox could not be written down");
        }
    }
    Some(sandbox)
}
