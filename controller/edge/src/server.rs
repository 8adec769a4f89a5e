//! Accepting connections, and the orderly stop: first no new connections, then a grace in which
//! requests end, then the rest is cut.
//!
//! A connection takes one of a limited number of slots before anybody knows who is behind it, so
//! nothing on it may wait for the client without a limit:
//!
//! ```text
//!  accept ─► opening ─► head ─► request … answer ─► idle ─► end
//!            first      whole   bodies: see body    no request,
//!            bytes      head                        nothing to send
//!            ≤ head     ≤ head                      ≤ head (HTTP/1), ≤ idle (HTTP/2)
//! ```

mod activity;
mod opening;

use activity::{Activity, Sending};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use futures::TryFutureExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// Connections open at the same time. Further ones wait in the listener's queue.
const CONNECTIONS: usize = 1024;
/// Requests have this long to end once the server stops.
const GRACE: Duration = Duration::from_secs(10);
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// After a failed accept (no descriptors left, say) it is tried again after this long.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// How long a connection may keep its slot without a request.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For its first bytes, and for the whole head of an HTTP/1 request.
    pub head: Duration,
    /// After its last answer, whichever the protocol; HTTP/1 connections end after `head` already.
    pub idle: Duration,
    /// After it was told that an idle connection ends, for ending it in order.
    pub farewell: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(15),
            idle: Duration::from_secs(60),
            farewell: Duration::from_secs(2),
        }
    }
}

/// Serves until `stop`, then ends in order.
///
/// # Errors
/// Only if the listener's own address cannot be read; a failing connection never ends the server.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    serve_within(listener, router, stop, Deadlines::default()).await
}

/// The same with other deadlines.
///
/// # Errors
/// As [`serve`].
pub async fn serve_within(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
    deadlines: Deadlines,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "listening");
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let http = Arc::new(protocols(deadlines));
    let connections = TaskTracker::new();
    while let Some((stream, peer, permit)) =
        stop.run_until_cancelled(accept(&listener, &slots)).await
    {
        let (router, http, stop) = (router.clone(), Arc::clone(&http), stop.clone());
        connections.spawn(async move {
            converse(stream, peer, router, &http, deadlines, stop).await;
            drop(permit);
        });
    }
    drop(listener);
    connections.close();
    match tokio::time::timeout(GRACE, connections.wait()).await {
        Ok(()) => tracing::info!("stopped; every request came to its end"),
        Err(_) => tracing::warn!(grace = ?GRACE, "stopped; some requests were cut off"),
    }
    Ok(())
}

fn protocols(deadlines: Deadlines) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(deadlines.head)
        .max_buf_size(64 << 10);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(64)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    http
}

/// The next connection, once there is room for one.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed, so there always is a permit in the end.
    let permit = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(fault) = opening::prepare(&stream) {
                    tracing::debug!(%peer, %fault, "a connection's options could not be set");
                }
                return (stream, peer, permit);
            }
            Err(fault) => {
                tracing::warn!(%fault, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// One connection, from its first byte to its end.
async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    http: &auto::Builder<TokioExecutor>,
    deadlines: Deadlines,
    stop: CancellationToken,
) {
    let opening = tokio::time::timeout(deadlines.head, opening::opened(stream));
    let Some(Ok(Ok(stream))) = stop.run_until_cancelled(opening).await else {
        tracing::debug!(%peer, "a connection ended before it said anything");
        return;
    };
    let activity = Activity::new();
    let requests = activity.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let busy = requests.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = router.clone().oneshot(request);
        answer.map_ok(|response| response.map(|body| Sending::new(body, busy)))
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = activity.idle_for(deadlines.idle) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                // The client does not answer; nothing of it is under way.
                () = activity.idle_for(deadlines.farewell) => Ok(()),
            }
        }
    };
    if let Err(fault) = ended {
        tracing::debug!(%peer, fault, "a connection ended early");
    }
}
