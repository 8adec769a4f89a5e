//! Bodies: their size, their type, their form.

use crate::support::House;
use axum::body::{Body, Bytes};
use futures::stream;
use lazaret_edge::settings::{JSON_BODY, UPLOAD_BODY};
use serde_json::json;
use std::convert::Infallible;

/// A body without an announced length.
fn chunked(length: usize) -> Body {
    let pieces = (0..length)
        .step_by(64 << 10)
        .map(move |at| vec![b' '; (length - at).min(64 << 10)]);
    Body::from_stream(stream::iter(
        pieces.map(|piece| Ok::<_, Infallible>(Bytes::from(piece))),
    ))
}

#[tokio::test]
async fn json_is_at_most_one_megabyte_with_or_without_a_length() {
    let house = House::new().await;
    assert_eq!(JSON_BODY, 1 << 20);
    let send = |body: Body| {
        let request = house
            .request("POST", "/api/v1/runs")
            .header("content-type", "application/json");
        house.raw(request.body(body).unwrap())
    };
    let fill = |length: usize| {
        let frame = json!({ "command": ["true"], "task": "" }).to_string();
        json!({ "command": ["true"], "task": "x".repeat(length - frame.len()) }).to_string()
    };
    // As long as it may be, it is read; the task in it is then too long for a task.
    let largest = send(Body::from(fill(JSON_BODY))).await;
    assert_eq!(largest.json()["field"], "task", "{}", largest.text());
    let longer = send(Body::from(fill(JSON_BODY + 1))).await;
    assert_eq!(
        (longer.refusal().0, &longer.json()["field"]),
        (413, &json!(null))
    );
    assert_eq!(
        send(chunked(JSON_BODY + 1)).await.refusal(),
        (413, "too_large".to_owned())
    );
    // The announced length alone is enough.
    let request = house
        .request("POST", "/api/v1/runs")
        .header("content-type", "application/json");
    let announced = request
        .header("content-length", (JSON_BODY + 1).to_string())
        .body(Body::empty())
        .unwrap();
    assert_eq!(house.raw(announced).await.refusal().0, 413);
}

#[tokio::test]
async fn uploads_are_at_most_96_megabytes_with_or_without_a_length() {
    assert_eq!(UPLOAD_BODY, 96 << 20);
    let house = House::with(|settings| settings.upload_body = 3 << 20).await;
    let run = house.finished("").await;
    let path = format!("/api/v1/runs/{}/files/data.bin", run.run);
    assert_eq!(house.send("PUT", &path, chunked(3 << 20)).await.status, 204);
    let sandbox = run.sandbox.unwrap().id;
    assert_eq!(
        house.host.uploaded(&sandbox, "data.bin").unwrap().len(),
        3 << 20
    );
    assert_eq!(
        house
            .send("PUT", &path, chunked((3 << 20) + 1))
            .await
            .refusal(),
        (413, "too_large".to_owned())
    );
    let request = house
        .request("PUT", &path)
        .header("content-length", (UPLOAD_BODY + 1).to_string());
    assert_eq!(
        house
            .raw(request.body(Body::empty()).unwrap())
            .await
            .refusal()
            .0,
        413
    );
    // Only the upload route takes more than JSON may have.
    let large = house
        .request("POST", "/api/v1/keys")
        .header("content-type", "application/json");
    assert_eq!(
        house
            .raw(large.body(chunked(2 << 20)).unwrap())
            .await
            .refusal()
            .0,
        413
    );
}

#[tokio::test]
async fn an_upload_has_a_plain_name() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    for name in [
        "..%2F..%2Fetc%2Fpasswd",
        "a%2Fb",
        "..",
        "%2e%2e",
        ".ssh",
        "-rf",
        "a%00b",
        "C%3A%5Cx",
        "%E6%97%A5",
        &"n".repeat(129),
    ] {
        let answer = house
            .send("PUT", &format!("/api/v1/runs/{run}/files/{name}"), "x")
            .await;
        assert_eq!(answer.refusal(), (400, "invalid_name".to_owned()), "{name}");
    }
}

