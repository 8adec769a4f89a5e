//! `Idempotency-Key` where asking again would do the work again.

use crate::support::{Answer, House, NO_RUN};
use axum::body::Body;
use lazaret_services::ports::fake_host::FakeHost;
use serde_json::{Value, json};

async fn asked(house: &House, path: &str, key: &str, body: &Value) -> Answer {
    let request = house
        .request("POST", path)
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    house
        .raw(request.body(Body::from(body.to_string())).unwrap())
        .await
}

/// How many commands beside a run were started.
fn started(host: &FakeHost) -> usize {
    let all = host.effects().started;
    all.keys()
        .filter(|(_, exec)| exec.as_str().starts_with("x-"))
        .count()
}

#[tokio::test]
async fn a_command_under_an_idempotency_key_is_run_once_and_answers_the_same() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    let path = format!("/api/v1/runs/{run}/exec");
    let id = json!({ "command": ["id"] });
    let (first, second) = tokio::join!(
        asked(&house, &path, "k", &id),
        asked(&house, &path, "k", &id)
    );
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (200, 200));
    assert_eq!(first.json(), second.json());
    assert_eq!(asked(&house, &path, "k", &id).await.json(), first.json());
    assert_eq!(started(&house.host), 1);
    let other = asked(&house, &path, "k", &json!({ "command": ["w"] })).await;
    assert_eq!(other.refusal(), (409, "idempotency_mismatch".to_owned()));
    let bad = asked(&house, &path, "a b", &id).await;
    assert_eq!(bad.refusal(), (400, "invalid_idempotency_key".to_owned()));
    let nowhere = asked(&house, &path.replace(run.as_str(), NO_RUN), "k", &id).await;
    assert_eq!(nowhere.refusal(), (404, "run_not_found".to_owned()));
    assert_eq!(started(&house.host), 1);
    house.post(&path, &id).await;
    assert_eq!(started(&house.host), 2, "without a key it is run again");
}

#[tokio::test]
async fn a_key_under_an_idempotency_key_is_made_once_and_its_token_shown_once() {
    let house = House::new().await;
    let wanted = json!({ "scope": "read", "name": "ci" });
    let first = asked(&house, "/api/v1/keys", "k", &wanted).await;
    assert_eq!(first.status, 201);
    let (first, again) = (
        first.json(),
        asked(&house, "/api/v1/keys", "k", &wanted).await,
    );
    assert_eq!(again.refusal(), (409, "already_done".to_owned()));
    let detail = again.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains(first["key"]["id"].as_str().unwrap()) && detail.contains("revoke it"),
        "{detail}"
    );
    assert!(!again.text().contains(first["token"].as_str().unwrap()));
    let other = asked(&house, "/api/v1/keys", "k", &json!({ "scope": "run" })).await;
    assert_eq!(other.refusal(), (409, "idempotency_mismatch".to_owned()));
    let keys = house.get("/api/v1/keys").await.json();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "{keys}");
}

#[tokio::test]
async fn an_idempotency_key_is_taken_by_every_other_mutation_too() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    let again = |method: &str, path: &str| {
        let request = house.request(method, path).header("idempotency-key", "k");
        house.raw(request.body(Body::empty()).unwrap())
    };
    let key = house
        .post("/api/v1/keys", &json!({ "scope": "read" }))
        .await;
    let id = key.json()["key"]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/keys/{id}");
    for _ in 0..2 {
        assert_eq!(again("DELETE", &path).await.status, 200);
    }
    let path = format!("/api/v1/runs/{run}");
    let upload = again("PUT", &format!("{path}/files/a.txt")).await;
    assert_eq!(upload.status, 204);
    for _ in 0..2 {
        assert_eq!(again("DELETE", &path).await.status, 200);
    }
}
