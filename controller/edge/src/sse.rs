//! A run's events as a stream.
//!
//! The data of an event is one line of JSON: whatever a guest prints, line ends and all, stays
//! inside a JSON string and cannot end the frame it is in. A client comes back with the number of
//! the last event it has. What lies between that and the oldest event still there the services tell
//! as a `gap`, and so they do with a number this run never had.
//!
//! ```text
//!  services ─► task: reads ahead a little, looks at the key ─► queue ─► answer ─► client
//! ```
//!
//! An answer is only worked on when its client takes something. What must go on without it (a read of
//! the store that was begun, looking at the key) is done by a task of the stream's own.

use crate::auth::Presented;
use crate::client::Client;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use lazaret_api::public::{Event, EventBody, EventKind};
use lazaret_domain::RunId;
use lazaret_services::Principal;
use std::convert::Infallible;
use tokio::sync::mpsc;

/// Events that are ready before their client takes them.
const AHEAD: usize = 16;

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

/// Who watches.
pub(crate) struct Watcher {
    pub(crate) by: Principal,
    pub(crate) presented: Presented,
    pub(crate) client: Client,
}

/// Answers with the stream.
pub(crate) async fn follow(
    edge: &Edge,
    watcher: Watcher,
    run: RunId,
    resume: ResumePoint,
) -> Result<Response, Refusal> {
    let Watcher {
        by,
        presented,
        client,
    } = watcher;
    let place = edge.streams.take(client, &by.key)?;
    let (after, unknown) = match resume {
        ResumePoint::After(after) => (after, None),
        ResumePoint::Unknown => (0, Some(unknown_number())),
    };
    let events = edge.services.runs.follow(&by, &run, after).await?;
    let events = stream::iter(unknown).chain(events).boxed();
    let (queue, mut frames) = mpsc::channel(AHEAD);
    tokio::spawn(relay(edge.clone(), presented, events, queue));
    let frames = stream::poll_fn(move |cx| {
        let _held = &place;
        frames
            .poll_recv(cx)
            .map(|frame| frame.map(Ok::<_, Infallible>))
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

/// Passes the events on until they end, the server stops, the key is not good any more, or nobody
/// wants them. The stream ends with it.
async fn relay(
    edge: Edge,
    presented: Presented,
    mut events: BoxStream<'static, Event>,
    queue: mpsc::Sender<sse::Event>,
) {
    let pass_on = async {
        while let Some(event) = events.next().await {
            if queue.send(frame(&event)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = pass_on => {}
        () = edge.settings.stop.cancelled() => {}
        () = revoked(&edge, &presented) => {}
        () = queue.closed() => {}
    }
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

/// Resolves once the key that opened a stream is not known to be good any more: it was revoked, it
/// has expired, or that cannot be told. Who has a good key comes back with the last number it saw.
async fn revoked(edge: &Edge, presented: &Presented) {
    loop {
        tokio::time::sleep(edge.settings.recheck_every).await;
        if let Err(denial) = edge.services.keys.authenticate(&presented.0).await {
            tracing::info!(code = %denial.code, "a stream ends: its key is not known to be good");
            return;
        }
    }
}
