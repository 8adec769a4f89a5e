//! The route against a real git and a real git host, and against hosts that misbehave.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::any;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_domain::{DenialCode, SandboxId};
use lazaret_github::{FixedGrants, GitRoute, RouteBody};
use lazaret_test::peers::{GitServer, Served};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;

const ADVERTISEMENT: &str = "/git/acme/demo.git/info/refs?service=git-upload-pack";

fn sandbox() -> SandboxId {
    "s0123456789abcdef".parse().unwrap()
}

fn route(base: &str) -> GitRoute {
    let grants = FixedGrants::default().with(sandbox(), "acme/demo".parse().unwrap());
    GitRoute::new(base.parse().unwrap(), Arc::new(grants)).unwrap()
}

/// Puts the route behind a port, as the shim and the uplink would, for a git to talk to.
async fn serve(route: GitRoute) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let route = route.clone();
            let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
                let route = route.clone();
                async move {
                    request.extensions_mut().insert(sandbox());
                    Ok::<_, Infallible>(route.answer(request).await)
                }
            });
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move {
                server
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .unwrap();
            });
        }
    });
    address
}

async fn git(args: &[&str], cwd: &Path) -> std::process::Output {
    let mut command = tokio::process::Command::new("git");
    command
        .args(args)
        .current_dir(cwd)
        .env("HOME", cwd)
        .env("GIT_TERMINAL_PROMPT", "0");
    command.output().await.unwrap()
}

fn ask(target: &str) -> Request<Full<Bytes>> {
    let mut request = Request::get(target).body(Full::default()).unwrap();
    request.extensions_mut().insert(sandbox());
    request
}

async fn code(response: Response<RouteBody>) -> (StatusCode, DenialCode) {
    let status = response.status();
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/problem+json"
    );
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: lazaret_api::public::Problem = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem.status, status.as_u16());
    (status, problem.code)
}

