//! The uplink between a gateway and a controller, both played by the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use futures::StreamExt;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use lazaret_api::uplink::SANDBOX_HEADER;
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

struct Host {
    dir: TempDir,
}

struct Uplink {
    child: Child,
    controller: JoinHandle<()>,
}

impl Uplink {
    /// Ends as when the SSH connection is lost.
    async fn end(mut self) {
        self.controller.abort();
        assert!(self.child.wait().await.unwrap().success());
    }
}

impl Host {
    fn new() -> Self {
        Self {
            dir: tempfile::Builder::new().prefix("lzu").tempdir().unwrap(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("uplink.sock")
    }

    /// An uplink whose controller answers with this router.
    fn uplink(&self, router: Router) -> Uplink {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lazaret-host"))
            .args(["host", "gate", "--state"])
            .arg(self.dir.path())
            .env("SSH_ORIGINAL_COMMAND", "uplink")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let io = tokio::io::join(child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let controller = tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server
                .serve_connection(TokioIo::new(io), TowerToHyperService::new(router))
                .await;
        });
        Uplink { child, controller }
    }

    async fn connected(&self) -> UnixStream {
        loop {
            if let Ok(stream) = UnixStream::connect(self.socket()).await {
                return stream;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    async fn ask(&self, request: Request) -> (StatusCode, bytes::Bytes) {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connected().await))
                .await
                .unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status();
        (
            status,
            answer.into_body().collect().await.unwrap().to_bytes(),
        )
    }
}

fn named(name: &'static str) -> Router {
    Router::new().fallback(move |request: Request| async move {
        let sandbox = request
            .headers()
            .get(SANDBOX_HEADER)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("-")
            .to_owned();
        let uri = request
            .uri()
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        format!("{name} {sandbox} {uri} {}", body.len())
    })
}

fn request(path: &str, body: Body) -> Request {
    Request::post(path)
        .header("host", "gateway.lazaret")
        .header(SANDBOX_HEADER, "s0123456789abcdef")
        .body(body)
        .unwrap()
}

#[tokio::test]
async fn a_request_reaches_the_controller_with_its_sandbox_path_and_body() {
    let host = Host::new();
    let _uplink = host.uplink(named("controller"));
    let (status, body) = host
        .ask(request(
            "/git/acme/demo.git/git-upload-pack?x=1",
            Body::from(vec![7; 3 << 20]),
        ))
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        body,
        format!(
            "controller s0123456789abcdef /git/acme/demo.git/git-upload-pack?x=1 {}",
            3 << 20
        )
    );
}

#[tokio::test]
async fn bodies_stream_both_ways_at_once() {
    let host = Host::new();
    let echo = Router::new().fallback(|request: Request| async move {
        Body::from_stream(request.into_body().into_data_stream())
    });
    let _uplink = host.uplink(echo);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        TokioExecutor::new(),
        TokioIo::new(host.connected().await),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let (input, body) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(body));
    let request = Request::post("http://gateway.lazaret/echo")
        .body(body)
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let mut output = Body::new(answer.into_body()).into_data_stream();
    // Each part comes back before the next is sent.
    for part in ["one", "two", "three"] {
        input.send(Ok(part.into())).await.unwrap();
        assert_eq!(output.next().await.unwrap().unwrap(), part);
    }
    drop(input);
    let rest: Vec<_> = StreamExt::collect(output).await;
    assert!(
        rest.into_iter()
            .all(|part| part.is_ok_and(|part| part.is_empty()))
    );
}

#[tokio::test]
async fn a_newer_uplink_takes_over_and_the_name_goes_with_the_last() {
    let host = Host::new();
    let old = host.uplink(named("old"));
    assert!(
        host.ask(request("/", Body::empty()))
            .await
            .1
            .starts_with(b"old")
    );
    let new = host.uplink(named("new"));
    while !host
        .ask(request("/", Body::empty()))
        .await
        .1
        .starts_with(b"new")
    {}
    old.end().await;
    assert!(
        host.ask(request("/", Body::empty()))
            .await
            .1
            .starts_with(b"new"),
        "the older one leaves the name alone"
    );
    new.end().await;
    assert!(!host.socket().exists());
}
