//! Who a process is, and how to end exactly that one.
//!
//! A pid alone names nobody: it is given out again. A process is known by pid, start time, program
//! and the boot it lived in, and is signalled through a descriptor of it that was opened before the
//! check, so that a stranger who got the number in between cannot be hit.

mod program;
mod stat;

pub(crate) use program::find as find_program;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use stat::Stat;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
        Ok(Self {
            pid,
            start_time: Stat::of(pid)?.start_time,
            exe: exe(pid)?,
            boot_id: boot_id()?,
        })
    }

    /// Who we are.
    pub(crate) fn own() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// The processes that a process started and that have not ended.
    pub(crate) fn children_of(parent: i32) -> Vec<Self> {
        let known = stat::children(parent)
            .into_iter()
            .filter_map(|pid| Self::of(pid).ok());
        known.filter(Self::is_alive).collect()
    }

    /// The processes that work in a directory, also one that was removed from under them.
    pub(crate) fn working_in(dir: &Path) -> Vec<Self> {
        // The kernel names places without links on the way; the directory itself may be gone.
        let parent = dir.parent().and_then(|parent| parent.canonicalize().ok());
        let resolved = parent.zip(dir.file_name());
        let resolved = resolved.map(|(parent, name)| parent.join(name));
        let dir = resolved.as_deref().unwrap_or(dir);
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let works_in = plain(std::fs::read_link(entry.path().join("cwd")).ok()?);
            (works_in == dir).then_some(pid)
        });
        pids.filter_map(|pid| Self::of(pid).ok()).collect()
    }

    /// Whether it belongs to a terminal.
    pub(crate) fn has_terminal(&self) -> bool {
        Stat::of(self.pid).is_ok_and(|stat| stat.terminal != 0)
    }

    /// Whether it lived before the host was restarted.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|id| id == self.boot_id)
    }

    /// Whether it still runs. One that has exited and only waits to be reaped does not.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_of_this_boot()
            && Stat::of(self.pid).is_ok_and(|stat| {
                !matches!(stat.state, 'Z' | 'X') && stat.start_time == self.start_time
            })
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
        send(&fd, self.pid, Signal::KILL) && wait(fd, limit).await
    }

    /// Asks it to end, and does not wait. A process that took over the pid is left alone.
    pub(crate) fn ask_to_end(&self) {
        if let Some(fd) = self.open() {
            send(&fd, self.pid, Signal::TERM);
        }
    }
}

/// Says whether the signal was sent or not needed any more.
fn send(fd: &OwnedFd, pid: i32, signal: Signal) -> bool {
    match pidfd_send_signal(fd, signal) {
        Ok(()) | Err(Errno::SRCH) => true,
        Err(error) => {
            tracing::error!(pid, %error, "a process could not be signalled");
            false
        }
    }
}

/// Waits on a thread until the process of that descriptor has ended, or for so long.
async fn wait(fd: OwnedFd, limit: Duration) -> bool {
    tokio::task::spawn_blocking(move || has_ended(&fd, limit))
        .await
        .unwrap_or(false)
}

/// Blocks the thread until the process has ended, or for so long.
fn has_ended(fd: &OwnedFd, limit: Duration) -> bool {
    let started = Instant::now();
    loop {
        let Ok(left) = Timespec::try_from(limit.saturating_sub(started.elapsed())) else {
            return false;
        };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left)) {
            // A signal for us says nothing about the process.
            Err(Errno::INTR) => {}
            ended => return ended.is_ok_and(|ended| ended > 0),
        }
    }
}

/// The program of a process; the same after an upgrade has replaced the file.
fn exe(pid: i32) -> io::Result<PathBuf> {
    Ok(plain(std::fs::read_link(format!("/proc/{pid}/exe"))?))
}

/// The path that the kernel tells of, without its word that nothing is there any more.
fn plain(path: PathBuf) -> PathBuf {
    match path
        .to_str()
        .and_then(|text| text.strip_suffix(" (deleted)"))
    {
        Some(plain) => PathBuf::from(plain),
        None => path,
    }
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
    async fn who_works_in_a_directory_is_found_also_when_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let linked = root.path().join("linked");
        std::os::unix::fs::symlink(root.path(), &linked).unwrap();
        let [here, there] = ["here", "there"].map(|name| linked.join(name));
        let mut children = [&here, &there].map(|dir| {
            std::fs::create_dir(dir).unwrap();
            Command::new("sleep")
                .arg("600")
                .current_dir(dir)
                .spawn()
                .unwrap()
        });
        let pid = i32::try_from(children[0].id()).unwrap();
        identity(&children[0]);
        for _ in 0..2 {
            let found: Vec<_> = Identity::working_in(&here)
                .iter()
                .map(|one| one.pid)
                .collect();
            assert_eq!(found, [pid]);
            let _ = std::fs::remove_dir(&here);
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
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

    /// Whether a thread of ours waits in the kernel.
    fn sleeps(thread: Pid) -> bool {
        let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
        std::fs::read_to_string(path).is_ok_and(|text| {
            text.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
        })
    }

    /// A signal that we handle interrupts the wait and must not be taken for its end.
    #[tokio::test]
    async fn a_signal_for_us_does_not_end_the_wait_for_another() {
        let mut handled =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1()).unwrap();
        let mut child = sleeper();
        let fd = identity(&child).open().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            has_ended(&fd, Duration::from_secs(60))
        });
        let waiter = told.recv().unwrap();
        for _ in 0..20 {
            // The kernel gives it to the thread that is named, as long as that one takes it.
            rustix::process::kill_process(waiter, Signal::USR1).unwrap();
            handled.recv().await;
            // It waits again, or has wrongly come back.
            while !waiting.is_finished() && !sleeps(waiter) {
                tokio::task::yield_now().await;
            }
        }
        assert!(!waiting.is_finished(), "the wait was given up");
        child.kill().unwrap();
        assert!(waiting.join().unwrap());
        child.wait().unwrap();
    }
}
