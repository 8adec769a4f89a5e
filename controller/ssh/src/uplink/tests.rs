//! The server with a host of the test at the other end.

use super::*;
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use http_body_util::Empty;
use hyper::client::conn::http2::{self, SendRequest};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A host's end of an uplink whose one route answers only when it has read the whole request.
async fn host() -> SendRequest<Body> {
    let routes = UplinkService::new(tower::service_fn(|request: Request<Incoming>| async move {
        let length = request
            .into_body()
            .collect()
            .await
            .map(|body| body.to_bytes().len());
        let text = format!("{}", length.unwrap_or_default());
        Ok(Response::new(
            Full::new(Bytes::from(text))
                .map_err(|never| match never {})
                .boxed_unsync(),
        ))
    }));
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let uplink = Uplink::new("host".parse().unwrap(), routes);
        uplink.serve(theirs).await
    });
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(ours))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

fn request(sandbox: &str, body: Body) -> Request<Body> {
    Request::post("http://controller/git/acme/demo.git/git-upload-pack")
        .header(SANDBOX_HEADER, sandbox)
        .body(body)
        .unwrap()
}

fn nothing() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that begins and does not end until the sender is dropped.
fn open_body() -> (tokio::sync::mpsc::Sender<()>, Body) {
    let (held, mut dropped) = tokio::sync::mpsc::channel::<()>(1);
    let stream = futures::stream::once(async { Ok(Bytes::from_static(b"0000")) }).chain(
        futures::stream::once(async move {
            dropped.recv().await;
            Ok(Bytes::from_static(b"0000"))
        }),
    );
    let body = http_body_util::StreamBody::new(stream.map_ok(hyper::body::Frame::data));
    (held, body.boxed_unsync())
}

#[tokio::test]
async fn uploads_of_one_sandbox_that_do_not_end_take_no_place_of_another() {
    let mut host = host().await;
    let (one, other) = ("s0000000000000001", "s0000000000000002");
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..PER_SANDBOX {
        let (sender, body) = open_body();
        held.push(sender);
        waiting.push(tokio::spawn(host.send_request(request(one, body))));
    }
    // Requests are taken in the order in which they were sent.
    let refused = host.send_request(request(one, nothing())).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: Problem = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (problem.code, problem.retry_after),
        (DenialCode::RateLimited, Some(1))
    );
    let answer = host.send_request(request(other, nothing())).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    drop(held);
    for answer in join_all(waiting).await {
        let body = answer.unwrap().unwrap().into_body().collect().await;
        assert_eq!(body.unwrap().to_bytes(), "8");
    }
    let again = host.send_request(request(one, nothing())).await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
}
