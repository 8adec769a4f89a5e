//! Copies of a sandbox: its shim writes down what it is at one moment, and the session makes sandboxes
//! that start from that. Either all are made or none.

use super::create::make;
use super::destroy::take_away;
use super::living::{ask_shim, look, not_found};
use super::shims::Shims;
use crate::shim::{Moment, ORIGIN, ORIGIN_MEMORY, RECORD, SNAPSHOT, SNAPSHOT_MEMORY};
use crate::state::{Record, SandboxDir, State, internal, private_file};
use crate::wire::denial_of;
use axum::body::Body;
use axum::extract::Request;
use lazaret_api::FENCE_HEADER;
use lazaret_api::host::{Copied, CopyInto, MAX_COPIES, SandboxSpec};
use lazaret_domain::{Denial, DenialCode, Fence, SandboxId};
use std::collections::BTreeSet;
use std::fs::{File, hard_link};
use std::io;

/// Held while copies are made of a sandbox: what it was at one moment is there once.
const TURN: &str = "copies.lock";

/// Makes the copies that are not there.
pub(super) async fn copies(
    state: State,
    shims: Shims,
    source: SandboxId,
    fence: Fence,
    wanted: CopyInto,
) -> Result<Copied, Denial> {
    in_form(&source, &wanted.copies)?;
    let dir = state.sandbox(&source);
    let record: Record = dir.read(RECORD).ok_or_else(|| not_found(&source))?;
    let spec = record.spec.copied(&source);
    let _turn = turn(&dir).await?;
    let mut missing = Vec::new();
    for id in &wanted.copies {
        match state.sandbox(id).read::<Record>(RECORD) {
            Some(there) if there.spec == spec => {}
            Some(_) => {
                let text = format!("sandbox {id} exists and is no copy of {source}");
                return Err(Denial::new(DenialCode::SpecMismatch, text));
            }
            None => missing.push(id.clone()),
        }
    }
    let mut pause_ms = None;
    if !missing.is_empty() {
        // Refused before the source is disturbed.
        state.has_places(missing.len(), &state.lock().await?)?;
        let outcome = match write_down(&state, &source, fence).await {
            Ok(moment) => {
                pause_ms = Some(moment.pause_ms);
                all(&state, &shims, &dir, fence, &spec, &missing).await
            }
            Err(denial) => Err(denial),
        };
        for file in [SNAPSHOT, SNAPSHOT_MEMORY] {
            let _ = std::fs::remove_file(dir.join(file));
        }
        outcome?;
    }
    let looks = wanted.copies.iter().map(|id| look(&state, id));
    Ok(Copied {
        copies: futures::future::try_join_all(looks).await?,
        pause_ms,
    })
}

fn in_form(source: &SandboxId, copies: &[SandboxId]) -> Result<(), Denial> {
    let different: BTreeSet<_> = copies.iter().collect();
    if !(1..=MAX_COPIES).contains(&copies.len())
        || different.len() != copies.len()
        || different.contains(source)
    {
        let text = format!("1 to {MAX_COPIES} copies with different ids are made at once");
        return Err(Denial::new(DenialCode::InvalidRequest, text).at("copies"));
    }
    Ok(())
}

async fn turn(dir: &SandboxDir) -> Result<File, Denial> {
    let path = dir.join(TURN);
    let taken = tokio::task::spawn_blocking(move || {
        let file = private_file(&path)?;
        file.lock()?;
        io::Result::Ok(file)
    });
    let fault = |error: &dyn std::error::Error| internal("wait for other copies", error);
    taken
        .await
        .map_err(|error| fault(&error))?
        .map_err(|error| fault(&error))
}

/// Has the shim write down what the sandbox is.
async fn write_down(state: &State, source: &SandboxId, fence: Fence) -> Result<Moment, Denial> {
    let request = Request::post(format!("/v1/sandboxes/{source}/snapshot"))
        .header(FENCE_HEADER, fence.0)
        .body(Body::empty())
        .map_err(|error| internal("ask a shim", &error))?;
    let gone = || Denial::new(DenialCode::SandboxGone, "the sandbox has ended");
    let answer = ask_shim(state, source, request).await.ok_or_else(gone)?;
    if !answer.status().is_success() {
        return Err(denial_of(answer).await);
    }
    state.sandbox(source).read(SNAPSHOT).ok_or_else(gone)
}

/// Makes all of them, or none.
async fn all(
    state: &State,
    shims: &Shims,
    source: &SandboxDir,
    fence: Fence,
    spec: &SandboxSpec,
    missing: &[SandboxId],
) -> Result<(), Denial> {
    let mut made = Vec::new();
    let lock = state.lock().await?;
    for id in missing {
        let fill = |copy: &SandboxDir| {
            hard_link(source.join(SNAPSHOT), copy.join(ORIGIN))?;
            hard_link(source.join(SNAPSHOT_MEMORY), copy.join(ORIGIN_MEMORY))?;
            copy.share_layers(source)
        };
        let outcome = make(state, shims, id, fence, spec.clone(), &lock, fill).await;
        if let Err(denial) = outcome {
            for id in &made {
                if let Err(denial) = take_away(state, id).await {
                    tracing::error!(sandbox = %id, %denial, "a copy was left behind");
                }
            }
            return Err(denial);
        }
        made.push(id.clone());
    }
    Ok(())
}
