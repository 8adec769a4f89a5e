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
//!            ≤ head     ≤ head         taken         ≤ head (HTTP/1), ≤ idle (HTTP/2)
//!                                      ≤ stall
//! ```
//!
//! One client holds a part of the slots at most. A connection beyond its part gets one of a few places
//! where every request is refused, and when those are taken it is closed.

mod activity;
mod door;
mod opening;

use crate::client::Surplus;
use crate::settings::EdgeSettings;
use activity::{Activity, Sending};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, Version};
use door::{Door, Entered};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// Requests have this long to end once the server stops.
const GRACE: Duration = Duration::from_secs(10);
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// A connection beyond its client's part is told so and ended within this time.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

/// How long a connection may keep its slot without getting on.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For its first bytes, and for the whole head of an HTTP/1 request.
    pub head: Duration,
    /// After its last answer, whichever the protocol; HTTP/1 connections end after `head` already.
    pub idle: Duration,
    /// While there is an answer of which its client takes nothing.
    pub stall: Duration,
    /// After it was told that an idle connection ends, for ending it in order.
    pub farewell: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(15),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            farewell: Duration::from_secs(2),
        }
    }
}

/// Serves until the settings' `stop`, then ends in order.
///
/// # Errors
/// Only if the listener's own address cannot be read; a failing connection never ends the server.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: &EdgeSettings,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "listening");
    let (stop, deadlines) = (&settings.stop, settings.deadlines);
    let door = Door::new(listener, settings);
    let http = Arc::new(protocols(deadlines));
    let connections = TaskTracker::new();
    while let Some(entered) = stop.run_until_cancelled(door.next()).await {
        let (router, http, stop) = (router.clone(), Arc::clone(&http), stop.clone());
        connections.spawn(async move {
            let Entered {
                stream,
                peer,
                place,
            } = entered;
            let surplus = place.is_surplus();
            let talk = converse(stream, peer, surplus, router, &http, deadlines, stop);
            if surplus {
                let _ = tokio::time::timeout(REFUSED_WITHIN, talk).await.is_ok();
            } else {
                talk.await;
            }
            drop(place);
        });
    }
    drop(door);
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

/// One connection, from its first byte to its end.
async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    surplus: bool,
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
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let busy = requests.begin();
        let router = router.clone();
        async move {
            let answer = answer(router, request, peer, surplus).await?;
            Ok::<_, std::convert::Infallible>(answer.map(|body| Sending::new(body, busy)))
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut stalled = pin!(activity.stalled_for(deadlines.stall));
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = activity.idle_for(deadlines.idle) => None,
        () = stalled.as_mut() => return cut(peer, deadlines),
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                // The client does not answer; nothing of it is under way.
                () = activity.idle_for(deadlines.farewell) => Ok(()),
                () = stalled.as_mut() => return cut(peer, deadlines),
            }
        }
    };
    if let Err(fault) = ended {
        tracing::debug!(%peer, fault, "a connection ended early");
    }
}

/// A client that takes nothing is owed nothing, and its connection is dropped with all that was
/// meant for it.
fn cut(peer: SocketAddr, deadlines: Deadlines) {
    tracing::info!(%peer, stall = ?deadlines.stall, "a connection was cut: its client took nothing of an answer");
}

/// The answer to one request.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    peer: SocketAddr,
    surplus: bool,
) -> Result<Response<Body>, std::convert::Infallible> {
    let mut request = request.map(Body::new);
    let ends = surplus && request.version() < Version::HTTP_2;
    request.extensions_mut().insert(ConnectInfo(peer));
    if surplus {
        request.extensions_mut().insert(Surplus);
    }
    let mut answer = router.oneshot(request).await?;
    if ends {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    Ok(answer)
}
