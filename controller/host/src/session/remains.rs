//! What a sandbox without a shim can still be asked: what its commands wrote and how they ended,
//! its console and its egress records. Everything else needs a living sandbox.

use super::living::{dead, not_found, shim};
use crate::process::Identity;
use crate::shim::{
    CONSOLE, EGRESS, EXECS, NOTE, Note, Reading, Recording, SHIM, exit_frame, read_frames,
};
use crate::state::{SandboxDir, State, internal};
use crate::wire::{Answer, json};
use axum::body::Body;
use axum::extract::Query;
use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{Method, Uri};
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::host::{EgressRecords, Exec};
use lazaret_domain::{Denial, DenialCode, ExecId, SandboxId};
use std::io;
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
    if has_come_up(state, &dir).await? {
        let text = "the sandbox is being made";
        return Err(Denial::new(DenialCode::SandboxNotReady, text)
            .retry_after(1)
            .into());
    }
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

/// Whether a sandbox that had no shim has got one by now. One without is being made at this moment,
/// or its maker died; the lock tells. Without this look a sandbox could be written down as dead
/// between its appearance and its shim's.
///
/// # Errors
/// `internal` if the lock cannot be taken.
pub(super) async fn has_come_up(state: &State, dir: &SandboxDir) -> Result<bool, Denial> {
    if dir.read::<Identity>(SHIM).is_some() || !dir.exists() {
        return Ok(false);
    }
    drop(state.lock().await?);
    Ok(shim(dir).is_some())
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
        egress_seq: None,
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
    let whole = whole_frames(frames).chain(futures::stream::once(async move { Ok(end) }));
    Ok(Body::from_stream(whole).into_response())
}

/// The stream without a frame that was cut off: a shim may be killed while it writes one, and what
/// follows it would be taken for its rest.
fn whole_frames(
    stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let state = (Box::pin(stream), BytesMut::new());
    futures::stream::try_unfold(state, |(mut stream, mut buffer)| async move {
        while let Some(bytes) = stream.next().await.transpose()? {
            buffer.extend_from_slice(&bytes);
            let mut whole = BytesMut::new();
            while let Some(frame) = Frame::decode(&mut buffer).map_err(io::Error::other)? {
                whole.extend_from_slice(&frame.encode());
            }
            if !whole.is_empty() {
                return Ok(Some((whole.freeze(), (stream, buffer))));
            }
        }
        Ok(None)
    })
}

fn egress(dir: &SandboxDir, uri: &Uri) -> Result<EgressRecords, Denial> {
    let after: crate::shim::After = query(uri)?;
    Ok(later(dir.read(EGRESS).unwrap_or_default(), after.after))
}

/// As the living log answers: of all that was kept, what follows a number, and how much of that is
/// missing. What was kept says how much is missing from the first number on.
fn later(mut kept: EgressRecords, after: u64) -> EgressRecords {
    kept.dropped = kept.dropped.saturating_sub(after);
    kept.records.retain(|record| record.seq > after);
    kept.records.truncate(ANSWERED);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::shim::{RECORD, STATUS};
    use jiff::Timestamp;
    use lazaret_api::host::EgressRecord;

    fn record(seq: u64) -> EgressRecord {
        EgressRecord {
            seq,
            at: Timestamp::UNIX_EPOCH,
            kind: "dns".into(),
            destination: "a.example".into(),
            port: None,
            allowed: false,
            reason: "no rule".into(),
            count: 1,
            bytes_out: 0,
            bytes_in: 0,
            duration_ms: 0,
        }
    }

    #[test]
    fn what_is_missing_is_counted_from_where_one_asks() {
        // Numbers 1 to 5 were no longer kept.
        let kept = || EgressRecords {
            records: vec![record(6), record(7)],
            dropped: 5,
        };
        for (after, dropped, first) in [
            (0, 5, Some(6)),
            (3, 2, Some(6)),
            (5, 0, Some(6)),
            (6, 0, Some(7)),
            (7, 0, None),
            (u64::MAX, 0, None),
        ] {
            let answer = later(kept(), after);
            let found = answer.records.first().map(|record| record.seq);
            assert_eq!((answer.dropped, found), (dropped, first), "after {after}");
        }
    }

    #[tokio::test]
    async fn a_torn_last_frame_is_left_out() {
        let one = Frame::Stdout(Bytes::from_static(b"one")).encode();
        let two = Frame::Stderr(Bytes::from_static(b"two")).encode();
        let whole = [one.as_ref(), two.as_ref()].concat();
        for torn in 1..two.len() {
            for cut in [1, 5, one.len(), one.len() + 2] {
                let bytes = [whole.as_slice(), &two[..torn]].concat();
                let (a, b) = bytes.split_at(cut);
                let chunks = [Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)].map(Ok);
                let kept: Vec<_> = whole_frames(futures::stream::iter(chunks)).collect().await;
                let kept: Vec<u8> = kept.into_iter().flat_map(Result::unwrap).collect();
                assert_eq!(kept, whole, "torn {torn}, cut {cut}");
            }
        }
    }

    #[tokio::test]
    async fn a_sandbox_in_the_making_is_not_written_down_as_dead() {
        let root = tempfile::tempdir().unwrap();
        let state = State::open(root.path().join("s"), HostConfig::default()).unwrap();
        let id = SandboxId::make(Timestamp::UNIX_EPOCH, 5);
        let dir = state.sandbox(&id);
        let maker = state.lock().await.unwrap();
        crate::state::private_dir(dir.path()).unwrap();
        let spec = serde_json::json!({
            "image": "0".repeat(64), "memory": "512M", "cpus": 1, "disk": "64M", "max_duration": "1h",
            "accel": "tcg", "egress": lazaret_domain::egress::EgressPolicy::default(),
            "git_base_url": "https://git.test/", "boot_deadline": "1m", "boot_tries": 1,
        });
        let record =
            serde_json::json!({"id": id, "spec": spec, "created_at": Timestamp::UNIX_EPOCH});
        dir.write(RECORD, &record).unwrap();
        let asking = tokio::spawn({
            let (state, id) = (state.clone(), id.clone());
            async move {
                let uri = Uri::from_static("/v1/sandboxes/x/console");
                answer(&state, &id, &Method::GET, "console", &uri).await
            }
        });
        // The kernel marks who waits for a lock with an arrow.
        let pid = std::process::id().to_string();
        let waits =
            |line: &str| line.contains("->") && line.split_whitespace().any(|word| word == pid);
        while !std::fs::read_to_string("/proc/locks")
            .unwrap()
            .lines()
            .any(waits)
        {
            tokio::task::yield_now().await;
        }
        // Its shim comes up: this process stands for it.
        dir.write(SHIM, &Identity::own().unwrap()).unwrap();
        drop(maker);
        let denial = asking.await.unwrap().unwrap_err().0;
        assert_eq!(denial.code, DenialCode::SandboxNotReady);
        assert!(!dir.join(STATUS).exists());
    }
}
