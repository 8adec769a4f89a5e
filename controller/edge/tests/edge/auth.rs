//! The bearer key, and the throttle on bad ones.

use crate::support::{House, request};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use lazaret_api::public::Scope;
use std::net::SocketAddr;

async fn with_authorization(house: &House, values: &[&str]) -> StatusCode {
    let mut request = request("GET", "/api/v1/runs");
    for value in values {
        request = request.header("authorization", *value);
    }
    house.raw(request.body(Body::empty()).unwrap()).await.status
}

#[tokio::test]
async fn only_one_good_bearer_key_opens_anything() {
    let house = House::new().await;
    let good = format!("Bearer {}", house.admin);
    assert_eq!(with_authorization(&house, &[&good]).await, 200);
    assert_eq!(
        with_authorization(&house, &[&good.replace("Bearer", "bearer")]).await,
        200
    );
    let (token, changed) = (&house.admin, house.admin.replace("lzr_", "lzr-"));
    let cut = &token[..token.len() - 1];
    let bad = [
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        token.clone(),
        format!("Basic {token}"),
        format!("Token {token}"),
        format!("Bearer {changed}"),
        format!("Bearer {cut}"),
        format!("Bearer {token}x"),
        format!("Bearer {token} {token}"),
        format!("Bearer {}", token.to_uppercase()),
    ];
    for value in &bad {
        assert_eq!(with_authorization(&house, &[value]).await, 401, "{value}");
    }
    assert_eq!(with_authorization(&house, &[&good, &good]).await, 401);
}

#[tokio::test]
async fn a_revoked_key_stops_working_at_once() {
    let house = House::new().await;
    let made = house
        .post(
            "/api/v1/keys",
            &serde_json::json!({ "scope": "read", "name": "ci" }),
        )
        .await
        .json();
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    assert_eq!(with_authorization(&house, &[&bearer]).await, 200);
    let id = made["key"]["id"].as_str().unwrap();
    assert_eq!(
        house
            .send("DELETE", &format!("/api/v1/keys/{id}"), Body::empty())
            .await
            .status,
        200
    );
    assert_eq!(with_authorization(&house, &[&bearer]).await, 401);
    let listed = house.get("/api/v1/keys").await.text();
    assert!(listed.contains(id) && !listed.contains("token"), "{listed}");
}

/// A request from a peer, with a key and perhaps a forwarded address.
fn from(path: &str, peer: &str, token: &str, forwarded: Option<&str>) -> Request<Body> {
    let peer: SocketAddr = peer.parse().unwrap();
    let mut request = request("POST", path).header("authorization", format!("Bearer {token}"));
    if let Some(hops) = forwarded {
        request = request.header("x-forwarded-for", hops);
    }
    request
        .extension(ConnectInfo(peer))
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn twenty_bad_keys_make_a_client_wait_and_nobody_else() {
    for path in ["/api/v1/runs", "/mcp"] {
        let house = House::new().await;
        let good = house.token(Scope::Run).await;
        for _ in 0..20 {
            assert_eq!(
                house
                    .raw(from(path, "198.51.100.7:1", "lzr_wrong", None))
                    .await
                    .refusal()
                    .0,
                401
            );
        }
        let answer = house.raw(from(path, "198.51.100.7:2", &good, None)).await;
        assert_eq!(answer.refusal(), (429, "rate_limited".to_owned()));
        let wait: u32 = answer.headers["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((1..=601).contains(&wait), "{wait}");
        assert_eq!(answer.json()["retry_after"], wait);
        let other = house
            .raw(from(path, "198.51.100.8:1", &good, None))
            .await
            .status
            .as_u16();
        assert!(![401, 429].contains(&other), "{other}");
    }
}

#[tokio::test]
async fn forged_hops_do_not_reset_the_count() {
    let house =
        House::with(|settings| settings.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()])
            .await;
    for turn in 0..20 {
        // Through a proxy of ours: what stands left of the last hop was written by the client.
        let hops = format!("203.0.113.{turn}, 198.51.100.9");
        assert_eq!(
            house
                .raw(from("/mcp", "10.0.0.2:1", "lzr_wrong", Some(&hops)))
                .await
                .refusal()
                .0,
            401
        );
        // Directly: nothing the client writes counts.
        let hops = format!("203.0.113.{turn}");
        assert_eq!(
            house
                .raw(from("/mcp", "198.51.100.10:1", "lzr_wrong", Some(&hops)))
                .await
                .refusal()
                .0,
            401
        );
    }
    let through = house
        .raw(from(
            "/mcp",
            "10.0.0.2:1",
            "lzr_wrong",
            Some("1.2.3.4, 198.51.100.9"),
        ))
        .await;
    let direct = house
        .raw(from(
            "/mcp",
            "198.51.100.10:1",
            "lzr_wrong",
            Some("1.2.3.4"),
        ))
        .await;
    assert_eq!((through.refusal().0, direct.refusal().0), (429, 429));
    let another = house
        .raw(from(
            "/mcp",
            "10.0.0.2:1",
            "lzr_wrong",
            Some("198.51.100.9, 198.51.100.11"),
        ))
        .await;
    assert_eq!(another.refusal().0, 401);
}
