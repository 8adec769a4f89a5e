//! The socket: real connections, how long a silent one is kept, and the orderly stop.

use crate::served::{Served, ends, exchange};
use crate::support::LONG;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_stop_ends_open_streams_and_then_the_server() {
    let served = Served::with(|_| {}).await;
    let mut idle = served.connect().await;
    let health = exchange(&mut idle, &served.health(), "\"ok\"").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let _silent = served.connect().await;
    let mut streaming = served.stream_of_a_run().await;

    served.stop.cancel();
    tokio::time::timeout(LONG, served.server)
        .await
        .expect("the server stops")
        .unwrap()
        .unwrap();
    ends(&mut streaming, "the stream").await;
    assert!(TcpStream::connect(served.address).await.is_err());
    served.services.stop().await;
}

#[tokio::test]
async fn who_says_nothing_loses_the_connection_and_who_asks_does_not() {
    let served = Served::with(|settings| {
        settings.deadlines.head = Duration::from_millis(100);
    })
    .await;
    let openings = [
        "",
        "PRI",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r",
        "GET /healthz HTTP/1.1\r\n",
    ];
    for opening in openings {
        let mut silent = served.connect().await;
        silent.write_all(opening.as_bytes()).await.unwrap();
        let mut asking = served.connect().await;
        let health = exchange(&mut asking, &served.health(), "\"ok\"").await;
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
        ends(&mut silent, opening).await;
        // One that asked once and then says nothing.
        ends(&mut asking, "an idle one").await;
    }
}

#[tokio::test]
async fn an_http2_connection_without_a_request_ends_and_a_silent_stream_does_not() {
    let served = Served::with(|settings| {
        settings.deadlines.idle = Duration::from_millis(100);
        settings.deadlines.farewell = Duration::from_millis(100);
    })
    .await;
    let mut streaming = served.stream_of_a_run().await;
    // The preface alone.
    let mut silent = served.connect().await;
    silent
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    ends(&mut silent, "only a preface").await;
    // A client that answers pings, and has asked once.
    let socket = TokioIo::new(served.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), socket)
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get(format!("http://{}/healthz", served.address))
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers().contains_key("content-length"));
    answer.into_body().collect().await.unwrap();
    let ended = tokio::time::timeout(LONG, connection).await;
    let _ = ended.expect("the connection ends").unwrap();
    assert!(sender.is_closed());
    // The stream has been silent but for its comments for longer than that.
    let mut comments = [0; 4096];
    for _ in 0..10 {
        let count = tokio::time::timeout(LONG, streaming.read(&mut comments))
            .await
            .unwrap()
            .unwrap();
        assert!(count > 0, "the stream has ended");
    }
}
