//! The host API on standard streams: what the controller speaks to over SSH channel 1.
//!
//! A session holds nothing but its spares and a shim in waiting, which end with it. It makes and removes sandbox directories, starts shims, passes on what
//! concerns one living sandbox to its shim, and reads what a dead one left behind. Any number of
//! sessions may run at once; they meet at the lock of the state directory.
//!
//! The session ends when the other side closes. What it was asked for and has begun (a creation, a
//! removal) is finished first, whoever stopped waiting for it; a template that it was making of its
//! own accord is given up.

mod copies;
mod create;
mod destroy;
mod info;
mod living;
mod remains;
mod shims;
mod spares;
mod templates;

use crate::state::State;
use crate::wire::{Answer, Refused, fence, json, known_protocol, read};
use axum::body::Body;
use axum::extract::{Path, Request, State as Shared};
use axum::response::IntoResponse;
use axum::routing::{any, get, post, put};
use http::{HeaderMap, HeaderValue, StatusCode};
use lazaret_api::host::{CopyInto, SandboxSpec, TemplateSpec};
use lazaret_api::{PROTOCOL, PROTOCOL_HEADER};
use lazaret_domain::{Denial, DenialCode, SandboxId};
use shims::Shims;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The largest specification.
const SPEC: usize = 1 << 20;

/// What the handlers share.
#[derive(Clone)]
struct Session {
    state: State,
    /// What must be finished although its asker has gone.
    work: TaskTracker,
    /// Ends what nobody asked for once the other side has closed.
    closing: CancellationToken,
    info: Arc<info::Facts>,
    shims: Shims,
    /// Sandboxes that were asked for.
    asked: Arc<AtomicU64>,
}

type Owner = Shared<Session>;

/// Serves the host API on standard input and output until they are closed.
///
/// # Errors
/// If the standard streams cannot be used.
pub async fn serve_standard_streams(state: State) -> anyhow::Result<()> {
    let io = crate::pipe::standard_streams()?;
    let session = Session {
        state,
        work: TaskTracker::new(),
        closing: CancellationToken::new(),
        info: Arc::default(),
        shims: Shims::default(),
        asked: Arc::default(),
    };
    let (work, closing) = (session.work.clone(), session.closing.clone());
    {
        let lock = session.state.lock().await?;
        session.state.sweep(&lock);
        spares::sweep(&session.state, &lock).await;
        living::sweep(&session.state, &lock);
        crate::template::collect(&session.state);
        crate::template::collect_cage(&session.state).await;
    }
    session.shims.prepare(&session.state).await;
    if let Err(error) = crate::pipe::serve(io, router(session)).await {
        tracing::debug!(%error, "the connection ended");
    }
    closing.cancel();
    work.close();
    work.wait().await;
    Ok(())
}

fn router(session: Session) -> axum::Router {
    axum::Router::new()
        .route("/v1/ping", get(ping))
        .route("/v1/info", get(info))
        .route("/v1/templates", put(make_template))
        .route("/v1/sandboxes", get(list))
        .route(
            "/v1/sandboxes/{id}",
            get(inspect).put(create).delete(destroy),
        )
        .route("/v1/sandboxes/{id}/copies", post(copy))
        .route("/v1/sandboxes/{id}/{*rest}", any(pass_on))
        .fallback(nothing_here)
        .layer(axum::middleware::map_response(name_generation))
        .with_state(session)
}

/// Every answer says which generation of the host API gave it.
async fn name_generation(mut response: axum::response::Response) -> axum::response::Response {
    response
        .headers_mut()
        .insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
    response
}

/// The host is there; its generation is in the header.
async fn ping() -> StatusCode {
    StatusCode::NO_CONTENT
}

impl Session {
    /// Does something to its end, even if the asker goes away.
    async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Denial>> + Send + 'static,
    ) -> Result<T, Denial> {
        self.work
            .spawn(work)
            .await
            .unwrap_or_else(|error| Err(crate::state::internal("finish what was asked", &error)))
    }
}

