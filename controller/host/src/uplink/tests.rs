//! The uplink with a controller of the test at the other end of a pipe.

use super::*;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use lazaret_api::uplink::SANDBOX_HEADER;
use std::sync::Mutex;

struct Bench {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    _uplink: AbortOnDropHandle<anyhow::Result<()>>,
    _controller: AbortOnDropHandle<()>,
}

impl Bench {
    /// An uplink whose controller answers with this router.
    fn new(router: axum::Router) -> Self {
        let dir = tempfile::Builder::new().prefix("lzu").tempdir().unwrap();
        let state =
            State::open(dir.path().to_owned(), crate::config::HostConfig::default()).unwrap();
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let controller = tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server
                .serve_connection(TokioIo::new(theirs), TowerToHyperService::new(router))
                .await;
        });
        let socket = state.uplink_socket();
        let uplink = tokio::spawn(async move { serve(&state, ours).await });
        Self {
            _dir: dir,
            socket,
            _uplink: AbortOnDropHandle::new(uplink),
            _controller: AbortOnDropHandle::new(controller),
        }
    }

    /// Asks over a connection of its own, as a gateway does.
    async fn ask(&self, path: &str, body: Body) -> Response<Incoming> {
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(&self.socket).await {
                break stream;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = Request::post(path)
            .header("host", "gateway.lazaret")
            .header(SANDBOX_HEADER, "s0123456789abcdef")
            .body(body)
            .unwrap();
        sender.send_request(request).await.unwrap()
    }
}

/// How many bytes of each endless answer were taken from the controller.
type Sent = Arc<Mutex<Vec<usize>>>;

/// Answers without end at `/endless`, and in a word elsewhere.
fn controller(sent: &Sent) -> axum::Router {
    let sent = Arc::clone(sent);
    let endless = move || {
        let sent = Arc::clone(&sent);
        async move {
            let noise = bytes::Bytes::from(vec![7; 64 << 10]);
            let nth = {
                let mut all = sent.lock().unwrap();
                all.push(0);
                all.len() - 1
            };
            Body::from_stream(futures::stream::repeat_with(move || {
                sent.lock().unwrap()[nth] += noise.len();
                Ok::<_, std::io::Error>(noise.clone())
            }))
        }
    };
    axum::Router::new()
        .route("/endless", axum::routing::post(endless))
        .fallback(|| async { "pong" })
}

#[tokio::test]
async fn answers_that_nobody_reads_leave_room_for_the_others() {
    let sent = Sent::default();
    let bench = Bench::new(controller(&sent));
    let mut unread = Vec::new();
    for _ in 0..24 {
        unread.push(bench.ask("/endless", Body::empty()).await);
    }
    // The controller has sent of each what it may; only then is it seen what is left for others.
    let may = usize::try_from(STREAM_WINDOW).unwrap();
    let all_sent = async {
        while sent.lock().unwrap().iter().any(|sent| *sent < may) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all_sent)
        .await
        .expect("each answer fills its own window");
    for _ in 0..3 {
        let answer =
            tokio::time::timeout(Duration::from_secs(20), bench.ask("/ping", Body::empty()));
        let answer = answer.await.expect("an answer");
        let body = tokio::time::timeout(Duration::from_secs(20), answer.into_body().collect());
        assert_eq!(
            body.await.expect("a body").unwrap().to_bytes(),
            "pong".as_bytes()
        );
    }
}

#[tokio::test]
async fn a_place_is_held_until_the_bodies_are_over_and_comes_free_then() {
    let bench = Bench::new(controller(&Sent::default()));
    let mut held = Vec::new();
    for _ in 0..IN_FLIGHT {
        held.push(bench.ask("/endless", Body::empty()).await);
    }
    let refused = bench.ask("/ping", Body::empty()).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(held.pop());
    // It has to be noticed that the asker is gone.
    while bench.ask("/ping", Body::empty()).await.status() != StatusCode::OK {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
