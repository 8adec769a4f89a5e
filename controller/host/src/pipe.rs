//! HTTP/2 over byte streams: standard streams, Unix sockets, the guest's control port.

use axum::body::Body;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Join};
use tokio::net::{UnixStream, unix::pipe};
use tokio::task::JoinHandle;

/// Requests that one connection carries at once.
const STREAMS: u32 = 256;
/// Bytes in flight per request: enough for a long line, little enough to hold. The connection holds
/// that of all requests, so that one whose taker has stopped holds up no other.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = (STREAMS + 1) * STREAM_WINDOW;

/// A program on this machine that does not answer a ping for so long hangs.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take to be reached.
const REACHED: Duration = Duration::from_secs(5);

type Reader = Pin<Box<dyn AsyncRead + Send>>;
type Writer = Pin<Box<dyn AsyncWrite + Send>>;

/// Standard input and output as one stream. sshd gives a socket or pipes; both are read and
/// written without a thread. Anything else (a file, a terminal) goes through tokio's threads.
pub(crate) fn standard_streams() -> io::Result<Join<Reader, Writer>> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let reader: Reader = match kind(&input)? {
        Kind::Socket => Box::pin(socket(input)?),
        Kind::Pipe => Box::pin(pipe::Receiver::from_owned_fd(input)?),
        Kind::Other => Box::pin(tokio::io::stdin()),
    };
    let writer: Writer = match kind(&output)? {
        Kind::Socket => Box::pin(socket(output)?),
        Kind::Pipe => Box::pin(pipe::Sender::from_owned_fd(output)?),
        Kind::Other => Box::pin(tokio::io::stdout()),
    };
    Ok(tokio::io::join(reader, writer))
}

enum Kind {
    Socket,
    Pipe,
    Other,
}

fn kind(fd: &OwnedFd) -> io::Result<Kind> {
    let mode = rustix::fs::fstat(fd)?.st_mode;
    Ok(match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Socket => Kind::Socket,
        rustix::fs::FileType::Fifo => Kind::Pipe,
        _ => Kind::Other,
    })
}

fn socket(fd: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Answers requests on one stream until its other end closes it.
pub(crate) async fn serve<IO>(io: IO, router: axum::Router) -> hyper::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(16 << 10)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(router))
        .await
}

/// The asking end of a connection, and the task that moves its bytes; the task ends with the
/// connection.
pub(crate) struct Asker {
    /// Sends requests.
    pub sender: SendRequest<Body>,
    /// Ends when the connection does.
    pub driver: JoinHandle<()>,
}

/// Becomes the asking end of a stream.
pub(crate) async fn ask_over<IO>(io: IO) -> hyper::Result<Asker>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    ask_pinging(io, None, PING_PATIENCE).await
}

/// The same, ending the connection, and all that is asked over it, when a ping is not answered.
async fn ask_pinging<IO>(
    io: IO,
    every: Option<Duration>,
    patience: Duration,
) -> hyper::Result<Asker>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(every)
        .keep_alive_timeout(patience)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(io))
        .await?;
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
    });
    Ok(Asker { sender, driver })
}

/// Asks what listens on a Unix socket. Whoever hangs there is noticed: what is asked of it fails
/// within a minute, however long its answer may take otherwise.
///
/// # Errors
/// If nobody listens there, or takes too long to be reached.
pub(crate) async fn ask_socket(path: &Path) -> io::Result<SendRequest<Body>> {
    let reach = async {
        let stream = UnixStream::connect(path).await?;
        ask_pinging(stream, Some(PING_EVERY), PING_PATIENCE)
            .await
            .map_err(io::Error::other)
    };
    Ok(tokio::time::timeout(REACHED, reach).await??.sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[tokio::test]
    async fn what_hangs_is_noticed() {
        // The other end takes bytes, and never looks at them.
        let (ours, _hanging) = UnixStream::pair().unwrap();
        let short = Duration::from_millis(20);
        let mut asker = ask_pinging(ours, Some(short), short).await.unwrap();
        let request = Request::get("http://shim/").body(Body::empty()).unwrap();
        let asked = asker.sender.send_request(request);
        let asked = tokio::time::timeout(Duration::from_secs(30), asked).await;
        assert!(asked.expect("it is noticed").is_err());
    }
}