fn sandbox_id(text: &str) -> Result<SandboxId, Denial> {
    text.parse()
}

async fn nothing_here() -> Refused {
    Refused(Denial::new(
        DenialCode::NoSuchRoute,
        "the host API has no such route",
    ))
}

async fn info(Shared(session): Owner, headers: HeaderMap) -> Answer {
    known_protocol(&headers)?;
    json(&session.info.gather(&session.state, &session.work).await?)
}

async fn list(Shared(session): Owner) -> Answer {
    let ids = session
        .state
        .ids()
        .map_err(|error| crate::state::internal("list the sandboxes", &error))?;
    let looks = ids.iter().map(|id| living::look(&session.state, id));
    // One that is removed while we look is not there.
    let found: Vec<_> = futures::future::join_all(looks)
        .await
        .into_iter()
        .filter_map(Result::ok)
        .collect();
    json(&found)
}

async fn create(
    Shared(session): Owner,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    known_protocol(&headers)?;
    let (id, fence) = (sandbox_id(&id)?, fence(&headers)?);
    let spec: SandboxSpec = read(body, SPEC).await?;
    create::within_bounds(session.state.config(), &spec)?;
    let made = create::create(
        session.state.clone(),
        session.shims.clone(),
        id.clone(),
        fence,
        spec.clone(),
    );
    let sandbox = session.finish(made).await?;
    let (closing, work) = (session.closing.clone(), session.work.clone());
    let asked = session.asked.fetch_add(1, Ordering::SeqCst) + 1;
    let after = async move {
        templates::after(session.state.clone(), id, spec.clone()).await;
        session.shims.prepare(&session.state).await;
        spares::refill(session.state.clone(), spec, asked, session.asked).await;
    };
    work.spawn(async move { closing.run_until_cancelled(after).await });
    json(&sandbox)
}

async fn copy(
    Shared(session): Owner,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    known_protocol(&headers)?;
    let (id, fence) = (sandbox_id(&id)?, fence(&headers)?);
    let wanted: CopyInto = read(body, SPEC).await?;
    session.state.sandbox(&id).pass_fence(fence)?;
    let made = copies::copies(
        session.state.clone(),
        session.shims.clone(),
        id,
        fence,
        wanted,
    );
    json(&session.finish(made).await?)
}

async fn make_template(Shared(session): Owner, headers: HeaderMap, body: Body) -> Answer {
    known_protocol(&headers)?;
    let spec: TemplateSpec = read(body, SPEC).await?;
    create::within_limits(session.state.config(), spec.memory, spec.disk, spec.cpus)?;
    let made = templates::ensure(session.state.clone(), spec);
    json(&session.finish(made).await?)
}

async fn inspect(Shared(session): Owner, Path(id): Path<String>, request: Request) -> Answer {
    let id = sandbox_id(&id)?;
    if let Some(answer) = living::ask_shim(&session.state, &id, request).await {
        return Ok(answer);
    }
    json(&living::look(&session.state, &id).await?)
}

async fn destroy(Shared(session): Owner, Path(id): Path<String>, headers: HeaderMap) -> Answer {
    let (id, fence) = (sandbox_id(&id)?, fence(&headers)?);
    session
        .finish(destroy::destroy(session.state.clone(), id, fence))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What concerns one sandbox is answered by its shim, or from what the shim left.
async fn pass_on(
    Shared(session): Owner,
    Path((id, rest)): Path<(String, String)>,
    request: Request,
) -> Answer {
    let id = sandbox_id(&id)?;
    let (method, uri) = (request.method().clone(), request.uri().clone());
    match living::ask_shim(&session.state, &id, request).await {
        Some(answer) => Ok(answer),
        None => remains::answer(&session.state, &id, &method, &rest, &uri).await,
    }
}
