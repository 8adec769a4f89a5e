//! The uplink: HTTP/2 on SSH channel 2 with the roles reversed. We ask, the controller answers.
//!
//! The shims' gateways connect to a socket in the state directory; each of their requests is passed
//! on as it is, body by body as it comes. A newer uplink takes the socket's name over at once; the
//! older one finishes what it has and ends with its connection. Without an uplink there is no
//! socket, and the gateways say so to their guests.
//!
//! All sandboxes of the host share the one connection, so none may fill it. A gateway lets its
//! sandbox have a few requests at once and cuts those that stand still; here the connection has
//! room for all that may be held back unread.

use crate::pipe::standard_streams;
use crate::state::State;
use crate::wire::{Pace, Refused, paced};
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lazaret_domain::{Denial, DenialCode};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

/// Requests on their way at once, each until both its bodies are over. Another one is refused, not
/// queued.
const IN_FLIGHT: u32 = 128;
/// Bytes of one answer that may lie here unread.
const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes of all answers: if none of them is read, another one still gets through.
const CONNECTION_WINDOW: u32 = (IN_FLIGHT + 1) * STREAM_WINDOW;
/// How long an end of a body may be silent. The gateways are stricter with their guests; this is
/// for a gateway that hangs.
const PACE: Pace = Pace {
    origin: Duration::from_secs(240),
    taker: Duration::from_secs(240),
};

/// Serves until the controller closes its end.
///
/// # Errors
/// If the standard streams or the socket cannot be used.
pub async fn serve_standard_streams(state: State) -> anyhow::Result<()> {
    serve(&state, standard_streams()?).await
}

async fn serve<IO>(state: &State, io: IO) -> anyhow::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(io))
        .await?;
    let driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let name = Name::take(state).await?;
    let router = axum::Router::new().fallback(pass_on).with_state(Way {
        sender,
        places: Arc::new(Semaphore::new(IN_FLIGHT as usize)),
    });
    let accepting = AbortOnDropHandle::new(tokio::spawn(accept(name.listener, router)));
    if let Ok(Err(error)) = driver.await {
        tracing::debug!(%error, "the connection to the controller ended");
    }
    drop(accepting);
    release(state, &name.path, name.inode).await?;
    Ok(())
}

/// The socket under its well-known name.
struct Name {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Name {
    /// Binds under another name and moves it over, so that there is never no socket in between.
    async fn take(state: &State) -> anyhow::Result<Self> {
        let path = state.uplink_socket();
        let making = state.root().join(format!("uplink.{}", std::process::id()));
        let _lock = state.lock().await?;
        let _ = std::fs::remove_file(&making);
        let listener = UnixListener::bind(&making)?;
        let inode = std::fs::symlink_metadata(&making)?.ino();
        std::fs::rename(&making, &path)?;
        Ok(Self {
            listener,
            path,
            inode,
        })
    }
}

/// Removes the name, if it still is ours.
async fn release(state: &State, path: &Path, inode: u64) -> Result<(), Denial> {
    let _lock = state.lock().await?;
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.ino() == inode) {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

async fn accept(listener: UnixListener, router: axum::Router) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a gateway's connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: UnixStream, router: axum::Router) {
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let service = TowerToHyperService::new(router);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a gateway's connection ended");
    }
}

/// The way to the controller.
#[derive(Clone)]
struct Way {
    sender: SendRequest<Body>,
    places: Arc<Semaphore>,
}

async fn pass_on(Shared(mut way): Shared<Way>, request: Request) -> Response {
    let Ok(place) = Arc::clone(&way.places).try_acquire_owned() else {
        return Refused(Denial::new(
            DenialCode::HostBusy,
            "too many requests are on their way to the controller",
        ))
        .into_response();
    };
    let down = |_| {
        Refused(Denial::new(
            DenialCode::UplinkDown,
            "the controller cannot be asked at this time",
        ))
        .into_response()
    };
    let place = Arc::new(place);
    let (parts, body) = addressed(request).into_parts();
    let request = Request::from_parts(parts, paced(body, PACE, Arc::clone(&place)).0);
    let sent = async {
        way.sender.ready().await?;
        way.sender.send_request(request).await
    };
    sent.await
        .map_or_else(down, |answer| answer.map(|body| paced(body, PACE, place).0))
}

/// The same request in the form HTTP/2 carries: with an authority, and without the headers that
/// concern one connection.
fn addressed(request: Request) -> Request {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = format!("http://controller{path}").parse() {
        parts.uri = uri;
    }
    parts.version = http::Version::HTTP_2;
    for name in [
        http::header::CONNECTION,
        http::header::TRANSFER_ENCODING,
        http::header::UPGRADE,
        http::header::HOST,
    ] {
        parts.headers.remove(name);
    }
    parts.headers.remove("keep-alive");
    parts.headers.remove("proxy-connection");
    Request::from_parts(parts, body)
}

#[cfg(test)]
mod tests;
