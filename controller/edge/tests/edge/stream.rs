//! A run's events as a stream: order, resuming, framing, ending.

use crate::support::{House, LONG, NO_RUN, command};
use axum::body::Body;
use futures::StreamExt;
use lazaret_api::frame::Frame;
use serde_json::Value;
use std::time::Duration;
use tower::ServiceExt;

/// One frame of a stream, by its fields.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    id: String,
    event: String,
    data: Value,
}

/// Reads frames as a browser does: by lines, fields by their first colon.
fn frames(text: &str) -> Vec<Seen> {
    let mut all = Vec::new();
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let mut seen = Seen::default();
        let mut data = String::new();
        for line in block.lines() {
            match line.split_once(':') {
                Some(("id", value)) => seen.id = value.trim_start().to_owned(),
                Some(("event", value)) => seen.event = value.trim_start().to_owned(),
                Some(("data", value)) => data.push_str(value.trim_start()),
                Some(("", _)) => {}
                other => panic!("not a field of ours: {other:?} in {block:?}"),
            }
        }
        if !data.is_empty() {
            seen.data = serde_json::from_str(&data).unwrap();
            all.push(seen);
        }
    }
    all
}

async fn stream_of(house: &House, run: &str, last: Option<&str>) -> Vec<Seen> {
    let mut request = house
        .request("GET", &format!("/api/v1/runs/{run}/events"))
        .header("accept", "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let answer = house.raw(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    assert_eq!(answer.headers["cache-control"], "no-store");
    frames(&answer.text())
}

#[tokio::test]
async fn a_stream_is_numbered_without_gap_and_ends_with_the_end() {
    let house = House::new().await;
    let run = house.finished("one\ntwo\nthree\n").await.run.to_string();
    let seen = stream_of(&house, &run, None).await;
    let ids: Vec<u64> = seen.iter().map(|frame| frame.id.parse().unwrap()).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
    let last = seen.last().unwrap();
    assert_eq!(
        (last.event.as_str(), &last.data["outcome"]),
        ("end", &Value::from("succeeded"))
    );
    assert!(last.data["cause"]["code"].is_string());
    for frame in &seen {
        assert_eq!(frame.data["type"], frame.event.as_str());
        assert_eq!(frame.data["seq"], frame.id.parse::<u64>().unwrap());
        assert!(frame.data["at"].is_string());
    }
    let page = house
        .get(&format!("/api/v1/runs/{run}/events?after=0&limit=1000"))
        .await
        .json();
    assert_eq!(page["complete"], true);
    assert_eq!(
        page["events"],
        Value::from(seen.into_iter().map(|frame| frame.data).collect::<Vec<_>>())
    );
}

#[tokio::test]
async fn a_client_that_comes_back_misses_nothing_and_gets_nothing_twice() {
    let house = House::new().await;
    let run = house.finished("one\ntwo\n").await.run.to_string();
    let whole = stream_of(&house, &run, None).await;
    for cut in 1..whole.len() {
        let rest = stream_of(&house, &run, Some(&whole[cut - 1].id)).await;
        assert_eq!(rest, whole[cut..], "after {cut}");
    }
}

#[tokio::test]
async fn a_number_the_run_never_had_is_answered_by_a_gap() {
    let house = House::new().await;
    let run = house.finished("one\n").await.run.to_string();
    let whole = stream_of(&house, &run, None).await;
    for last in ["x", "-1", "1.5", "18446744073709551616"] {
        let seen = stream_of(&house, &run, Some(last)).await;
        assert_eq!(
            (seen[0].event.as_str(), &seen[1..]),
            ("gap", &whole[..]),
            "{last}"
        );
    }
    // The run is over, so the client that comes back from the future still gets the end.
    let seen = stream_of(&house, &run, Some("999999")).await;
    let events: Vec<_> = seen.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(events, ["gap", "end"]);
}

#[tokio::test]
async fn hostile_output_stays_inside_its_frame() {
    let house = House::new().await;
    let hostile = "\n\nevent: end\ndata: {\"type\":\"end\"}\n\nid: 999\r\n\r\r: c\n\u{1b}[2J\u{1b}]0;x\u{7}</script>\u{2028}\u{0}\n";
    let run = house.finished(hostile).await.run.to_string();
    let seen = stream_of(&house, &run, None).await;
    assert_eq!(seen.iter().filter(|frame| frame.event == "end").count(), 1);
    assert!(seen.iter().all(|frame| frame.id != "999"));
    let said: String = seen
        .iter()
        .filter(|frame| frame.event == "log" && frame.data["stream"] == "stdout")
        .map(|frame| frame.data["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, hostile);
}

#[tokio::test]
async fn what_happens_is_seen_while_it_happens_and_a_stop_ends_the_stream() {
    let house = House::new().await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    let request = house
        .request("GET", &format!("/api/v1/runs/{run}/events"))
        .body(Body::empty())
        .unwrap();
    let response = house.router.clone().oneshot(request).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    let mut until = async |wanted: &str| {
        while !text.contains(wanted) {
            let piece = tokio::time::timeout(LONG, body.next())
                .await
                .unwrap()
                .expect("a stream that goes on")
                .unwrap();
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    };
    until("begun").await;
    let sandbox = house.host.until_started("turn-1").await;
    house.host.says(
        &sandbox,
        &"turn-1".parse().unwrap(),
        &[Frame::Stdout("and on\n".into())],
        None,
    );
    until("and on").await;
    house.stop.cancel();
    let rest = tokio::time::timeout(LONG, body.collect::<Vec<_>>()).await;
    assert!(rest.is_ok(), "the stream did not end");
}

#[tokio::test]
async fn a_silent_stream_says_that_it_is_alive() {
    assert!(lazaret_edge::settings::COMMENT_EVERY < Duration::from_secs(15));
    let house = House::with(|settings| settings.comment_every = Duration::from_millis(5)).await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    let request = house
        .request("GET", &format!("/api/v1/runs/{run}/events"))
        .body(Body::empty())
        .unwrap();
    let response = house.router.clone().oneshot(request).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("\n: alive\n") && !text.starts_with(": alive\n") {
        let piece = tokio::time::timeout(LONG, body.next())
            .await
            .unwrap()
            .expect("a stream that goes on")
            .unwrap();
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
}

#[tokio::test]
async fn clients_choose_between_stream_and_page() {
    let house = House::new().await;
    let run = house.finished("one\n").await.run;
    let kind = async |path: String, accept: Option<&str>| {
        let mut request = house.request("GET", &path);
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let answer = house.raw(request.body(Body::empty()).unwrap()).await;
        answer.headers["content-type"].to_str().unwrap().to_owned()
    };
    let path = format!("/api/v1/runs/{run}/events");
    assert_eq!(kind(path.clone(), None).await, "text/event-stream");
    assert_eq!(kind(path.clone(), Some("*/*")).await, "text/event-stream");
    assert_eq!(
        kind(path.clone(), Some("application/json")).await,
        "application/json"
    );
    assert_eq!(
        kind(format!("{path}?after=1"), None).await,
        "application/json"
    );
    assert_eq!(
        kind(format!("{path}?after=1"), Some("text/event-stream")).await,
        "text/event-stream"
    );
    for query in ["after=-1", "after=x", "limit=0", "limit=1001"] {
        assert_eq!(
            house.get(&format!("{path}?{query}")).await.refusal().0,
            400,
            "{query}"
        );
    }
    assert_eq!(
        house
            .get(&format!("/api/v1/runs/{NO_RUN}/events"))
            .await
            .refusal(),
        (404, "run_not_found".to_owned())
    );
}
