//! HTTP/2 over byte streams: standard streams, Unix sockets, the guest's control port.

use axum::body::Body;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite, Join};
use tokio::net::{UnixStream, unix::pipe};
use tokio::task::JoinHandle;

/// Requests that one connection carries at once.
const STREAMS: u32 = 256;
/// Bytes in flight per request and per connection: enough for a long line, little enough to hold.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

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
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
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

/// Asks what listens on a Unix socket.
pub(crate) async fn ask_socket(path: &Path) -> io::Result<SendRequest<Body>> {
    let stream = UnixStream::connect(path).await?;
    Ok(ask_over(stream).await.map_err(io::Error::other)?.sender)
}
