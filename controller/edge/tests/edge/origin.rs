//! Foreign names in `Host` and `Origin`.

use crate::support::{House, LISTEN, PUBLIC};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use std::net::SocketAddr;

async fn asked(house: &House, path: &str, hosts: &[&str], origin: Option<&str>) -> (u16, String) {
    let peer: SocketAddr = "192.0.2.1:4000".parse().unwrap();
    let mut request = Request::builder().uri(path).extension(ConnectInfo(peer));
    for host in hosts {
        request = request.header("host", *host);
    }
    if let Some(origin) = origin {
        request = request.header("origin", origin);
    }
    let answer = house.raw(request.body(Body::empty()).unwrap()).await;
    if answer.status == 200 {
        (200, String::new())
    } else {
        answer.refusal()
    }
}

#[tokio::test]
async fn only_our_own_names_are_answered() {
    let house = House::new().await;
    let ours = [
        "127.0.0.1:7717",
        "localhost:7717",
        "LOCALHOST:7717",
        "[::1]:7717",
        "lazaret.example",
        "Lazaret.Example:443",
    ];
    for host in ours {
        assert_eq!(
            asked(&house, "/healthz", &[host], None).await.0,
            200,
            "{host}"
        );
    }
    let foreign = [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1:7718",
        "localhost",
        "localhost:7717.evil.example",
        "[::1]",
        "[::1]:1",
        "[::]:7717",
        "lazaret.example:80",
        "lazaret.example:7717",
        "lazaret.example.",
        "x@localhost:7717",
        "localhost:7717@evil.example",
        "",
        " ",
        "localhost:",
        "127.1:7717",
        "2130706433:7717",
        "lazaret.example.evil.example",
    ];
    for path in ["/healthz", "/mcp", "/api/v1/runs", "/nothing"] {
        for host in foreign {
            assert_eq!(
                asked(&house, path, &[host], None).await,
                (403, "foreign_host".to_owned()),
                "{path} {host:?}"
            );
        }
        assert_eq!(asked(&house, path, &[], None).await.1, "foreign_host");
        assert_eq!(
            asked(&house, path, &[LISTEN, LISTEN], None).await.1,
            "foreign_host"
        );
        assert_eq!(
            asked(&house, path, &[LISTEN, "evil.example"], None).await.1,
            "foreign_host"
        );
    }
    // The absolute form names the host too, and must agree.
    assert_eq!(
        asked(&house, "http://evil.example/healthz", &[LISTEN], None)
            .await
            .1,
        "foreign_host"
    );
    assert_eq!(
        asked(&house, "http://127.0.0.1:7717/healthz", &[LISTEN], None)
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn pages_of_other_sites_are_refused_before_anything_else() {
    let house = House::new().await;
    let ours = [
        PUBLIC,
        "https://LAZARET.example:443",
        "http://localhost:7717",
        "http://127.0.0.1:7717",
        "http://[::1]:7717",
    ];
    for origin in ours {
        assert_eq!(
            asked(&house, "/healthz", &[LISTEN], Some(origin)).await.0,
            200,
            "{origin}"
        );
    }
    let foreign = [
        "null",
        "",
        "https://evil.example",
        "http://lazaret.example",
        "https://lazaret.example:444",
        "http://localhost",
        "http://localhost:7718",
        "https://localhost:7717",
        "http://127.0.0.1:7717/",
        "http://localhost:7717 http://evil.example",
        "file://",
        "chrome-extension://abc",
        "https://lazaret.example.evil.example",
    ];
    for path in [
        "/healthz",
        "/mcp",
        "/api/v1/runs/r0000000000000000/events",
        "/nothing",
    ] {
        for origin in foreign {
            let got = asked(&house, path, &[LISTEN], Some(origin)).await;
            assert_eq!(got, (403, "foreign_origin".to_owned()), "{path} {origin:?}");
        }
    }
}
