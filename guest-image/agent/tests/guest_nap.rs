//! A guest that naps: the routes on a machine of paper, and the real thing under software emulation.
#![allow(clippy::unwrap_used, reason = "a failing test is the report")]

#[path = "support/client.rs"]
mod client;
#[path = "support/guest.rs"]
mod guest;

use base64::Engine as _;
use bytes::Bytes;
use client::identity;
use guest::TestGuest;
use http::{Method, StatusCode};
use lazaret_api::guest::{Adopt, Adopted, Clock, Health, Wake};
use lazaret_domain::DenialCode;
use serde_json::json;

fn wake() -> Wake {
    Wake {
        wall_clock_ns: 7,
        entropy: base64::engine::general_purpose::STANDARD.encode([2_u8; 64]),
    }
}

fn another() -> Adopt {
    Adopt {
        sandbox: "sfedcba9876543210".parse().unwrap(),
        ..identity()
    }
}

#[tokio::test]
async fn a_guest_that_naps_does_nothing_until_it_is_woken() {
    let guest = TestGuest::new().await;
    let early = guest.post("/v1/nap", &json!({})).await;
    assert_eq!(early.denial().code, DenialCode::SandboxNotReady);
    guest.adopt().await;
    for _ in 0..2 {
        assert_eq!(
            guest.post("/v1/nap", &json!({})).await.status,
            StatusCode::OK
        );
    }
    let health: Health = guest.get("/v1/health").await.json();
    assert!(health.adopted && health.napping);
    for (method, path) in [
        (Method::POST, "/v1/exec"),
        (Method::GET, "/v1/list"),
        (Method::GET, "/v1/files"),
        (Method::PUT, "/v1/files"),
    ] {
        let answer = guest.call(method, path, Bytes::new()).await;
        assert_eq!(answer.denial().code, DenialCode::SandboxNotReady, "{path}");
    }
    let clock: Clock = guest.post("/v1/wake", &wake()).await.json();
    assert_eq!(clock.wall_clock_ns, 7);
    // Woken, it has the time, which can be set again; its work still stands still.
    let health: Health = guest.get("/v1/health").await.json();
    assert!(health.napping);
    let again = Bytes::from_static(b"{\"wall_clock_ns\":8}");
    let clock: Clock = guest.call(Method::PUT, "/v1/clock", again).await.json();
    assert_eq!(clock.wall_clock_ns, 8);
    for _ in 0..2 {
        let up = guest.post("/v1/go-on", &json!({})).await;
        assert_eq!(up.status, StatusCode::OK);
    }
    assert_eq!(guest.run(&["echo", "up"], b"").await.stdout, "up\n");
    let health: Health = guest.get("/v1/health").await.json();
    assert!(!health.napping);
}

#[tokio::test]
async fn only_a_guest_that_naps_becomes_another() {
    let guest = TestGuest::adopted().await;
    let refused =
        |answer: client::Answer| assert_eq!(answer.denial().code, DenialCode::AlreadyExists);
    refused(guest.post("/v1/adopt", &another()).await);
    guest.post("/v1/nap", &json!({})).await;
    refused(guest.adopt().await);
    let adopted: Adopted = guest.post("/v1/adopt", &another()).await.json();
    assert_eq!(adopted.boot_id, "another");
    let health: Health = guest.get("/v1/health").await.json();
    assert_eq!(health.boot_id.as_deref(), Some("another"));
    assert!(!health.napping);
    refused(guest.post("/v1/adopt", &another()).await);
}

#[tokio::test]
async fn naps_and_wakes_out_of_form_are_refused() {
    let guest = TestGuest::adopted().await;
    let codes = [
        (
            guest.post("/v1/nap?long=1", &json!({})).await,
            DenialCode::UnknownField,
        ),
        (guest.get("/v1/nap").await, DenialCode::MethodNotAllowed),
        (guest.get("/v1/wake").await, DenialCode::MethodNotAllowed),
        (
            guest.post("/v1/wake", &json!({"wall_clock_ns": 1})).await,
            DenialCode::InvalidRequest,
        ),
    ];
    for (answer, code) in codes {
        assert_eq!(answer.denial().code, code);
    }
}
