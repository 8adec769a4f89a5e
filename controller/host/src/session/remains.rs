//! What a sandbox without a shim can still be asked: what its commands wrote and how they ended,
//! its console and its egress records. Everything else needs a living sandbox.

use super::living::{dead, not_found};
use crate::shim::{
    CONSOLE, EGRESS, EXECS, NOTE, Note, Reading, Recording, exit_frame, read_frames,
};
use crate::state::{SandboxDir, State, internal};
use crate::wire::{Answer, json};
use axum::body::Body;
use axum::extract::Query;
use axum::response::IntoResponse;
use futures::StreamExt;
use http::{Method, Uri};
use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::host::{EgressRecords, Exec};
use lazaret_domain::{Denial, DenialCode, ExecId, SandboxId};
use std::sync::Arc;

/// Egress records in one answer.
const ANSWERED: usize = 1000;

/// Answers from the sandbox's directory.
pub(super) async fn answer(
    state: &State,
    id: &SandboxId,
    method: &Method,
    rest: &str,
    uri: &Uri,
) -> Answer {
    let dir = state.sandbox(id);
    let sandbox = dead(&dir).ok_or_else(|| not_found(id))?;
    let words: Vec<&str> = rest.split('/').collect();
    match (method, words.as_slice()) {
        (&Method::GET, ["execs", exec]) => json(&exec_left(&dir, exec)?),
        // It cannot run any more, which is what was asked for.
        (&Method::DELETE, ["execs", exec]) => {
            exec_left(&dir, exec)?;
            Ok(http::StatusCode::NO_CONTENT.into_response())
        }
        (&Method::GET, ["execs", exec, "output"]) => output(&dir, exec, uri),
        (&Method::GET, ["console"]) => Ok(std::fs::read(dir.join(CONSOLE))
            .unwrap_or_default()
            .into_response()),
        (&Method::GET, ["egress"]) => json(&egress(&dir, uri)?),
        _ => {
            let cause = sandbox
                .end
                .map_or("it has ended", |end| end.cause.sentence());
            Err(Denial::new(
                DenialCode::SandboxGone,
                format!("the sandbox is gone: {cause}"),
            )
            .into())
        }
    }
}

fn query<T: serde::de::DeserializeOwned>(uri: &Uri) -> Result<T, Denial> {
    Query::try_from_uri(uri)
        .map(|Query(query)| query)
        .map_err(|error| Denial::new(DenialCode::InvalidRequest, error.body_text()))
}

/// A command that was left behind; one without an end was ended by the end of its sandbox.
fn exec_left(dir: &SandboxDir, exec: &str) -> Result<Exec, Denial> {
    let id: ExecId = exec.parse()?;
    let note: Note = dir.read(&format!("{EXECS}/{id}/{NOTE}")).ok_or_else(|| {
        Denial::new(
            DenialCode::ExecNotFound,
            format!("no exec {id} in this sandbox"),
        )
    })?;
    let mut exec = note.exec;
    exec.exit.get_or_insert_with(|| ExecExit {
        end: ExecEnd::SandboxEnded,
        code: None,
        signal: None,
        message: Some("the sandbox ended".into()),
        duration_ms: 0,
    });
    Ok(exec)
}

fn output(dir: &SandboxDir, exec: &str, uri: &Uri) -> Answer {
    let reading: Reading = query(uri)?;
    let exec = exec_left(dir, exec)?;
    let recording = Recording::left_in(dir.join(EXECS).join(exec.id.as_str()))
        .map_err(|error| internal("read a command's output", &error))?;
    // If the recording has an exit frame, a reader has stopped before this one.
    let end = exec.exit.as_ref().map(exit_frame).unwrap_or_default();
    let frames = read_frames(
        Arc::new(recording),
        Reading {
            follow: false,
            ..reading
        },
    );
    Ok(
        Body::from_stream(frames.chain(futures::stream::once(async move { Ok(end) })))
            .into_response(),
    )
}

fn egress(dir: &SandboxDir, uri: &Uri) -> Result<EgressRecords, Denial> {
    let after: crate::shim::After = query(uri)?;
    let mut kept: EgressRecords = dir.read(EGRESS).unwrap_or_default();
    kept.records.retain(|record| record.seq > after.after);
    kept.records.truncate(ANSWERED);
    Ok(kept)
}
