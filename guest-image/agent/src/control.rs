//! The virtio-serial port `control` as a byte stream.
//!
//! While the other end is not connected, a read returns 0 and `poll` says "hung up", at once and
//! always. So the port is looked at a few times a second until somebody is there: waiting for it in
//! earnest would be a busy wait, which starves a guest under software emulation.
//!
//! Each connection is watched by a descriptor of its own, because tokio never forgets that one was
//! hung up; and nothing is sent on it before the other end has spoken, so that a guest that is
//! frozen into a template has said nothing yet.
//!
//! A guest that is woken finds another peer at the other end, perhaps without having seen the first
//! one leave. A connection begins with the preface of HTTP/2 (RFC 9113, section 3.4), so whatever
//! comes before one is thrown away unanswered, and while the guest naps one ends the connection that
//! it comes in the middle of: nothing else is to be said then but the few words that wake it.

use crate::sys;
use lazaret_api::guest::CONTROL_PORT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// How a connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What QEMU moves at once. What it reads of two peers it never puts together.
const PIECE: usize = 4096;

/// The port. There is one, and one stream on it at a time.
pub struct Port {
    fd: OwnedFd,
    napping: Arc<AtomicBool>,
    /// What a new peer said to the one before.
    next: Arc<Mutex<Vec<u8>>>,
}

impl Port {
    /// Finds the port by its name and opens it. Whether the guest naps is read as long as it is open.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub async fn open(napping: Arc<AtomicBool>) -> io::Result<Self> {
        for _ in 0..TRIES {
            if let Some(device) = find() {
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
                return Ok(Self {
                    fd: rustix::fs::open(device, flags, Mode::empty())?,
                    napping,
                    next: Arc::default(),
                });
            }
            sleep(LOOK).await;
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "there is no virtio-serial port named control",
        ))
    }

    /// Waits until the other end is connected and has said how a connection begins.
    ///
    /// # Errors
    /// The port cannot be asked.
    pub async fn connected(&mut self) -> io::Result<Stream> {
        let mut said = std::mem::take(&mut *lock(&self.next));
        loop {
            while self.state(PollFlags::empty())?.contains(PollFlags::HUP) {
                said.clear();
                sleep(LOOK).await;
            }
            let fd = sys::watch(
                self.fd.try_clone()?,
                Interest::READABLE | Interest::WRITABLE,
            )?;
            loop {
                if let Some(head) = opening(&mut said) {
                    return Ok(Stream {
                        fd,
                        head,
                        napping: Arc::clone(&self.napping),
                        next: Arc::clone(&self.next),
                    });
                }
                let mut ready = fd.readable().await?;
                let state = self.state(PollFlags::IN)?;
                if state.contains(PollFlags::HUP) || ready.ready().is_read_closed() {
                    break;
                }
                let mut piece = [0; PIECE];
                match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut piece)?)) {
                    Ok(count) => said.extend_from_slice(&piece[..count?]),
                    Err(_would_block) => {}
                }
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

/// What was said from where a connection begins, if one does. What came before is thrown away.
fn opening(said: &mut Vec<u8>) -> Option<Vec<u8>> {
    let begins = |window: &[u8]| window == PREFACE;
    if let Some(at) = said.windows(PREFACE.len()).position(begins) {
        return Some(said.split_off(at));
    }
    // The last bytes may be the first ones of it.
    let kept = said.len().saturating_sub(PREFACE.len() - 1);
    said.drain(..kept);
    None
}

fn lock(next: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    next.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The port while somebody is at its other end.
pub struct Stream {
    fd: AsyncFd<OwnedFd>,
    /// What was read of it before it was a stream.
    head: Vec<u8>,
    napping: Arc<AtomicBool>,
    next: Arc<Mutex<Vec<u8>>>,
}

impl Stream {
    /// Whether what was just read is the beginning of another connection; it is kept for that then.
    fn interrupted(&self, read: &[u8]) -> bool {
        let interrupted = self.napping.load(Ordering::SeqCst) && read.starts_with(PREFACE);
        if interrupted {
            *lock(&self.next) = read.to_vec();
        }
        interrupted
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.head.is_empty() {
            let count = this.head.len().min(buf.remaining());
            buf.put_slice(&this.head[..count]);
            this.head.drain(..count);
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut guard = ready!(this.fd.poll_read_ready(cx))?;
            let closed = guard.ready().is_read_closed();
            let room = buf.initialize_unfilled();
            match guard.try_io(|fd| rustix::io::read(fd.get_ref(), room).map_err(Into::into)) {
                Ok(Ok(count)) => {
                    // Nothing is read of a connection that was interrupted: it has ended.
                    let read = &buf.initialize_unfilled()[..count];
                    if !this.interrupted(read) {
                        buf.advance(count);
                    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_begins_with_its_preface_wherever_that_comes() {
        let settings = [0_u8; 9];
        let whole = [PREFACE, &settings].concat();
        for waste in [0, 1, 23, 24, 5000] {
            let all = [vec![b'P'; waste], whole.clone()].concat();
            for piece in [1, 7, 24, PIECE] {
                let (mut said, mut opened) = (Vec::new(), None);
                for bytes in all.chunks(piece) {
                    match &mut opened {
                        None => {
                            said.extend_from_slice(bytes);
                            opened = opening(&mut said);
                            assert!(said.len() < PREFACE.len() + piece);
                        }
                        Some(head) => Vec::extend_from_slice(head, bytes),
                    }
                }
                assert_eq!(
                    opened.as_ref(),
                    Some(&whole),
                    "{waste} of waste, {piece} at once"
                );
            }
        }
    }
}
