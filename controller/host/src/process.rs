//! Who a process is, and how to end exactly that one.
//!
//! A pid alone names nobody: it is given out again. A process is known by pid, start time, program
//! and the boot it lived in, and is signalled through a descriptor of it that was opened before the
//! check, so that a stranger who got the number in between cannot be hit.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// A process that was seen alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Its pid.
    pub pid: i32,
    /// When it started, in clock ticks since the boot.
    pub start_time: u64,
    /// Its program.
    pub exe: PathBuf,
    /// The boot it lived in.
    pub boot_id: String,
}

impl Identity {
    /// Who this pid is at this time.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let (_, start_time) = stat(pid)?;
        Ok(Self {
            pid,
            start_time,
            exe: exe(pid)?,
            boot_id: boot_id()?,
        })
    }

    /// Who we are.
    pub(crate) fn own() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether it lived before the host was restarted.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|id| id == self.boot_id)
    }

    /// Whether it still runs. One that has exited and only waits to be reaped does not.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_of_this_boot()
            && matches!(stat(self.pid), Ok((state, start)) if state != 'Z' && state != 'X' && start == self.start_time)
            && exe(self.pid).is_ok_and(|exe| exe == self.exe)
    }

    /// A descriptor of the process, if it still is who it was.
    fn open(&self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(fd)
    }

    /// Waits until it has ended, at most so long. Says whether it has.
    pub(crate) async fn ended_within(&self, limit: Duration) -> bool {
        match self.open() {
            None => !self.is_alive(),
            Some(fd) => wait(fd, limit).await,
        }
    }

    /// Kills it, and waits until it has ended. Says whether it has. A process that took over the
    /// pid is left alone.
    pub(crate) async fn kill(&self, limit: Duration) -> bool {
        let Some(fd) = self.open() else {
            return !self.is_alive();
        };
        if let Err(error) = pidfd_send_signal(&fd, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            tracing::error!(pid = self.pid, %error, "a process could not be killed");
            return false;
        }
        wait(fd, limit).await
    }
}

/// Waits on a thread until the process of that descriptor has ended, or for so long.
async fn wait(fd: OwnedFd, limit: Duration) -> bool {
    let Ok(limit) = Timespec::try_from(limit) else {
        return false;
    };
    let waiting = move || {
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).is_ok_and(|ended| ended > 0)
    };
    tokio::task::spawn_blocking(waiting).await.unwrap_or(false)
}

/// The state and start time of a process.
fn stat(pid: i32) -> io::Result<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable process status"))
}

/// The program's name stands in parentheses and may hold anything, parentheses too: the fields are
/// counted from the last one.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The program of a process; the same after an upgrade has replaced the file.
fn exe(pid: i32) -> io::Result<PathBuf> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe"))?;
    Ok(
        match path
            .to_str()
            .and_then(|text| text.strip_suffix(" (deleted)"))
        {
            Some(plain) => PathBuf::from(plain),
            None => path,
        },
    )
}

/// The id of the host's current boot.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    /// `sleep` is known as itself only once the child has become it.
    fn identity(child: &Child) -> Identity {
        let pid = i32::try_from(child.id()).unwrap();
        loop {
            let seen = Identity::of(pid).unwrap();
            if seen.exe.file_name() != Identity::own().unwrap().exe.file_name() {
                return seen;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) S 1 (b)) R 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1000 100 18446744073709551615";
        assert_eq!(parse_stat(text), Some(('R', 987_654)));
        assert_eq!(parse_stat("42 (a"), None);
    }

    #[tokio::test]
    async fn a_process_is_killed_and_seen_to_end() {
        let mut child = sleeper();
        let known = identity(&child);
        assert!(known.is_alive());
        assert!(known.kill(Duration::from_secs(30)).await);
        // It is not reaped yet: a zombie counts as dead.
        assert!(!known.is_alive());
        assert!(known.kill(Duration::from_secs(30)).await);
        child.wait().unwrap();
        assert!(!known.is_alive());
    }

    #[tokio::test]
    async fn a_pid_that_was_reused_is_not_signalled() {
        let mut child = sleeper();
        let now = identity(&child);
        let strangers = [
            Identity {
                start_time: now.start_time + 1,
                ..now.clone()
            },
            Identity {
                exe: "/usr/bin/qemu-system-x86_64".into(),
                ..now.clone()
            },
            Identity {
                boot_id: "another boot".into(),
                ..now.clone()
            },
        ];
        for earlier in strangers {
            assert!(!earlier.is_alive());
            assert!(
                earlier.kill(Duration::from_secs(30)).await,
                "the one that was meant is gone"
            );
            assert!(now.is_alive(), "the stranger was hit by {earlier:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