#[tokio::test]
async fn git_clones_and_fetches_through_the_route() {
    let (server, dir) = (
        GitServer::start().await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    // Large and incompressible enough that the pack is streamed in many parts.
    let noise: String = (0_u64..400_000)
        .map(|n| format!("{:x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
        .collect();
    server
        .commit("acme/demo", &[("README.md", "hello\n"), ("noise", &noise)])
        .await
        .unwrap();
    let url = format!(
        "http://{}/git/acme/demo",
        serve(route(&server.base_url())).await
    );
    let cloned = git(&["clone", "--quiet", &url, "demo"], dir.path()).await;
    assert!(
        cloned.status.success(),
        "{}",
        String::from_utf8_lossy(&cloned.stderr)
    );
    assert_eq!(
        std::fs::read_to_string(dir.path().join("demo/noise")).unwrap(),
        noise
    );

    let second = server
        .commit("acme/demo", &[("more", "more\n")])
        .await
        .unwrap();
    let pulled = git(&["-C", "demo", "pull", "--quiet"], dir.path()).await;
    assert!(
        pulled.status.success(),
        "{}",
        String::from_utf8_lossy(&pulled.stderr)
    );
    let head = git(&["-C", "demo", "rev-parse", "HEAD"], dir.path()).await;
    assert_eq!(String::from_utf8_lossy(&head.stdout).trim(), second);
}

#[tokio::test]
async fn a_push_is_refused_before_the_git_host_hears_of_it() {
    let (server, dir) = (
        GitServer::start().await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    server
        .commit("acme/demo", &[("README.md", "hello\n")])
        .await
        .unwrap();
    let route = route(&server.base_url());
    let url = format!("http://{}/git/acme/demo", serve(route.clone()).await);
    git(&["clone", "--quiet", &url, "demo"], dir.path()).await;
    let asked = server.asked().len();
    let pushed = git(&["-C", "demo", "push", "origin", "HEAD:other"], dir.path()).await;
    assert!(!pushed.status.success());
    assert!(
        String::from_utf8_lossy(&pushed.stderr).contains("403"),
        "{pushed:?}"
    );
    assert_eq!(server.asked().len(), asked);
    let refused = route
        .answer(ask("/git/acme/demo/info/refs?service=git-receive-pack"))
        .await;
    assert_eq!(
        code(refused).await,
        (StatusCode::FORBIDDEN, DenialCode::PushRefused)
    );
}

#[tokio::test]
async fn a_repository_that_was_not_granted_is_refused_before_the_git_host_hears_of_it() {
    let server = GitServer::start().await.unwrap();
    server
        .commit("acme/other", &[("README.md", "hello\n")])
        .await
        .unwrap();
    let route = route(&server.base_url());
    let target = "/git/acme/other/info/refs?service=git-upload-pack";
    let refused = code(route.answer(ask(target)).await).await;
    assert_eq!(refused, (StatusCode::FORBIDDEN, DenialCode::RepoNotGranted));
    let nobody = Request::get(ADVERTISEMENT)
        .body(Full::<Bytes>::default())
        .unwrap();
    assert_eq!(
        code(route.answer(nobody).await).await,
        (StatusCode::FORBIDDEN, DenialCode::RepoNotGranted)
    );
    let mut neighbour = ask(ADVERTISEMENT);
    neighbour
        .extensions_mut()
        .insert("s0000000000000000".parse::<SandboxId>().unwrap());
    assert_eq!(
        code(route.answer(neighbour).await).await,
        (StatusCode::FORBIDDEN, DenialCode::RepoNotGranted)
    );
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn no_credential_and_nothing_about_the_guest_goes_out_and_no_cookie_comes_back() {
    let answer = || async {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (
                "content-type",
                "application/x-git-upload-pack-advertisement",
            ),
            ("set-cookie", "session=planted"),
            ("www-authenticate", "Basic realm=planted"),
            ("x-powered-by", "planted"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        (headers, "0000")
    };
    let host = Served::start(Router::new().fallback(any(answer)))
        .await
        .unwrap();
    let mut request = ask(ADVERTISEMENT);
    for (name, value) in [
        ("authorization", "Bearer planted"),
        ("proxy-authorization", "planted"),
        ("cookie", "planted=1"),
        ("x-forwarded-for", "10.9.8.7"),
        ("lazaret-sandbox", "s0123456789abcdef"),
        ("user-agent", "planted"),
        ("git-protocol", "version=2"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let response = route(&format!("http://{}", host.address()))
        .answer(request)
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    let back: Vec<_> = response
        .headers()
        .keys()
        .map(|name| name.as_str().to_owned())
        .collect();
    assert_eq!(back, ["content-type"]);
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "0000"
    );

    let asked = &host.asked()[0];
    assert_eq!(
        asked.uri,
        "/acme/demo.git/info/refs?service=git-upload-pack"
    );
    assert_eq!(asked.headers["git-protocol"], "version=2");
    let text = format!("{:?}", asked.headers);
    assert!(
        !text.contains("planted")
            && !text.contains("10.9.8.7")
            && !text.contains("s0123456789abcdef"),
        "{text}"
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Served::start(Router::new().fallback(any(|| async { "secret" })))
        .await
        .unwrap();
    let target = format!("http://{}/acme/demo.git/info/refs", elsewhere.address());
    for status in [301, 302, 307, 308] {
        let location = target.clone();
        let redirect = move || {
            let location = location.clone();
            async move {
                (
                    StatusCode::from_u16(status).unwrap(),
                    [(header::LOCATION, location)],
                )
            }
        };
        let host = Served::start(Router::new().fallback(any(redirect)))
            .await
            .unwrap();
        let refused = route(&format!("http://{}", host.address()))
            .answer(ask(ADVERTISEMENT))
            .await;
        assert!(refused.headers().get(header::LOCATION).is_none());
        assert_eq!(
            code(refused).await,
            (StatusCode::BAD_GATEWAY, DenialCode::GitUpstream)
        );
    }
    assert_eq!(elsewhere.asked().len(), 0);
}

#[tokio::test]
async fn what_is_not_a_git_hosts_answer_is_not_passed_on() {
    let page = || async {
        (
            [(header::CONTENT_TYPE, "text/html")],
            "<script>planted</script>",
        )
    };
    let host = Served::start(Router::new().fallback(any(page)))
        .await
        .unwrap();
    let answer = route(&format!("http://{}", host.address()))
        .answer(ask(ADVERTISEMENT))
        .await;
    assert_eq!(
        code(answer).await,
        (StatusCode::BAD_GATEWAY, DenialCode::GitUpstream)
    );
    for (theirs, ours) in [
        (401, 404),
        (403, 404),
        (404, 404),
        (429, 502),
        (500, 502),
        (204, 502),
    ] {
        let broken = move || async move { StatusCode::from_u16(theirs).unwrap() };
        let host = Served::start(Router::new().fallback(any(broken)))
            .await
            .unwrap();
        let answer = route(&format!("http://{}", host.address()))
            .answer(ask(ADVERTISEMENT))
            .await;
        let expected = (StatusCode::from_u16(ours).unwrap(), DenialCode::GitUpstream);
        assert_eq!(code(answer).await, expected, "{theirs}");
    }
}

#[tokio::test]
async fn a_git_host_that_is_not_there_is_a_bad_gateway() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let answer = route(&format!("http://{closed}"))
        .answer(ask(ADVERTISEMENT))
        .await;
    assert_eq!(
        code(answer).await,
        (StatusCode::BAD_GATEWAY, DenialCode::GitUpstream)
    );
}

#[tokio::test]
async fn a_request_for_a_pack_is_bounded() {
    let host = Served::start(
        Router::new().fallback(any(|body: Bytes| async move { body.len().to_string() })),
    )
    .await
    .unwrap();
    let large = Full::new(Bytes::from(vec![0; (16 << 20) + 1]));
    let mut request = Request::post("/git/acme/demo.git/git-upload-pack")
        .body(large)
        .unwrap();
    request.extensions_mut().insert(sandbox());
    let answer = route(&format!("http://{}", host.address()))
        .answer(request)
        .await;
    assert_eq!(
        code(answer).await,
        (StatusCode::PAYLOAD_TOO_LARGE, DenialCode::TooLarge)
    );
    assert_eq!(host.asked().len(), 0);
}
