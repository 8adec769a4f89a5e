//! The gateway's own services.

use crate::bench::{Bench, SANDBOX};
use lazaret_api::guest::net;
use lazaret_domain::egress::EgressPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// Reads an HTTP message's head, and as much of a body as its length says.
async fn read_http(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut text = Vec::new();
    loop {
        let head = text
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
            .map(|at| at + 4);
        if let Some(head) = head {
            let lower = String::from_utf8_lossy(&text[..head]).to_lowercase();
            let body = lower
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.split("\r\n").next())
                .map_or(0, |length| length.parse().unwrap());
            if text.len() >= head + body {
                return String::from_utf8(text).unwrap();
            }
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        text.push(byte[0]);
    }
}

#[tokio::test]
async fn the_git_route_reaches_the_uplink_with_the_sandbox_that_the_cable_belongs_to() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("uplink.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let uplink = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_http(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npack")
            .await
            .unwrap();
        request
    });
    let mut bench = Bench::with_uplink(EgressPolicy::default(), socket);
    let connection = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
    let request = "POST /git/acme/demo.git/git-upload-pack?a=b HTTP/1.1\r\nHost: gateway.lazaret\r\nLazaret-Sandbox: s1111111111111111\r\n\
                   Lazaret-Admin: yes\r\nAuthorization: Bearer stolen\r\nCookie: a=b\r\nConnection: close, X-Secret, Host, Lazaret-Sandbox\r\nX-Secret: 1\r\n\
                   Git-Protocol: version=2\r\nContent-Length: 4\r\n\r\n0000";
    bench.guest.send(connection, request.as_bytes()).await;
    let ended = bench.guest.receive_to_end(connection).await;
    let answer = String::from_utf8(ended.received).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\npack"),
        "{answer}"
    );
    let seen = uplink.await.unwrap().to_lowercase();
    assert!(
        seen.starts_with("post /git/acme/demo.git/git-upload-pack?a=b http/1.1\r\n"),
        "{seen}"
    );
    assert!(
        seen.contains(&format!("lazaret-sandbox: {SANDBOX}\r\n"))
            && seen.contains("host: gateway.lazaret\r\n")
            && seen.contains("git-protocol: version=2\r\n"),
        "{seen}"
    );
    for gone in [
        "s1111111111111111",
        "lazaret-admin",
        "stolen",
        "cookie",
        "x-secret",
    ] {
        assert!(!seen.contains(gone), "{gone}: {seen}");
    }
    assert!(seen.ends_with("0000"), "{seen}");
    let record = bench.record("service").await;
    assert_eq!(
        (
            record.destination.as_str(),
            record.reason.as_str(),
            record.allowed
        ),
        ("gateway.lazaret", "git", true)
    );
}

#[tokio::test]
async fn without_an_uplink_git_gets_503_and_other_services_do_not_exist() {
    let mut bench = Bench::new(EgressPolicy::default());
    for (path, status, code) in [
        (
            "/git/acme/demo.git/info/refs?service=git-upload-pack",
            "503",
            "uplink_down",
        ),
        ("/model/v1/messages", "404", "no_such_route"),
        ("/", "404", "no_such_route"),
        ("/git/../model", "400", "invalid_path"),
    ] {
        let connection = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: gateway.lazaret\r\nConnection: close\r\n\r\n");
        bench.guest.send(connection, request.as_bytes()).await;
        let answer =
            String::from_utf8(bench.guest.receive_to_end(connection).await.received).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {answer}"
        );
        assert!(
            answer.contains("application/problem+json")
                && answer.contains(&format!("\"code\":\"{code}\"")),
            "{path}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_sandbox_has_a_few_places_on_the_way_to_the_controller_and_they_come_free() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("uplink.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut bench = Bench::with_uplink(EgressPolicy::default(), socket);
    let request = b"POST /git/acme/demo.git/git-upload-pack HTTP/1.1\r\nHost: gateway.lazaret\r\nConnection: close\r\nContent-Length: 4\r\n\r\n0000";
    let (mut held, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let connection = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
        bench.guest.send(connection, request).await;
        let (mut stream, _) = listener.accept().await.unwrap();
        read_http(&mut stream).await;
        // An answer that has begun and does not end.
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npack")
            .await
            .unwrap();
        held.push(connection);
        answers.push(stream);
    }
    let fifth = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
    bench.guest.send(fifth, request).await;
    let answer = String::from_utf8(bench.guest.receive_to_end(fifth).await.received).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 429 ") && answer.contains("\"code\":\"rate_limited\""),
        "{answer}"
    );
    assert!(answer.to_lowercase().contains("retry-after: 1\r\n"));
    let refused = bench.records();
    assert!(
        refused
            .iter()
            .any(|record| !record.allowed && record.kind == "service"),
        "{refused:?}"
    );
    // One is answered to its end: there is a place again.
    answers.remove(0).write_all(b"done").await.unwrap();
    let ended = bench.guest.receive_to_end(held.remove(0)).await;
    assert!(ended.received.ends_with(b"packdone"));
    let next = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
    bench.guest.send(next, request).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    assert!(read_http(&mut stream).await.starts_with("POST /git/"));
}
