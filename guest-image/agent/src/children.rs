//! Waiting for children.
//!
//! PID 1 inherits every orphan of the system and has to wait for it, but `waitpid` for "any child"
//! also takes the children somebody waits for. So as PID 1 there is one place that waits for all
//! ([`Children::reap`]) and hands the statuses of our own children to whoever asked. As an ordinary
//! process (tests) each child is waited for by itself, so that nobody else's children are taken.

use crate::sys;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, wait, waitpid};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// Children that are reaped in one go.
const AT_ONCE: usize = 16;

/// Who waits for children here.
#[derive(Clone)]
pub enum Children {
    /// This is PID 1: everything that ends is reaped in one place.
    Init(Arc<Mutex<Registry>>),
    /// This is an ordinary process.
    Ordinary,
}

/// Whom PID 1 tells about which child.
#[derive(Default)]
pub struct Registry(HashMap<i32, oneshot::Sender<WaitStatus>>);

/// A child that is being waited for.
pub enum Waiting {
    /// PID 1 will say.
    Told(oneshot::Receiver<WaitStatus>),
    /// This descriptor becomes readable when it ends.
    Pidfd(Pid, AsyncFd<rustix::fd::OwnedFd>),
}

impl Children {
    /// The children of PID 1. [`Children::reap`] has to run beside it.
    #[must_use]
    pub fn of_init() -> Self {
        Self::Init(Arc::default())
    }

    /// Starts to wait for a child. Call it in the same breath as the spawn, without an `await`
    /// between the two: then the reaper, which shares the thread, cannot have come before.
    ///
    /// # Errors
    /// The process does not exist.
    pub fn expect(&self, pid: Pid) -> io::Result<Waiting> {
        match self {
            Self::Init(registry) => {
                let (tell, told) = oneshot::channel();
                registry
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
                    .insert(pid.as_raw_nonzero().get(), tell);
                Ok(Waiting::Told(told))
            }
            Self::Ordinary => {
                let fd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
                Ok(Waiting::Pidfd(pid, sys::watch(fd, Interest::READABLE)?))
            }
        }
    }

    /// Reaps whatever ends, for ever. Only PID 1 runs this.
    ///
    /// # Errors
    /// The signal cannot be listened for.
    pub async fn reap(&self) -> io::Result<()> {
        let Self::Init(registry) = self else {
            return Ok(());
        };
        let mut ended = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())?;
        loop {
            tell_of_each(registry, || wait(WaitOptions::NOHANG).ok().flatten()).await;
            ended.recv().await;
        }
    }
}

/// Hands on what has ended until nothing has. A fork bomb can end processes faster than they are
/// reaped, and the agent has one thread: everything else gets its turn in between.
async fn tell_of_each(
    registry: &Mutex<Registry>,
    mut ended: impl FnMut() -> Option<(Pid, WaitStatus)>,
) {
    loop {
        for _ in 0..AT_ONCE {
            let Some((pid, status)) = ended() else {
                return;
            };
            let known = registry
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .remove(&pid.as_raw_nonzero().get());
            if let Some(tell) = known {
                let _ = tell.send(status);
            }
        }
        tokio::task::yield_now().await;
    }
}

impl Waiting {
    /// Waits until the child has ended, and reaps it. Safe to cancel and call again.
    ///
    /// # Errors
    /// The status cannot be had.
    pub async fn status(&mut self) -> io::Result<WaitStatus> {
        match self {
            Self::Told(told) => told
                .await
                .map_err(|_| io::Error::other("the reaper is gone")),
            Self::Pidfd(pid, fd) => loop {
                let mut guard = fd.readable().await?;
                let mut poll = [PollFd::new(fd.get_ref(), PollFlags::IN)];
                let zero = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                if rustix::event::poll(&mut poll, Some(&zero))? > 0
                    && let Some((_, status)) = waitpid(Some(*pid), WaitOptions::NOHANG)?
                {
                    return Ok(status);
                }
                guard.clear_ready();
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn children_that_end_without_an_end_take_nobody_s_turn() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
        let _ = child.wait();
        let registry = Arc::<Mutex<Registry>>::default();
        let mut told = Children::Init(Arc::clone(&registry)).expect(pid).unwrap();
        let mut reaped = 0;
        let one_more = || {
            reaped += 1;
            assert!(reaped <= 4 * AT_ONCE, "nobody else has had a turn");
            Some((pid, status))
        };
        tokio::select! {
            biased;
            () = tell_of_each(&registry, one_more) => panic!("there is always one more"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(told.status().await.unwrap().exit_status(), Some(0));
        // And it ends when there is none.
        tell_of_each(&registry, || None).await;
    }
}
