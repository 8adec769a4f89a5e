//! The file calls against guests of the test, and the end of a command's output.

use super::super::recording::Recorder;
use super::files::{Ask, carry};
use super::*;
use axum::response::Response;
use http::{HeaderValue, Method, header};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use lazaret_api::frame::Frame;
use lazaret_api::guest::ExecEnd;
use tokio::net::UnixStream;
use tokio_stream::wrappers::ReceiverStream;

const SOON: Duration = Duration::from_millis(100);

/// A guest that answers with this router.
async fn guest(router: axum::Router) -> Guest {
    let (ours, theirs) = UnixStream::pair().unwrap();
    tokio::spawn(async move {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server
            .serve_connection(TokioIo::new(theirs), TowerToHyperService::new(router))
            .await;
    });
    Guest::connect(ours).await.unwrap()
}

/// A file call, and the places for them.
async fn call(
    guest: &Guest,
    method: Method,
    body: Body,
) -> (Result<Response, Denial>, Arc<Semaphore>) {
    let places = Arc::new(Semaphore::new(1));
    let place = Arc::clone(&places).try_acquire_owned().unwrap();
    let ask = Ask {
        method,
        path: "/v1/files?path=a".into(),
        body,
    };
    // Whatever the guest does, there is an answer.
    let answer =
        tokio::time::timeout(Duration::from_secs(20), carry(guest, ask, place, SOON)).await;
    (answer.expect("an answer"), places)
}

fn endless() -> Body {
    Body::from_stream(futures::stream::repeat_with(|| {
        Ok::<_, std::io::Error>(Bytes::from(vec![0; 16 << 10]))
    }))
}

#[tokio::test]
async fn a_guest_that_reads_no_upload_or_answers_none_is_given_up() {
    let silent = axum::Router::new().fallback(|request: axum::extract::Request| async move {
        let _held = request;
        std::future::pending::<()>().await;
    });
    let guest = guest(silent).await;
    for body in [endless(), Body::from("a tar"), Body::empty()] {
        let (answer, places) = call(&guest, Method::PUT, body).await;
        assert_eq!(answer.unwrap_err().code, DenialCode::GuestUnreachable);
        assert_eq!(places.available_permits(), 1, "its place is free");
    }
}

#[tokio::test]
async fn an_upload_that_falls_silent_does_not_wait_for_ever() {
    let reads = axum::Router::new().fallback(|body: Bytes| async move { drop(body) });
    let guest = guest(reads).await;
    let (_held, pieces) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(1);
    let body = Body::from_stream(ReceiverStream::new(pieces));
    let (answer, _) = call(&guest, Method::PUT, body).await;
    assert_eq!(answer.unwrap_err().code, DenialCode::InvalidRequest);
}

#[tokio::test]
async fn an_answer_that_stands_still_is_cut_and_its_place_is_free() {
    let slow = axum::Router::new().fallback(|| async {
        Body::from_stream(
            futures::stream::once(async { Ok::<_, std::io::Error>(Bytes::from_static(b"some")) })
                .chain(futures::stream::pending()),
        )
    });
    let guest = guest(slow).await;
    let (answer, places) = call(&guest, Method::GET, Body::empty()).await;
    let body = answer.unwrap().into_body();
    assert!(body.collect().await.is_err(), "cut, not ended");
    let _place = places.acquire().await.unwrap();

    let (answer, places) = call(&guest, Method::GET, Body::empty()).await;
    let _unread = answer.unwrap();
    let _place = places.acquire().await.unwrap();
}

#[tokio::test]
async fn a_guest_says_no_only_as_a_file_call_can_fail() {
    for (code, passed) in [
        (DenialCode::FileNotFound, DenialCode::FileNotFound),
        (DenialCode::NotAFile, DenialCode::NotAFile),
        (DenialCode::DiskFull, DenialCode::DiskFull),
        (DenialCode::TooLarge, DenialCode::TooLarge),
        (DenialCode::InvalidRequest, DenialCode::InvalidRequest),
        (DenialCode::SandboxGone, DenialCode::GuestUnreachable),
        (DenialCode::Unauthenticated, DenialCode::GuestUnreachable),
        (DenialCode::HostKeyMismatch, DenialCode::GuestUnreachable),
        (DenialCode::Internal, DenialCode::GuestUnreachable),
        (DenialCode::StaleFence, DenialCode::GuestUnreachable),
    ] {
        let says = axum::Router::new().fallback(move || async move {
            let denial = Denial::new(code, "\x1b[2J".to_owned() + &"x".repeat(5000)).retry_after(9);
            (StatusCode::UNAUTHORIZED, axum::Json(denial))
        });
        let (answer, _) = call(&guest(says).await, Method::GET, Body::empty()).await;
        let denial = answer.unwrap_err();
        assert_eq!(denial.code, passed);
        assert!(denial.message.chars().count() <= 300 && !denial.message.contains('\x1b'));
        assert_eq!(denial.retry_after, None);
    }
}

#[tokio::test]
async fn a_guests_headers_end_at_the_shim() {
    let says = axum::Router::new().fallback(|| async {
        let headers = [
            ("set-cookie", "a=b"),
            ("content-type", "text/html"),
            ("lazaret-protocol", "99"),
        ];
        (StatusCode::CREATED, headers, "tar")
    });
    let (answer, _) = call(&guest(says).await, Method::GET, Body::empty()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let mut headers = answer.headers().clone();
    assert_eq!(
        headers.remove(header::CONTENT_TYPE),
        Some(HeaderValue::from_static("application/x-tar"))
    );
    assert!(headers.is_empty(), "{headers:?}");
    assert_eq!(
        answer.into_body().collect().await.unwrap().to_bytes(),
        "tar"
    );
}

#[tokio::test]
async fn output_ends_with_the_exit_also_if_the_disk_had_no_room_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("exec");
    std::fs::create_dir(&kept).unwrap();
    let recording = Arc::new(Recording::new(kept.clone()));
    // The first part is nearly full, so the exit needs a file of its own, for which there is no room.
    let cap = 4 << 10;
    let mut recorder = Recorder::new(Arc::clone(&recording), cap);
    while recording.progress().borrow().len < cap / 2 - 100 {
        let frame = Frame::Stdout(Bytes::from(vec![b'x'; 90]));
        recorder.output(frame).await.unwrap();
    }
    let exit = ExecExit {
        end: ExecEnd::Cancelled,
        code: None,
        signal: None,
        message: Some("the disk is full ".repeat(8)),
        duration_ms: 1,
        egress_seq: None,
    };
    let held = dir.path().join("held");
    std::fs::rename(&kept, &held).unwrap();
    assert!(recorder.finish(&exit).await.is_err());
    std::fs::rename(&held, &kept).unwrap();

    let following = Reading {
        offset: 0,
        follow: true,
    };
    let known = exit.clone();
    let frames = with_end(read_frames(Arc::clone(&recording), following), move || {
        Some(known)
    });
    let bytes: Vec<u8> = frames
        .map(Result::unwrap)
        .collect::<Vec<_>>()
        .await
        .concat();
    assert!(bytes.ends_with(&exit_frame(&exit)));
    // A command that still runs has no end yet.
    let now = Reading::default();
    let frames = with_end(read_frames(recording, now), || None);
    let bytes: Vec<u8> = frames
        .map(Result::unwrap)
        .collect::<Vec<_>>()
        .await
        .concat();
    assert!(!bytes.ends_with(&exit_frame(&exit)));
}
