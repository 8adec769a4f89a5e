//! A run's events as a stream.
//!
//! The data of an event is one line of JSON: whatever a guest prints, line ends and all, stays
//! inside a JSON string and cannot end the frame it is in. A client comes back with the number of
//! the last event it has. What lies between that and the oldest event still there is told as a
//! `gap`, and so is a number this run never had; after that everything there is follows.

use crate::auth::Presented;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, future, stream};
use jiff::Timestamp;
use lazaret_api::public::{Event, EventBody, EventKind};
use lazaret_domain::{Denial, DenialCode, RunId};
use lazaret_services::Principal;
use std::convert::Infallible;
use std::time::Duration;

/// A silent stream says that it is alive this often; promised are 15 seconds.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
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
    let after = known(edge, &by, &run, resume).await?;
    let events = edge
        .services
        .runs
        .follow(&by, &run, after.unwrap_or(0))
        .await?;
    let unknown = after.is_none().then(|| gap(0, 0));
    let whole = stream::iter(unknown).chain(with_gaps(events, after.unwrap_or(0)));
    let frames = whole.map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(frame(&event))
    });
    let (stop, revoked) = (edge.settings.stop.clone(), revoked(edge.clone(), presented));
    let frames = frames.take_until(async move {
        future::select(Box::pin(stop.cancelled()), Box::pin(revoked)).await;
    });
    let mut response = Sse::new(frames)
        .keep_alive(KeepAlive::new().interval(COMMENT_EVERY).text("alive"))
        .into_response();
    // Proxies that gather output would hold events back.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    Ok(response)
}

/// The number to go on after, if the run has or had such an event. None: it never had.
async fn known(
    edge: &Edge,
    by: &Principal,
    run: &RunId,
    resume: ResumePoint,
) -> Result<Option<u64>, Denial> {
    let ResumePoint::After(after) = resume else {
        return Ok(None);
    };
    let Some(before) = after.checked_sub(1) else {
        return Ok(Some(0));
    };
    // The event itself, or an older number than the oldest that is left: both are numbers it had.
    let page = edge.services.runs.events(by, run, before, 1).await?;
    Ok(page.events.first().map(|_| after))
}

/// Puts a `gap` before an event whose number is not the next one.
fn with_gaps(
    events: impl Stream<Item = Event> + Send,
    after: u64,
) -> impl Stream<Item = Event> + Send {
    let numbered = events.scan(after, |last, event| {
        let missing = event.seq.saturating_sub(last.saturating_add(1));
        // A gap event of the services stands for what is missing before it.
        let told = missing == 0 || event.body.kind() == EventKind::Gap;
        let before = (!told).then(|| gap(event.seq - 1, missing));
        *last = event.seq;
        future::ready(Some(stream::iter(before.into_iter().chain([event]))))
    });
    numbered.flatten()
}

fn gap(seq: u64, missing: u64) -> Event {
    Event {
        seq,
        at: Timestamp::now(),
        body: EventBody::Gap {
            missing,
            unit: "events".to_owned(),
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    fn note(seq: u64) -> Event {
        Event {
            seq,
            at: Timestamp::UNIX_EPOCH,
            body: EventBody::Note {
                text: String::new(),
            },
        }
    }

    #[tokio::test]
    async fn what_is_missing_is_told_before_what_is_there() {
        let numbers = |events: Vec<Event>, after| async move {
            let seen = with_gaps(stream::iter(events), after)
                .collect::<Vec<_>>()
                .await;
            seen.iter()
                .map(|event| (event.seq, name(event.body.kind())))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            numbers(vec![note(1), note(2)], 0).await,
            [(1, "note"), (2, "note")]
        );
        assert_eq!(
            numbers(vec![note(8), note(9)], 3).await,
            [(7, "gap"), (8, "note"), (9, "note")]
        );
    }
}
