//! Runs: delegate, look, end.

use crate::auth::Caller;
use crate::detached::detached;
use crate::extract::{Idempotency, JsonBody, Segment, UrlQuery};
use crate::problem::Refusal;
use crate::state::Edge;
use axum::Json;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderName, StatusCode};
use lazaret_api::host::WakeFrom;
use lazaret_api::public::{
    CreateRun, Diff, ExecResult, ExecRun, ForkRun, Forked, Run, RunList, TornDown,
};
use lazaret_domain::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

/// Delegate a task
///
/// Answers when the run is durable; it starts by itself.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", request_body = CreateRun,
    params(("Idempotency-Key" = Option<String>, Header, description = "Asking again under the same key finds the same run.")),
    responses((status = 201, description = "Accepted.", body = Run)))]
pub(super) async fn create_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Idempotency(key): Idempotency,
    JsonBody(request): JsonBody<CreateRun>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Run>), Refusal> {
    let run = detached(async move { edge.services.runs.delegate(&by, key, request).await }).await?;
    Ok((
        StatusCode::CREATED,
        [(LOCATION, format!("/api/v1/runs/{}", run.run))],
        Json(run),
    ))
}

/// Which runs are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsQuery {
    /// Only runs older than this one: `next` of the page before.
    before: Option<RunId>,
    /// At most so many, 1 to 200. Default: 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Only runs that are not done.
    #[serde(default)]
    active: bool,
}

/// List runs, newest first
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunsQuery),
    responses((status = 200, description = "A page of runs.", body = RunList)))]
pub(super) async fn list_runs(
    State(edge): State<Edge>,
    Caller(by): Caller,
    UrlQuery(query): UrlQuery<RunsQuery>,
) -> Result<Json<RunList>, Refusal> {
    Ok(Json(
        edge.services
            .runs
            .list(&by, query.before, query.limit.unwrap_or(50), query.active)
            .await?,
    ))
}

/// Show a run
#[utoipa::path(get, path = "/api/v1/runs/{run}", tag = "runs", params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "The run as it is now.", body = Run)))]
pub(super) async fn get_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(edge.services.runs.get(&by, &run).await?))
}

/// Tear a run down
///
/// From any state: ends the work and removes everything the run held. Idempotent. Where the removal
/// takes longer than a request may (its host is away, say), `removed` is false and it goes on by itself.
#[utoipa::path(delete, path = "/api/v1/runs/{run}", tag = "runs", params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "It is removed, or being removed: `removed` says which.", body = TornDown)))]
pub(super) async fn teardown_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    _: Idempotency,
) -> Result<Json<TornDown>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.runs.teardown(&by, &run).await }).await?,
    ))
}

/// Cancel a run
///
/// Ends the work and keeps the sandbox, so that files and diff can still be read.
#[utoipa::path(post, path = "/api/v1/runs/{run}/cancel", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "The run as it is now.", body = Run)))]
pub(super) async fn cancel_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    _: Idempotency,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.runs.cancel(&by, &run).await }).await?,
    ))
}

/// Fork a run
///
/// Copies of its sandbox as it is at one moment, memory and disk, each a run of its own that names its
/// parent. What ran in it does not go on in them. The run itself stands still for less than a second.
#[utoipa::path(post, path = "/api/v1/runs/{run}/fork", tag = "runs", request_body = ForkRun,
    params(("run" = RunId, Path, description = "The run's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Asking again under the same key finds the same copies.")),
    responses((status = 201, description = "The copies.", body = Forked)))]
pub(super) async fn fork_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    Idempotency(key): Idempotency,
    JsonBody(request): JsonBody<ForkRun>,
) -> Result<(StatusCode, Json<Forked>), Refusal> {
    let forked =
        detached(async move { edge.services.runs.fork(&by, &run, key, request).await }).await?;
    Ok((StatusCode::CREATED, Json(forked)))
}

/// Put a run's sandbox to sleep
///
/// Its memory is saved and nothing of it runs any more; it is ended when its sleep TTL passes, unless it
/// is kept. Refused with `sandbox_busy` while a command runs in it. Reading does not wake it.
#[utoipa::path(post, path = "/api/v1/runs/{run}/sleep", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "The run, its sandbox asleep.", body = Run)))]
pub(super) async fn sleep_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    _: Idempotency,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.runs.sleep(&by, &run).await }).await?,
    ))
}

/// What a sandbox is woken from.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WakeQuery {
    /// `memory`, as it fell asleep, or `disk`: it boots, and what was in its memory is given up.
    /// Default: `memory`.
    #[serde(default)]
    from: WakeFrom,
}

/// Wake a run's sandbox
///
/// What was saved stays until the guest has answered, so a wake that fails can be tried again.
#[utoipa::path(post, path = "/api/v1/runs/{run}/wake", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id."), WakeQuery),
    responses((status = 200, description = "The run, its sandbox awake.", body = Run)))]
pub(super) async fn wake_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    UrlQuery(query): UrlQuery<WakeQuery>,
    _: Idempotency,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.runs.wake(&by, &run, query.from).await }).await?,
    ))
}

/// Keep a run's sandbox
///
/// It may sleep for ever: its sleep TTL does not count. Its longest duration does, and teardown too.
#[utoipa::path(post, path = "/api/v1/runs/{run}/keep", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "The run, its sandbox kept.", body = Run)))]
pub(super) async fn keep_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    _: Idempotency,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.runs.keep(&by, &run, true).await }).await?,
    ))
}

/// Keep a run's sandbox no longer
///
/// Its sleep TTL counts again, from when it fell asleep.
#[utoipa::path(post, path = "/api/v1/runs/{run}/unkeep", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "The run, its sandbox no longer kept.", body = Run)))]
pub(super) async fn unkeep_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    _: Idempotency,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(
        detached(async move { edge.services.runs.keep(&by, &run, false).await }).await?,
    ))
}

/// Run a command beside a run, in its sandbox
///
/// Under an `Idempotency-Key` it is run once: asking again answers what it said, while it is at work
/// and afterwards, also after a restart of the controller. A sandbox keeps what its latest 64 such
/// commands said; for an older one the answer is `already_done`. Without a key, asking again runs it
/// again.
#[utoipa::path(post, path = "/api/v1/runs/{run}/exec", tag = "runs", request_body = ExecRun,
    params(("run" = RunId, Path, description = "The run's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Asking again under the same key, for the same run, finds the same command.")),
    responses((status = 200, description = "What the command said.", body = ExecResult)))]
pub(super) async fn exec_in_run(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    Idempotency(key): Idempotency,
    JsonBody(request): JsonBody<ExecRun>,
) -> Result<Json<ExecResult>, Refusal> {
    let runs = &edge.services.runs;
    Ok(Json(runs.exec(&by, &run, key, request).await?))
}

/// What a run changed
#[utoipa::path(get, path = "/api/v1/runs/{run}/diff", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "A unified diff against the base commit.", body = Diff)))]
pub(super) async fn get_diff(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
) -> Result<Json<Diff>, Refusal> {
    Ok(Json(edge.services.runs.diff(&by, &run).await?))
}
