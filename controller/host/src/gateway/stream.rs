//! One TCP connection with the guest as an asynchronous byte stream.
//!
//! The sockets live with the stack, behind one lock that is never held across a wait. A stream looks
//! into its socket, and wakes the driver when it changed something that the guest should learn.

use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// A connection without any traffic is ended after this long.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// One whose guest has said all it will, after this long without traffic.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(60);
/// Requests to the gateway's own services that are on their way at once: git clones a repository
/// and its submodules with fewer.
pub(super) const SERVICE_PLACES: usize = 4;
/// What is still to be sent when a connection is given up may take this long.
const LINGER: Duration = Duration::from_secs(20);

/// The stack's state.
pub(super) struct Net {
    pub(super) interface: Interface,
    pub(super) sockets: SocketSet<'static>,
    /// Sockets whose stream is gone: until when they may take to end by themselves.
    pub(super) released: Vec<(SocketHandle, Instant)>,
}

/// The stack, as streams and driver share it.
pub(super) struct Shared {
    net: Mutex<Net>,
    /// Tells the driver that a stream changed something.
    pub(super) changed: Notify,
    /// Places for requests to the gateway's own services, for all connections of this cable.
    services: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn new(net: Net) -> Self {
        Self {
            net: Mutex::new(net),
            changed: Notify::new(),
            services: Arc::new(Semaphore::new(SERVICE_PLACES)),
        }
    }

    pub(super) fn net(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a connection moved so far, and when last.
#[derive(Debug)]
pub(super) struct Tally {
    since: Instant,
    from_guest: AtomicU64,
    to_guest: AtomicU64,
    /// Milliseconds after `since`.
    last: AtomicU64,
    half_closed: AtomicU64,
    half_close: Notify,
}

impl Tally {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            from_guest: AtomicU64::new(0),
            to_guest: AtomicU64::new(0),
            last: AtomicU64::new(0),
            half_closed: AtomicU64::new(0),
            half_close: Notify::new(),
        }
    }

    /// Bytes from the guest.
    pub(super) fn sent(&self) -> u64 {
        self.from_guest.load(Ordering::Relaxed)
    }

    /// Bytes to the guest.
    pub(super) fn received(&self) -> u64 {
        self.to_guest.load(Ordering::Relaxed)
    }

    /// How long the connection has been there.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        self.touch();
    }

    fn touch(&self) {
        self.last.store(
            u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    fn close_half(&self) {
        self.touch();
        self.half_closed.store(1, Ordering::Relaxed);
        self.half_close.notify_one();
    }

    /// Waits until the connection has been without traffic for too long.
    pub(super) async fn idle(&self) {
        loop {
            let limit = if self.half_closed.load(Ordering::Relaxed) == 1 {
                HALF_CLOSED_IDLE
            } else {
                IDLE
            };
            let deadline =
                self.since + Duration::from_millis(self.last.load(Ordering::Relaxed)) + limit;
            if Instant::now() >= deadline {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => {}
                () = self.half_close.notified() => {}
            }
        }
    }
}

/// One TCP connection with the guest. Dropping it ends the connection: at once if it is open, in
/// order if both sides have said all they will.
pub(super) struct GuestStream {
    shared: Arc<Shared>,
    handle: SocketHandle,
    tally: Arc<Tally>,
}

impl GuestStream {
    pub(super) fn new(shared: Arc<Shared>, handle: SocketHandle) -> Self {
        Self {
            shared,
            handle,
            tally: Arc::new(Tally::new()),
        }
    }

    /// What it moved.
    pub(super) fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// The places for requests to the gateway's own services.
    pub(super) fn service_places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.shared.services)
    }

    /// Waits until the guest has confirmed the connection.
    pub(super) async fn established(&self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            self.with(|socket| match socket.state() {
                State::Listen | State::SynSent | State::SynReceived => {
                    socket.register_recv_waker(context.waker());
                    Poll::Pending
                }
                State::Closed => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                _ => Poll::Ready(Ok(())),
            })
        })
        .await
    }

    fn with<R>(&self, act: impl FnOnce(&mut Socket<'static>) -> R) -> R {
        act(self
            .shared
            .net()
            .sockets
            .get_mut::<Socket<'static>>(self.handle))
    }
}

impl AsyncRead for GuestStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.with(|socket| {
            if socket.can_recv() {
                return Some(
                    socket
                        .recv_slice(buffer.initialize_unfilled())
                        .map_err(|_| io::ErrorKind::ConnectionReset),
                );
            }
            match socket.state() {
                State::CloseWait | State::LastAck | State::Closing | State::TimeWait => Some(Ok(0)),
                State::Closed => Some(Err(io::ErrorKind::ConnectionReset)),
                _ => {
                    socket.register_recv_waker(context.waker());
                    None
                }
            }
        });
        match read {
            None => Poll::Pending,
            Some(Err(kind)) => Poll::Ready(Err(kind.into())),
            Some(Ok(0)) => {
                if buffer.remaining() > 0 {
                    self.tally.close_half();
                }
                Poll::Ready(Ok(()))
            }
            Some(Ok(length)) => {
                buffer.advance(length);
                self.tally.count(&self.tally.from_guest, length);
                // There is room again, which the guest should learn.
                self.shared.changed.notify_one();
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.with(|socket| {
            if socket.can_send() {
                return Some(
                    socket
                        .send_slice(data)
                        .map_err(|_| io::ErrorKind::BrokenPipe),
                );
            }
            match socket.state() {
                State::Listen
                | State::SynSent
                | State::SynReceived
                | State::Established
                | State::CloseWait => {
                    socket.register_send_waker(context.waker());
                    None
                }
                _ => Some(Err(io::ErrorKind::BrokenPipe)),
            }
        });
        match written {
            None => Poll::Pending,
            Some(Err(kind)) => Poll::Ready(Err(kind.into())),
            Some(Ok(length)) => {
                self.tally.count(&self.tally.to_guest, length);
                self.shared.changed.notify_one();
                Poll::Ready(Ok(length))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(Socket::close);
        self.shared.changed.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        let mut net = self.shared.net();
        let socket = net.sockets.get_mut::<Socket<'static>>(self.handle);
        if matches!(
            socket.state(),
            State::Listen | State::SynReceived | State::Established | State::CloseWait
        ) {
            socket.abort();
        }
        net.released.push((self.handle, Instant::now() + LINGER));
        drop(net);
        self.shared.changed.notify_one();
    }
}
