//! Bodies that do not come: they are given up, and leave room for others.

use crate::support::House;
use axum::body::{Body, Bytes};
use futures::{StreamExt, stream};
use std::convert::Infallible;
use std::time::Duration;

/// A body that begins and then neither goes on nor ends.
fn stalled() -> Body {
    let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
    Body::from_stream(begun.chain(stream::pending()))
}

#[tokio::test]
async fn stalled_bodies_are_given_up_and_leave_room_for_others() {
    let house = House::with(|settings| settings.body_pause = Duration::from_millis(50)).await;
    let run = house.finished("").await.run;
    let path = format!("/api/v1/runs/{run}/files/data.bin");
    let given_up = (400, "invalid_request".to_owned());
    // As many as one caller may have under way.
    let uploads = (0..2).map(|_| house.send("PUT", &path, stalled()));
    for answer in futures::future::join_all(uploads).await {
        assert_eq!(answer.refusal(), given_up);
    }
    assert_eq!(house.send("PUT", &path, "whole").await.status, 204);

    let json = |path| {
        let request = house
            .request("POST", path)
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        request.body(stalled()).unwrap()
    };
    assert_eq!(house.raw(json("/api/v1/runs")).await.refusal(), given_up);
    let message = house.raw(json("/mcp")).await;
    assert_eq!(message.status, 400);
    assert_eq!(message.json()["error"]["data"]["code"], "invalid_request");
}

#[tokio::test]
async fn json_that_trickles_in_is_given_up_in_the_end() {
    let house = House::with(|settings| settings.json_within = Duration::from_millis(100)).await;
    let trickle = stream::repeat(()).then(|()| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok::<_, Infallible>(Bytes::from_static(b" "))
    });
    let request = house
        .request("POST", "/api/v1/runs")
        .header("content-type", "application/json")
        .body(Body::from_stream(trickle))
        .unwrap();
    assert_eq!(
        house.raw(request).await.refusal(),
        (400, "invalid_request".to_owned())
    );
}
