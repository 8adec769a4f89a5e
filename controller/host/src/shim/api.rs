//! What a shim answers: the part of the host API that is about its sandbox.

mod files;

use super::activity::{Activity, Going};
use super::driver::{Asks, What};
use super::execs::Execs;
use super::guest::Guest;
use super::recording::{Recording, exit_frame};
use crate::gateway::EgressLog;
use crate::state::SandboxDir;
use crate::vmm::Console;
use crate::wire::{Answer, fence, json, known_protocol, read};
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, StatusCode};
use lazaret_api::guest::ExecExit;
use lazaret_api::host::{ExecRequest, Keep, Sandbox, WakeFrom};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, ExecId, SandboxId};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The longest wait for a sandbox to settle.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// File calls at once.
pub(super) const TRANSFERS: usize = 8;
/// The largest exec request: its specification, its input in base64 and some room.
const REQUEST: usize = 4 << 20;

/// What the handlers need. Nothing in here changes the sandbox.
#[derive(Clone)]
pub(crate) struct Shim {
    pub id: SandboxId,
    pub dir: SandboxDir,
    pub status: watch::Receiver<Sandbox>,
    pub guest: watch::Receiver<Option<Guest>>,
    pub console: Console,
    pub execs: Execs,
    pub egress: EgressLog,
    pub asks: Asks,
    pub activity: Activity,
    /// Places for file calls: with those and all commands running, the guest still has room on its
    /// connection for the question how it is.
    pub transfers: Arc<Semaphore>,
}

impl Shim {
    /// The routes below this sandbox's own path; everything else is not here.
    pub(crate) fn router(self) -> axum::Router {
        let routes = axum::Router::new()
            .route("/", get(inspect).delete(destroy))
            .route("/sleep", post(sleep))
            .route("/wake", post(wake))
            .route("/keep", put(keep))
            .route("/snapshot", post(snapshot))
            .route(
                "/execs/{exec}",
                put(start_exec).get(show_exec).delete(cancel_exec),
            )
            .route("/execs/{exec}/output", get(output))
            .route("/list", get(files::to_guest))
            .route("/files", get(files::to_guest).put(files::to_guest))
            .route("/console", get(console))
            .route("/egress", get(egress));
        let own = format!("/v1/sandboxes/{}", self.id);
        axum::Router::new()
            .nest(&own, routes)
            .with_state(Arc::new(self))
    }

    /// The guest, if the sandbox is ready, and what keeps it awake meanwhile.
    fn ready_guest(&self) -> Result<(Guest, Going), Denial> {
        let refused = match self.activity.begin() {
            // Nothing begins before there is a guest, or after there was one.
            Ok(going) => match self.guest.borrow().clone() {
                Some(guest) => return Ok((guest, going)),
                None => Denial::new(DenialCode::SandboxGone, "the sandbox is being ended"),
            },
            Err(denial) => denial,
        };
        Err(match self.status.borrow().state {
            SandboxState::Gone => Denial::new(DenialCode::SandboxGone, "the sandbox is gone"),
            SandboxState::Asleep => Denial::new(
                DenialCode::SandboxAsleep,
                "the sandbox sleeps; wake it first",
            ),
            SandboxState::Forking | SandboxState::Ready => refused,
        })
    }

    /// Has its driver do something, and shows what came of it.
    async fn order(&self, headers: &HeaderMap, what: What) -> Answer {
        self.dir.pass_fence(fence(headers)?)?;
        self.asks.order(what).await?;
        json(&*self.status.borrow())
    }
}

type Owner = State<Arc<Shim>>;

/// How an inspection may wait.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    until: Option<Until>,
    #[serde(default)]
    wait_ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Until {
    Settled,
}

fn query<T>(
    parsed: Result<Query<T>, axum::extract::rejection::QueryRejection>,
) -> Result<T, Denial> {
    parsed
        .map(|Query(query)| query)
        .map_err(|error| Denial::new(DenialCode::InvalidRequest, error.body_text()))
}

fn exec_id(text: &str) -> Result<ExecId, Denial> {
    text.parse()
}

