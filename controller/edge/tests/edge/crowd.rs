//! Many connections of one client, and clients that do not take what they asked for.

use crate::served::{Served, ends, exchange};
use crate::support::{LONG, command, token};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_api::public::Scope;
use lazaret_services::Principal;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

const STALL: Duration = Duration::from_secs(1);
/// More than the kernel holds for a connection.
const LARGE: usize = 6_000_000;

impl Served {
    /// The head of a request for a large answer.
    async fn large(&self) -> String {
        let by = Principal::controller();
        let runs = &self.services.runs;
        let run = runs.delegate(&by, None, command()).await.unwrap().run;
        let done = runs.wait(&by, &run, LONG).await.unwrap();
        assert!(done.outcome.is_some());
        let (name, bytes) = ("large.bin".parse().unwrap(), vec![7; LARGE]);
        let put = runs.put_file(&by, &run, &name, bytes.into()).await;
        put.unwrap();
        let token = token(&self.services, Scope::Read).await;
        format!(
            "GET /api/v1/runs/{run}/artifacts/large.bin HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
            self.address
        )
    }

    /// A connection whose kernel takes little that is not read.
    async fn narrow(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Asks on new connections until one is not refused.
    async fn let_in(&self) -> TcpStream {
        let again = async {
            loop {
                let mut stream = self.connect().await;
                let health = exchange(&mut stream, &self.health(), "\r\n\r\n").await;
                if health.starts_with("HTTP/1.1 200") {
                    return stream;
                }
                assert!(health.starts_with("HTTP/1.1 429"), "{health}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, again).await.expect("a place comes free")
    }
}

#[tokio::test]
async fn a_client_with_too_many_connections_is_told_so_and_keeps_those_it_has() {
    let served = Served::with(|settings| settings.connections_per_client = 2).await;
    let mut first = served.connect().await;
    let health = exchange(&mut first, &served.health(), "\"ok\"").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let second = served.connect().await;

    let mut third = served.connect().await;
    let refused = exchange(&mut third, &served.health(), "\"code\"").await;
    let refused = refused.to_lowercase();
    for part in [
        "http/1.1 429",
        "retry-after: 5",
        "connection: close",
        "content-type: application/problem+json",
        "x-content-type-options: nosniff",
        "rate_limited",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    ends(&mut third, "one that was refused").await;

    let socket = TokioIo::new(served.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), socket)
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get(format!("http://{}/healthz", served.address))
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 429);
    answer.into_body().collect().await.unwrap();
    let ended = timeout(LONG, connection).await;
    let _ = ended.expect("the connection ends").unwrap();

    let health = exchange(&mut first, &served.health(), "\"ok\"").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    drop(second);
    served.let_in().await;
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_is_cut_and_its_place_comes_free() {
    let served = Served::with(|settings| {
        settings.deadlines.stall = STALL;
        settings.connections_per_client = 1;
    })
    .await;
    let head = served.large().await;
    let mut lazy = served.narrow().await;
    lazy.write_all(head.as_bytes()).await.unwrap();
    let mut begun = [0; 12];
    lazy.read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    served.let_in().await;
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = timeout(LONG, lazy.read_to_end(&mut rest))
        .await
        .expect("it was cut");
    assert!(rest.len() < LARGE, "all was sent");
}

#[tokio::test]
async fn who_takes_an_answer_slowly_gets_all_of_it() {
    let served = Served::with(|settings| {
        settings.deadlines.stall = STALL;
        settings.deadlines.idle = STALL;
        settings.deadlines.farewell = Duration::from_millis(10);
    })
    .await;
    let head = served.large().await;
    let mut slow = served.narrow().await;
    slow.write_all(head.as_bytes()).await.unwrap();
    let begun = std::time::Instant::now();
    let (mut whole, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
    while whole.len() < LARGE || !whole.ends_with(&[7; 100]) {
        let count = timeout(LONG, slow.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(count > 0, "cut after {} bytes", whole.len());
        whole.extend_from_slice(&buffer[..count]);
        let head = whole.windows(4).position(|four| four == b"\r\n\r\n");
        if head.is_some_and(|head| whole.len() == head + 4 + LARGE) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() > STALL, "not slow enough to show anything");
}

#[tokio::test]
async fn an_http2_stream_that_is_not_taken_ends_its_connection() {
    let served = Served::with(|settings| settings.deadlines.stall = STALL).await;
    let head = served.large().await;
    let line = |name: &str| {
        let line = head.lines().find(|line| line.contains(name)).unwrap();
        line.split(' ').collect::<Vec<_>>()[1..].join(" ")
    };
    let path = line("GET").split(' ').next().unwrap().to_owned();
    let socket = TokioIo::new(served.connect().await);
    // It goes on reading from its socket and answers pings; only this stream's window stays shut.
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(65_535)
        .handshake(socket)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get(format!("http://{}{path}", served.address))
        .header("authorization", line("Authorization"))
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let ended = timeout(LONG, connection).await;
    let _ = ended.expect("the connection is cut").unwrap();
    assert!(sender.is_closed());
    assert!(answer.into_body().collect().await.is_err());
}
