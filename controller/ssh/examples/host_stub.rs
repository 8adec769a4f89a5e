//! A stand-in for the host side, for the tests of the SSH client: it takes the place of
//! `lazaret host gate`, answers the host API in the way the file `mode` says, and writes down what
//! it was asked to run and what its uplink was answered.
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    reason = "a stand-in of the tests: a failure is the report"
)]

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_api::uplink::SANDBOX_HEADER;
use lazaret_api::{PROTOCOL, PROTOCOL_HEADER};
use lazaret_domain::{Denial, DenialCode};
use std::convert::Infallible;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

type Body = BoxBody<Bytes, Infallible>;

fn main() -> ExitCode {
    let state = PathBuf::from(std::env::args().next_back().unwrap_or_default());
    let command = std::env::var("SSH_ORIGINAL_COMMAND").unwrap_or_default();
    note(
        &state,
        "commands",
        &format!(
            "{command:?} connection {}",
            std::env::var("SSH_CONNECTION").unwrap_or_default()
        ),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    match command.as_str() {
        "session" if mode(&state) == "die" => {
            let _ = std::io::stderr().write_all(b"the state directory is damaged\n");
            ExitCode::from(3)
        }
        "session" => {
            runtime.block_on(session(state));
            runtime.shutdown_background();
            ExitCode::SUCCESS
        }
        "uplink" => {
            runtime.block_on(uplink(state));
            runtime.shutdown_background();
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(126),
    }
}

fn mode(state: &Path) -> String {
    std::fs::read_to_string(state.join("mode"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn note(state: &Path, file: &str, line: &str) {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(state.join(file));
    let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}

fn stdio() -> TokioIo<tokio::io::Join<tokio::io::Stdin, tokio::io::Stdout>> {
    TokioIo::new(tokio::io::join(tokio::io::stdin(), tokio::io::stdout()))
}

async fn session(state: PathBuf) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(answer(&state, request).await) }
    });
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(stdio(), service)
        .await;
}

async fn answer(state: &Path, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let protocol = if mode(state) == "old" {
        PROTOCOL + 98
    } else {
        PROTOCOL
    };
    note(state, "requests", &format!("{} {path}", request.method()));
    let mut response = match path.as_str() {
        "/v1/ping" => Response::new(full("")),
        "/v1/sandboxes" => Response::new(full("[]")),
        // Not the agreed form, in both ways.
        "/v1/info" => status(StatusCode::INTERNAL_SERVER_ERROR, "<html>planted</html>"),
        _ if path.ends_with("/egress") => Response::new(full("{\"records\": 7}")),
        // The first bytes at once, then nothing, for as long as somebody listens.
        _ if path.ends_with("/output") => {
            let start = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"start")))]);
            let body = futures::StreamExt::chain(start, futures::stream::pending());
            Response::new(BodyExt::boxed(StreamBody::new(body)))
        }
        _ if path.ends_with("/files") => {
            let received = request
                .into_body()
                .collect()
                .await
                .map(|body| body.to_bytes().len())
                .unwrap_or_default();
            note(state, "received", &received.to_string());
            Response::new(full(""))
        }
        _ => {
            let denial = Denial::new(DenialCode::SandboxNotFound, "there is no such sandbox here");
            status(
                StatusCode::NOT_FOUND,
                &serde_json::to_string(&denial).unwrap_or_default(),
            )
        }
    };
    response
        .headers_mut()
        .insert(PROTOCOL_HEADER, HeaderValue::from(protocol));
    response
}

fn status(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response
}

fn full(text: &str) -> Body {
    Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed()
}

/// Asks the controller a few things and then keeps the channel open.
async fn uplink(state: PathBuf) {
    let Ok((mut requests, connection)) =
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), stdio())
            .await
    else {
        return;
    };
    let connection = tokio::spawn(connection);
    for (path, sandbox) in [
        ("/v1/ping", None),
        ("/git/acme/demo", Some("s0123456789abcdef")),
        ("/git/acme/demo", None),
        ("/git/acme/demo", Some("../../etc/passwd")),
    ] {
        let mut request = Request::get(format!("http://controller{path}"));
        if let Some(sandbox) = sandbox {
            request = request.header(SANDBOX_HEADER, sandbox);
        }
        let Ok(request) = request.body(Full::default()) else {
            continue;
        };
        let line = match requests.send_request(request).await {
            Ok(response) => {
                let status = response.status().as_u16();
                let body = response
                    .into_body()
                    .collect()
                    .await
                    .map(|body| body.to_bytes())
                    .unwrap_or_default();
                format!("{path} {status} {}", String::from_utf8_lossy(&body))
            }
            Err(error) => format!("{path} {error}"),
        };
        note(&state, "uplink", &line);
    }
    note(&state, "uplink", "end");
    let _ = connection.await;
}