async fn inspect(
    State(shim): Owner,
    headers: HeaderMap,
    wait: Result<Query<Wait>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    known_protocol(&headers)?;
    let wait = query(wait)?;
    let mut status = shim.status.clone();
    if let Some(Until::Settled) = wait.until {
        let limit = Duration::from_millis(wait.wait_ms).min(LONGEST_WAIT);
        let _ = tokio::time::timeout(
            limit,
            status.wait_for(|sandbox| !super::is_forking(sandbox)),
        )
        .await;
    }
    let sandbox = status.borrow().clone();
    json(&sandbox)
}

async fn destroy(State(shim): Owner, headers: HeaderMap) -> Answer {
    shim.dir.pass_fence(fence(&headers)?)?;
    let mut status = shim.status.clone();
    shim.asks.end();
    let _ = status
        .wait_for(|sandbox| sandbox.state == SandboxState::Gone)
        .await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn sleep(State(shim): Owner, headers: HeaderMap) -> Answer {
    shim.order(&headers, What::Sleep).await
}

/// What to wake from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wake {
    #[serde(default)]
    from: WakeFrom,
}

async fn wake(
    State(shim): Owner,
    headers: HeaderMap,
    wake: Result<Query<Wake>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    shim.order(&headers, What::Wake(query(wake)?.from)).await
}

/// For the session, which makes the copies.
async fn snapshot(State(shim): Owner, headers: HeaderMap) -> Answer {
    shim.order(&headers, What::Snapshot).await
}

async fn keep(State(shim): Owner, headers: HeaderMap, body: Body) -> Answer {
    let Keep { keep } = read(body, REQUEST).await?;
    shim.order(&headers, What::Keep(keep)).await
}

async fn start_exec(
    State(shim): Owner,
    Path(exec): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let exec = exec_id(&exec)?;
    shim.dir.pass_fence(fence(&headers)?)?;
    let request: ExecRequest = read(body, REQUEST).await?;
    let (guest, going) = shim.ready_guest()?;
    json(&shim.execs.start(&exec, &request, guest, going)?)
}

async fn show_exec(State(shim): Owner, Path(exec): Path<String>) -> Answer {
    json(&shim.execs.show(&exec_id(&exec)?)?)
}

async fn cancel_exec(State(shim): Owner, Path(exec): Path<String>, headers: HeaderMap) -> Answer {
    shim.dir.pass_fence(fence(&headers)?)?;
    shim.execs.cancel(&exec_id(&exec)?)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Where output is read from.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Reading {
    /// The offset of the first byte.
    pub offset: u64,
    /// Whether to wait for more until the command ends.
    pub follow: bool,
}

async fn output(
    State(shim): Owner,
    Path(exec): Path<String>,
    from: Result<Query<Reading>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let (from, exec) = (query(from)?, exec_id(&exec)?);
    let frames = read_frames(shim.execs.recording(&exec)?, from);
    let exit = move || shim.execs.show(&exec).ok()?.exit;
    Ok(Body::from_stream(with_end(frames, exit)).into_response())
}

/// The frames, and then the exit, if the command has one by then. It is there also if the recording
/// could not keep it, as on a full disk; a reader who found it there has stopped before.
fn with_end(
    frames: impl Stream<Item = std::io::Result<Bytes>> + Send,
    exit: impl FnOnce() -> Option<ExecExit> + Send,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
    let end = futures::stream::once(async move { exit().as_ref().map(exit_frame).map(Ok) });
    frames.chain(end.filter_map(futures::future::ready))
}

/// Output as a stream that ends with what there is, or, followed, after the exit frame.
pub(crate) fn read_frames(
    recording: Arc<Recording>,
    from: Reading,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
    let progress = recording.progress();
    futures::stream::try_unfold(
        (recording, progress, from.offset),
        move |(recording, mut progress, offset)| async move {
            loop {
                let seen = *progress.borrow_and_update();
                if let Some((bytes, next)) = recording.read_at(offset, seen.len).await? {
                    return Ok(Some((bytes, (recording, progress, next))));
                }
                if seen.finished || !from.follow || progress.changed().await.is_err() {
                    return Ok(None);
                }
            }
        },
    )
}

async fn console(State(shim): Owner) -> Answer {
    Ok(shim.console.text().into_response())
}

/// After which record.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct After {
    /// The number of the last one that is known.
    pub after: u64,
}

async fn egress(
    State(shim): Owner,
    after: Result<Query<After>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    json(&shim.egress.after(query(after)?.after))
}

#[cfg(test)]
mod tests;
