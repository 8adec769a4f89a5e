//! HTTP/2 on a byte stream, for as long as the guest lives.

use crate::api::Guest;
use crate::boot::System;
use crate::children::Children;
use crate::console;
use crate::control::Port;
use crate::exec::{Engine, RunAs};
use crate::files::Areas;
use crate::machine::ThisMachine;
use crate::warm;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Requests at once on one connection.
const MAX_STREAMS: u32 = 64;
/// Bytes of a request body in flight; the port moves them in small pieces anyway.
const WINDOW: u32 = 256 * 1024;
/// How long the answer to a shutdown may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves the guest API on the control port until the guest is told to shut down.
///
/// # Errors
/// The port is missing or broken.
pub async fn serve(system: System) -> io::Result<()> {
    let children = Children::of_init();
    let reaper = children.clone();
    tokio::spawn(async move {
        if let Err(error) = reaper.reap().await {
            console::say(&format!("cannot reap: {error}"));
        }
    });
    let engine = Engine::new(children, system.cgroups, RunAs::Agent);
    if system.warm {
        warm::template(&engine).await;
    }
    let guest = Arc::new(Guest::new(ThisMachine, engine, Areas::of_a_guest()));
    let mut port = Port::open(guest.napping()).await?;
    console::say("ready");
    while !guest.is_stopping() {
        let stream = port.connected().await?;
        if let Err(error) = connection(stream, &guest).await {
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            console::say(&format!("the control connection ended: {error}: {cause}"));
        }
        port.discard()?;
    }
    Ok(())
}

/// Serves one connection until its peer leaves or the guest is told to stop.
///
/// # Errors
/// The peer broke the protocol or the stream.
pub async fn connection<S>(stream: S, guest: &Arc<Guest>) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| {
        let guest = Arc::clone(guest);
        async move { Ok::<_, Infallible>(guest.answer(request).await) }
    });
    let mut connection = std::pin::pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * 4)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        result = connection.as_mut() => return result,
        () = guest.stopping() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::time::timeout(FAREWELL, connection)
        .await
        .unwrap_or(Ok(()))
}