#[tokio::test]
async fn what_is_not_json_is_told_in_json() {
    let house = House::new().await;
    let send = |kind: &'static str, body: &str| {
        let request = house
            .request("POST", "/api/v1/runs")
            .header("content-type", kind);
        house.raw(request.body(Body::from(body.to_owned())).unwrap())
    };
    let json = "application/json";
    assert_eq!(
        send(json, "{bad").await.refusal(),
        (400, "invalid_request".to_owned())
    );
    assert_eq!(
        send(json, "").await.refusal(),
        (400, "invalid_request".to_owned())
    );
    assert_eq!(
        send(json, "{}{}").await.refusal(),
        (400, "invalid_request".to_owned())
    );
    assert_eq!(
        send(json, &"[".repeat(10_000)).await.refusal(),
        (400, "invalid_request".to_owned())
    );
    assert_eq!(
        send(json, "{\"task\":\"a\",\"task\":\"b\"}")
            .await
            .refusal(),
        (400, "invalid_request".to_owned())
    );
    assert_eq!(
        send("application/json; charset=utf-8", "{}")
            .await
            .refusal(),
        (400, "nothing_to_do".to_owned())
    );
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        "",
    ] {
        assert_eq!(
            send(kind, "{}").await.refusal(),
            (415, "unsupported_media_type".to_owned()),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn unknown_fields_are_refused_by_name() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    let bodies = [
        (
            "POST",
            "/api/v1/runs".to_owned(),
            json!({ "command": ["true"], "privileged": true }),
            "privileged",
        ),
        (
            "POST",
            format!("/api/v1/runs/{run}/exec"),
            json!({ "command": ["true"], "uid": 0 }),
            "uid",
        ),
        (
            "POST",
            "/api/v1/keys".to_owned(),
            json!({ "scope": "read", "token": "mine" }),
            "token",
        ),
        (
            "POST",
            "/api/v1/hosts".to_owned(),
            json!({ "address": "a@b", "host_key": "SHA256:x", "password": "x" }),
            "password",
        ),
        (
            "PATCH",
            "/api/v1/hosts/box".to_owned(),
            json!({ "admission": "active", "force": true }),
            "force",
        ),
    ];
    for (method, path, body, field) in bodies {
        let request = house
            .request(method, &path)
            .header("content-type", "application/json");
        let answer = house
            .raw(request.body(Body::from(body.to_string())).unwrap())
            .await;
        assert_eq!(
            answer.refusal(),
            (400, "unknown_field".to_owned()),
            "{path}"
        );
        assert_eq!(answer.json()["field"], field);
    }
    for path in [
        "/api/v1/runs?token=x",
        &format!("/api/v1/runs/{run}/log?line=1"),
        &format!("/api/v1/runs/{run}/files?root=/"),
    ] {
        assert_eq!(
            house.get(path).await.refusal(),
            (400, "unknown_field".to_owned()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn no_words_of_a_caller_choose_the_status() {
    let house = House::new().await;
    let run = json!({ "agent": "x (internal)" });
    let answer = house.post("/api/v1/runs", &run).await;
    assert_eq!(answer.refusal(), (400, "unknown_agent".to_owned()));
    let run = json!({ "x (unauthenticated)": true });
    let answer = house.post("/api/v1/runs", &run).await;
    assert_eq!(answer.refusal(), (400, "unknown_field".to_owned()));
    assert_eq!(answer.json()["field"], "x (unauthenticated)");
    for query in [
        "x+(internal)=1",
        "limit=x+(internal)",
        "active=x+(unauthenticated)",
    ] {
        let answer = house.get(&format!("/api/v1/runs?{query}")).await;
        assert_eq!(answer.refusal().0, 400, "{query}");
    }
    let answer = house.get("/api/v1/runs?before=x").await;
    assert_eq!(answer.refusal(), (400, "invalid_id".to_owned()));
    assert_eq!(answer.json()["field"], "before");
}
