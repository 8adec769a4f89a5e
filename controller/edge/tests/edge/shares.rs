//! What one client or one key may hold at the same time, so that it never takes what is the others'.

use crate::support::{Answer, House, command, request};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::response::Response;
use futures::{StreamExt, stream};
use lazaret_api::public::Scope;
use lazaret_domain::RunId;
use std::convert::Infallible;
use std::net::SocketAddr;
use tower::ServiceExt;

const HERE: &str = "198.51.100.1:1";
const THERE: &str = "198.51.100.2:1";

/// A request of this key, from this peer.
fn from(peer: &str, token: &str, method: &str, path: &str) -> Request<Body> {
    let peer: SocketAddr = peer.parse().unwrap();
    let request = request(method, path)
        .header("authorization", format!("Bearer {token}"))
        .extension(ConnectInfo(peer));
    request.body(Body::empty()).unwrap()
}

/// The answer to a request for a run's event stream, not read yet.
async fn opened(house: &House, run: &RunId, peer: &str, token: &str) -> Response {
    let request = from(peer, token, "GET", &format!("/api/v1/runs/{run}/events"));
    house.router.clone().oneshot(request).await.unwrap()
}

/// The refusal's words, when its form is right.
fn refused(answer: &Answer) -> String {
    assert_eq!(answer.refusal(), (429, "rate_limited".to_owned()));
    let wait: u32 = answer.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(wait >= 1);
    answer.json()["detail"].as_str().unwrap().to_owned()
}

async fn refused_stream(house: &House, run: &RunId, peer: &str, token: &str) -> String {
    let path = format!("/api/v1/runs/{run}/events");
    refused(&house.raw(from(peer, token, "GET", &path)).await)
}

#[tokio::test]
async fn one_client_or_one_key_holds_its_part_of_the_streams_and_no_more() {
    let house = House::with(|settings| settings.streams_each = 2).await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    let other = house.token(Scope::Read).await;
    let held = [
        opened(&house, &run, HERE, &house.admin).await,
        opened(&house, &run, HERE, &house.admin).await,
    ];
    assert!(held.iter().all(|answer| answer.status() == 200));
    let why = refused_stream(&house, &run, HERE, &other).await;
    assert!(why.contains("of this client"), "{why}");
    let why = refused_stream(&house, &run, THERE, &house.admin).await;
    assert!(why.contains("of this API key"), "{why}");
    // Another client with another key has its own, and the first may ask for anything else.
    let theirs = opened(&house, &run, THERE, &other).await;
    assert_eq!(theirs.status(), 200);
    let look = from(HERE, &house.admin, "GET", "/api/v1/runs");
    assert_eq!(house.raw(look).await.status, 200);
    // A stream that is given up gives its place back.
    drop(held);
    let again = opened(&house, &run, HERE, &house.admin).await;
    assert_eq!(again.status(), 200);
}

#[tokio::test]
async fn clients_behind_one_proxy_are_counted_one_by_one() {
    let house = House::with(|settings| {
        settings.streams_each = 1;
        settings.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
    })
    .await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    let path = format!("/api/v1/runs/{run}/events");
    let through = async |client: &str, token: &str| {
        let mut request = from("10.0.0.1:1", token, "GET", &path);
        let header = client.parse().unwrap();
        request.headers_mut().insert("x-forwarded-for", header);
        house.router.clone().oneshot(request).await.unwrap()
    };
    let mut held = Vec::new();
    for (client, status) in [("192.0.2.7", 200), ("192.0.2.7", 429), ("192.0.2.8", 200)] {
        let token = house.token(Scope::Read).await;
        let answer = through(client, &token).await;
        assert_eq!(answer.status(), status, "{client}");
        held.push(answer);
    }
}

#[tokio::test]
async fn one_client_or_one_key_has_so_many_requests_under_way() {
    let house = House::with(|settings| settings.requests_each = 2).await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    let other = house.token(Scope::Read).await;
    let held = [
        opened(&house, &run, HERE, &house.admin).await,
        opened(&house, &run, HERE, &house.admin).await,
    ];
    let ask = |peer, token: &str, path| house.raw(from(peer, token, "GET", path));
    let why = refused(&ask(HERE, &other, "/healthz").await);
    assert!(why.contains("requests of this client"), "{why}");
    let why = refused(&ask(THERE, &house.admin, "/api/v1/runs").await);
    assert!(why.contains("requests of this API key"), "{why}");
    assert_eq!(ask(THERE, &other, "/api/v1/runs").await.status, 200);
    drop(held);
    for _ in 0..5 {
        assert_eq!(ask(HERE, &house.admin, "/api/v1/runs").await.status, 200);
    }
}

#[tokio::test]
async fn one_client_or_one_key_holds_its_part_of_the_uploads_and_no_more() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    let path = format!("/api/v1/runs/{run}/files/data.bin");
    let other = house.token(Scope::Run).await;
    let upload = |peer, token: &str, body| {
        let request = from(peer, token, "PUT", &path);
        house.router.clone().oneshot(request.map(|_| body))
    };
    let stalled = || Body::from_stream(stream::pending::<Result<&[u8], Infallible>>().boxed());
    let mut slow: Vec<_> = (0..2)
        .map(|_| Box::pin(upload(HERE, &house.admin, stalled())))
        .collect();
    for upload in &mut slow {
        // Far enough to hold its place: it waits for its body.
        let waits = tokio::time::timeout(std::time::Duration::from_millis(300), upload);
        assert!(waits.await.is_err());
    }
    for (peer, token, status) in [
        (HERE, &other, 429),
        (THERE, &house.admin, 429),
        (THERE, &other, 204),
    ] {
        let answer = upload(peer, token, Body::from("whole")).await.unwrap();
        assert_eq!(answer.status(), status, "{peer}");
    }
    drop(slow);
    let answer = upload(HERE, &house.admin, Body::from("whole")).await;
    assert_eq!(answer.unwrap().status(), 204);
}
