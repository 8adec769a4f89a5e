//! A run's events as a stream.
//!
//! The data of an event is one line of JSON: whatever a guest prints, line ends and all, stays
//! inside a JSON string and cannot end the frame it is in. A client comes back with the number of
//! the last event it has. What lies between that and the oldest event still there the services tell
//! as a `gap`, and so they do with a number this run never had.

use crate::auth::Presented;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, future, stream};
use jiff::Timestamp;
use lazaret_api::public::{Event, EventBody, EventKind};
use lazaret_domain::{Denial, DenialCode, RunId};
use lazaret_services::Principal;
use std::convert::Infallible;
use std::time::Duration;

/// A stream asks this often whether its key is still good.
const RECHECK_EVERY: Duration = Duration::from_secs(60);

/// Where a client wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumePoint {
    /// After this event.
    After(u64),
    /// After something that is no event number.
    Unknown,
}

/// The header goes before the query: a browser that reconnects repeats the URL as it was.
pub(crate) fn resume_point(headers: &HeaderMap, after: Option<u64>) -> ResumePoint {
    match headers.get("last-event-id") {
        None => ResumePoint::After(after.unwrap_or(0)),
        Some(value) => {
            let number = value.to_str().ok().and_then(|text| text.parse().ok());
            number.map_or(ResumePoint::Unknown, ResumePoint::After)
        }
    }
}

/// Answers with the stream.
pub(crate) async fn follow(
    edge: &Edge,
    by: Principal,
    presented: Presented,
    run: RunId,
    resume: ResumePoint,
) -> Result<Response, Refusal> {
    let permit = edge.streams.clone().try_acquire_owned().map_err(|_| {
        Denial::new(DenialCode::RateLimited, "too many streams are open").retry_after(5)
    })?;
    let (after, unknown) = match resume {
        ResumePoint::After(after) => (after, None),
        ResumePoint::Unknown => (0, Some(unknown_number())),
    };
    let events = edge.services.runs.follow(&by, &run, after).await?;
    let frames = stream::iter(unknown).chain(events).map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(frame(&event))
    });
    let (stop, revoked) = (edge.settings.stop.clone(), revoked(edge.clone(), presented));
    let frames = frames.take_until(async move {
        future::select(Box::pin(stop.cancelled()), Box::pin(revoked)).await;
    });
    let mut response = Sse::new(frames)
        .keep_alive(
            KeepAlive::new()
                .interval(edge.settings.comment_every)
                .text("alive"),
        )
        .into_response();
    // Proxies that gather output would hold events back.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    Ok(response)
}

/// Told to a client that wants to go on after something that is no number of an event.
fn unknown_number() -> Event {
    let body = EventBody::Gap {
        missing: 0,
        unit: "events".to_owned(),
    };
    Event {
        seq: 0,
        at: Timestamp::now(),
        body,
    }
}

fn frame(event: &Event) -> sse::Event {
    let frame = sse::Event::default()
        .id(event.seq.to_string())
        .event(name(event.body.kind()));
    match serde_json::to_string(event) {
        Ok(json) => frame.data(json),
        Err(fault) => {
            tracing::error!(%fault, "an event could not be written");
            frame.data("{}")
        }
    }
}

fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::State => "state",
        EventKind::Log => "log",
        EventKind::Egress => "egress",
        EventKind::Note => "note",
        EventKind::Gap => "gap",
        EventKind::End => "end",
    }
}

/// Resolves once the key that opened a stream is good no longer.
async fn revoked(edge: Edge, presented: Presented) {
    loop {
        tokio::time::sleep(RECHECK_EVERY).await;
        if let Err(denial) = edge.services.keys.authenticate(&presented.0).await
            && denial.code == DenialCode::Unauthenticated
        {
            return;
        }
    }
}
