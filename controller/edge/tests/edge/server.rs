//! The socket: real connections, and the orderly stop.

use crate::support::{LONG, command, services, token};
use lazaret_api::public::Scope;
use lazaret_edge::EdgeSettings;
use lazaret_services::Principal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Sends one request head and reads until `wanted` was seen or the connection ends.
async fn exchange(stream: &mut TcpStream, head: &str, wanted: &str) -> String {
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let count = tokio::time::timeout(LONG, stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        if count == 0 {
            break;
        }
        seen.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn a_stop_ends_open_streams_and_then_the_server() {
    let (services, host, _directory) = services().await;
    host.plays(|_, _| lazaret_services::ports::fake_host::Play {
        frames: Vec::new(),
        exit: None,
    });
    let token = token(&services, Scope::Read).await;
    let run = services
        .runs
        .delegate(&Principal::controller(), None, command())
        .await
        .unwrap()
        .run;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let settings = EdgeSettings::new(&format!("http://{address}"), address, stop.clone()).unwrap();
    let router = lazaret_edge::router(services.clone(), settings);
    let server = tokio::spawn(lazaret_edge::serve(listener, router, stop.clone()));

    let mut idle = TcpStream::connect(address).await.unwrap();
    let health = exchange(
        &mut idle,
        &format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n"),
        "\"ok\"",
    )
    .await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let mut streaming = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /api/v1/runs/{run}/events HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Accept: text/event-stream\r\n\r\n"
    );
    let begun = exchange(&mut streaming, &head, "event: state").await;
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");

    stop.cancel();
    tokio::time::timeout(LONG, server)
        .await
        .expect("the server stops")
        .unwrap()
        .unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, streaming.read_to_end(&mut rest))
        .await
        .expect("the stream ends")
        .unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    services.stop().await;
}
