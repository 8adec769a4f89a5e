//! What happens in a run: as a stream, as pages, and its log as text.

use crate::auth::{Caller, Presented};
use crate::extract::{OneClient, Segment, UrlQuery};
use crate::problem::Refusal;
use crate::sse;
use crate::state::Edge;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use lazaret_api::public::{Event, EventPage};
use lazaret_domain::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

/// Which events are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Only events after this number. Default: 0, all of them. A stream prefers `Last-Event-ID`.
    after: Option<u64>,
    /// At most so many, 1 to 1000, of a page. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Watch a run
///
/// With `Accept: text/event-stream` a stream that replays and then follows: `id` is the event's
/// number, `event` its type, `data` the event as JSON. It goes on after `Last-Event-ID`; what is no
/// longer there, or never was, is told by a `gap` event. A comment goes out at least every 15
/// seconds, and `end` is the last event. Otherwise one page of events.
#[utoipa::path(get, path = "/api/v1/runs/{run}/events", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id."), EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The last event the client has; for streams.")),
    responses((status = 200, description = "Events, oldest first.", content(
        (EventPage = "application/json"), (Event = "text/event-stream")))))]
pub(super) async fn get_events(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Extension(presented): Extension<Presented>,
    OneClient(client): OneClient,
    Segment(run): Segment<RunId>,
    UrlQuery(query): UrlQuery<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if wants_stream(&headers, &query) {
        let watcher = sse::Watcher {
            by,
            presented,
            client,
        };
        let resume = sse::resume_point(&headers, query.after);
        return sse::follow(&edge, watcher, run, resume).await;
    }
    let page = edge
        .services
        .runs
        .events(
            &by,
            &run,
            query.after.unwrap_or(0),
            query.limit.unwrap_or(100),
        )
        .await?;
    Ok(Json(page).into_response())
}

/// A client that accepts event streams gets one; one that names neither form gets a page if it asks
/// for a page's worth.
fn wants_stream(headers: &HeaderMap, query: &EventsQuery) -> bool {
    let accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let accepted = accepted
        .map(str::to_ascii_lowercase)
        .collect::<Vec<_>>()
        .join(",");
    if accepted.contains("text/event-stream") {
        return true;
    }
    !accepted.contains("application/json") && query.after.is_none() && query.limit.is_none()
}

/// How much of the log is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogQuery {
    /// The last so many lines, 1 to 5000. Default: 200.
    #[param(minimum = 1, maximum = 5000)]
    lines: Option<u32>,
}

/// The end of a run's log
#[utoipa::path(get, path = "/api/v1/runs/{run}/log", tag = "runs",
    params(("run" = RunId, Path, description = "The run's id."), LogQuery),
    responses((status = 200, description = "Text.", body = String, content_type = "text/plain")))]
pub(super) async fn get_log(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    UrlQuery(query): UrlQuery<LogQuery>,
) -> Result<([(HeaderName, &'static str); 1], String), Refusal> {
    let runs = &edge.services.runs;
    let text = runs.log_tail(&by, &run, query.lines.unwrap_or(200)).await?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text))
}
