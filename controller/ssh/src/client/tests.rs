//! The client against hosts that stop.

use super::*;
use futures::StreamExt;
use lazaret_domain::{Fence, GuestPath, SandboxId};
use lazaret_services::ports::host_link::{Area, HostLink};
use std::convert::Infallible;

/// How a host of the test behaves.
#[derive(Clone, Copy)]
enum Stops {
    /// Before the head of its answer.
    Early,
    /// Within its answer.
    Within,
}

async fn client(stops: Stops) -> crate::Over<HostClient> {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| async move {
        if matches!(stops, Stops::Early) {
            // It holds the request and reads none of it.
            let _held = request;
            std::future::pending::<()>().await;
        }
        let begun = futures::stream::once(async {
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"[")))
        });
        let mut response = Response::new(StreamBody::new(begun.chain(futures::stream::pending())));
        let headers = response.headers_mut();
        headers.insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
        Ok::<_, Infallible>(response)
    });
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(theirs), service)
            .await
    });
    let (client, driver) = HostClient::over(ours).await.unwrap();
    tokio::spawn(driver);
    crate::Over(client)
}

fn sandbox() -> SandboxId {
    "s0123456789abcdef".parse().unwrap()
}

fn path() -> GuestPath {
    "a".parse().unwrap()
}

/// Says when it is dropped.
struct Held(Arc<tokio::sync::Notify>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_takes_no_more_of_an_upload_is_given_up_and_the_upload_is_let_go_of() {
    let client = client(Stops::Early).await;
    let dropped = Arc::new(tokio::sync::Notify::new());
    let held = Held(Arc::clone(&dropped));
    let tar = futures::stream::repeat_with(move || {
        let _held = &held;
        Ok(Bytes::from(vec![0; 64 << 10]))
    });
    let fence = Fence(1);
    let denial = client
        .write_tar(fence, &sandbox(), Area::Uploads, &path(), Box::pin(tar))
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::HostUnreachable);
    dropped.notified().await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_goes_on_may_take_longer_than_any_silence() {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
            let length = request
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len();
            let mut response = Response::new(Full::new(Bytes::from(length.to_string())));
            let headers = response.headers_mut();
            headers.insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
            Ok::<_, Infallible>(response)
        });
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(theirs), service)
            .await
    });
    let (client, driver) = HostClient::over(ours).await.unwrap();
    tokio::spawn(driver);
    let tar = futures::stream::unfold(0, |count| async move {
        tokio::time::sleep(SILENCE / 2).await;
        (count < 6).then(|| (Ok(Bytes::from_static(b"part")), count + 1))
    });
    crate::Over(client)
        .write_tar(Fence(1), &sandbox(), Area::Uploads, &path(), Box::pin(tar))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_falls_silent_is_an_error_and_followed_output_may_be_silent() {
    let client = client(Stops::Within).await;
    let listed = client.list_files(&sandbox(), &path()).await;
    assert_eq!(listed.unwrap_err().code, DenialCode::HostUnreachable);
    let mut tar = client.read_tar(&sandbox(), &path()).await.unwrap();
    assert_eq!(tar.next().await.unwrap().unwrap(), "[");
    let cut = tar.next().await.unwrap().unwrap_err();
    assert_eq!(cut.code, DenialCode::HostUnreachable);
    let exec = "x".parse().unwrap();
    let mut output = client.output(&sandbox(), &exec, 0, true).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), "[");
    let more = tokio::time::timeout(SILENCE * 100, output.next()).await;
    assert!(more.is_err(), "a command may be quiet for hours");
}
