//! The virtio-serial port `control` as a byte stream.
//!
//! While the other end is not connected, a read returns 0 and `poll` says "hung up", at once and
//! always. So the port is looked at a few times a second until somebody is there: waiting for it in
//! earnest would be a busy wait, which starves a guest under software emulation.
//!
//! Each connection is watched by a descriptor of its own, because tokio never forgets that one was
//! hung up; and nothing is sent on it before the other end has spoken, so that a guest that is
//! frozen into a template has said nothing yet.

use crate::sys;
use lazaret_api::guest::CONTROL_PORT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

/// How often the port is looked at while nobody is there.
const LOOK: Duration = Duration::from_millis(25);
/// How often the port is looked for before it is given up.
const TRIES: u32 = 400;

/// The port. There is one, and one stream on it at a time.
pub struct Port {
    fd: OwnedFd,
}

impl Port {
    /// Finds the port by its name and opens it.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub async fn open() -> io::Result<Self> {
        for _ in 0..TRIES {
            if let Some(device) = find() {
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
                return Ok(Self {
                    fd: rustix::fs::open(device, flags, Mode::empty())?,
                });
            }
            sleep(LOOK).await;
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "there is no virtio-serial port named control",
        ))
    }

    /// Waits until the other end is connected and has spoken.
    ///
    /// # Errors
    /// The port cannot be asked.
    pub async fn connected(&mut self) -> io::Result<Stream> {
        loop {
            while self.state(PollFlags::empty())?.contains(PollFlags::HUP) {
                sleep(LOOK).await;
            }
            let fd = sys::watch(
                self.fd.try_clone()?,
                Interest::READABLE | Interest::WRITABLE,
            )?;
            loop {
                let mut ready = fd.readable().await?;
                let state = self.state(PollFlags::IN)?;
                if state.contains(PollFlags::HUP) || ready.ready().is_read_closed() {
                    break;
                }
                if state.contains(PollFlags::IN) {
                    drop(ready);
                    return Ok(Stream { fd });
                }
                ready.clear_ready();
            }
        }
    }

    /// Throws away what the last peer sent and nobody read, so that the next one starts afresh.
    ///
    /// # Errors
    /// The port cannot be read.
    pub fn discard(&mut self) -> io::Result<()> {
        let mut waste = [0_u8; 4096];
        while self.state(PollFlags::empty())?.contains(PollFlags::HUP) {
            match rustix::io::read(&self.fd, &mut waste) {
                Ok(0) => break,
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn state(&self, asked: PollFlags) -> io::Result<PollFlags> {
        let mut fds = [PollFd::new(&self.fd, asked)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now))?;
        Ok(fds[0].revents())
    }
}

fn find() -> Option<String> {
    fs::read_dir("/sys/class/virtio-ports")
        .ok()?
        .flatten()
        .find_map(|entry| {
            let name = fs::read_to_string(entry.path().join("name")).ok()?;
            (name.trim_end() == CONTROL_PORT)
                .then(|| format!("/dev/{}", entry.file_name().to_string_lossy()))
        })
}

/// The port while somebody is at its other end.
pub struct Stream {
    fd: AsyncFd<OwnedFd>,
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let closed = guard.ready().is_read_closed();
            let room = buf.initialize_unfilled();
            match guard.try_io(|fd| rustix::io::read(fd.get_ref(), room).map_err(Into::into)) {
                Ok(Ok(count)) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                // It was hung up, and somebody else is there already: this stream has ended.
                Err(_would_block) if closed => return Poll::Ready(Ok(())),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            let closed = guard.ready().is_write_closed();
            match guard.try_io(|fd| rustix::io::write(fd.get_ref(), bytes).map_err(Into::into)) {
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) if closed => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
