//! The socket: real connections, how long a silent one is kept, and the orderly stop.

use crate::support::{LONG, command, services, token};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_api::public::Scope;
use lazaret_edge::{Deadlines, EdgeSettings};
use lazaret_services::{Principal, Services};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A server on a socket of its own.
struct Served {
    address: SocketAddr,
    services: Services,
    stop: CancellationToken,
    server: JoinHandle<std::io::Result<()>>,
    host: lazaret_services::ports::fake_host::FakeHost,
    _directory: tempfile::TempDir,
}

impl Served {
    async fn with(deadlines: Deadlines) -> Self {
        let (services, host, directory) = services().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut settings =
            EdgeSettings::new(&format!("http://{address}"), address, stop.clone()).unwrap();
        settings.comment_every = Duration::from_millis(20);
        let router = lazaret_edge::router(services.clone(), settings);
        let serving = lazaret_edge::serve_within(listener, router, stop.clone(), deadlines);
        Self {
            address,
            services,
            stop,
            server: tokio::spawn(serving),
            host,
            _directory: directory,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn health(&self) -> String {
        format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", self.address)
    }

    /// A stream of a run that goes on and says nothing.
    async fn stream_of_a_run(&self) -> TcpStream {
        self.host
            .plays(|_, _| lazaret_services::ports::fake_host::Play {
                frames: Vec::new(),
                exit: None,
            });
        let token = token(&self.services, Scope::Read).await;
        let by = Principal::controller();
        let run = self.services.runs.delegate(&by, None, command()).await;
        let head = format!(
            "GET /api/v1/runs/{}/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Accept: text/event-stream\r\n\r\n",
            run.unwrap().run,
            self.address
        );
        let mut stream = self.connect().await;
        let begun = exchange(&mut stream, &head, "event: state").await;
        assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
        stream
    }
}

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

/// Waits until the server has ended the connection.
async fn ends(stream: &mut TcpStream, what: &str) {
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
    // A reset is an end as well.
    let _ = ended.unwrap_or_else(|_| panic!("still open: {what}"));
}

#[tokio::test]
async fn a_stop_ends_open_streams_and_then_the_server() {
    let served = Served::with(Deadlines::default()).await;
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
    let served = Served::with(Deadlines {
        head: Duration::from_millis(100),
        ..Deadlines::default()
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
    let served = Served::with(Deadlines {
        idle: Duration::from_millis(100),
        farewell: Duration::from_millis(100),
        ..Deadlines::default()
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
