//! Accepting connections, and the orderly stop: first no new connections, then a grace in which
//! requests end, then the rest is cut.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Connections open at the same time. Further ones wait in the listener's queue.
const CONNECTIONS: usize = 1024;
/// A client has this long to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(15);
/// Requests have this long to end once the server stops.
const GRACE: Duration = Duration::from_secs(10);
/// After a failed accept (no descriptors left, say) it is tried again after this long.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Serves until `stop`, then ends in order.
///
/// # Errors
/// Only if the listener's own address cannot be read; a failing connection never ends the server.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "listening");
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(64 << 10);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(64)
        .keep_alive_interval(Duration::from_secs(30));
    loop {
        let accepted = stop.run_until_cancelled(accept(&listener, &slots)).await;
        let Some((stream, peer, permit)) = accepted else {
            break;
        };
        let router = router.clone();
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            router.clone().oneshot(request)
        });
        let connection = http
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(fault) = watched.await {
                tracing::debug!(%peer, fault, "a connection ended early");
            }
            drop(permit);
        });
    }
    drop(listener);
    match tokio::time::timeout(GRACE, graceful.shutdown()).await {
        Ok(()) => tracing::info!("stopped; every request came to its end"),
        Err(_) => tracing::warn!(grace = ?GRACE, "stopped; some requests were cut off"),
    }
    Ok(())
}

/// The next connection, once there is room for one.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (
    TcpStream,
    SocketAddr,
    Option<tokio::sync::OwnedSemaphorePermit>,
) {
    // The semaphore is never closed, so there always is a permit in the end.
    let permit = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                return (stream, peer, permit);
            }
            Err(fault) => {
                tracing::warn!(%fault, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
