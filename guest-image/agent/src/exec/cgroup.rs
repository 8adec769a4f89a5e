//! Control groups: one for all commands, and in it one for each.
//!
//! The outer one leaves the guest agent its share of the processor and some memory, so that a fork
//! bomb or a memory hog dies without taking the agent along. The inner ones are what a command
//! cannot leave, whatever it does with sessions and process groups; `cgroup.kill` ends one whole.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Of the memory that is available before any command runs, what commands together may not have: the
/// agent's, and what the kernel takes while they run. Were it too little, the whole guest would run
/// out of memory before its commands reach their limit.
const RESERVED_MEMORY: u64 = 32 << 20;
/// How often a group is looked at while waiting for it to be empty.
const LOOK: Duration = Duration::from_millis(5);
/// How long the kernel may take to stop or end everything: a process in the middle of a slow write
/// cannot be stopped before that is through.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where commands are contained.
#[derive(Clone)]
pub struct Cgroups {
    commands: PathBuf,
    next: Arc<AtomicU64>,
}

impl Cgroups {
    /// Sets the outer group up, below a mounted cgroup2 file system.
    ///
    /// # Errors
    /// A controller is missing or a limit is refused.
    pub fn set_up(root: &Path) -> io::Result<Self> {
        let commands = root.join("commands");
        fs::write(root.join("cgroup.subtree_control"), "+cpu +memory +pids")?;
        fs::create_dir_all(&commands)?;
        let there = available(&fs::read_to_string("/proc/meminfo")?)?;
        let limit = there.saturating_sub(RESERVED_MEMORY).max(there / 2);
        fs::write(commands.join("memory.max"), limit.to_string())?;
        fs::write(commands.join("pids.max"), "30000")?;
        fs::write(commands.join("cgroup.subtree_control"), "+memory +pids")?;
        Ok(Self {
            commands,
            next: Arc::default(),
        })
    }

    /// Stops every process of every command where it stands.
    pub(super) async fn stop(&self) -> io::Result<()> {
        fs::write(self.commands.join("cgroup.freeze"), "1")?;
        self.until("frozen 1").await
    }

    /// Lets them go on.
    pub(super) fn go_on(&self) -> io::Result<()> {
        fs::write(self.commands.join("cgroup.freeze"), "0")
    }

    /// Ends every process of every command, also if they stand still.
    pub(super) async fn end_all(&self) -> io::Result<()> {
        fs::write(self.commands.join("cgroup.kill"), "1")?;
        self.until("populated 0").await
    }

    async fn until(&self, wanted: &str) -> io::Result<()> {
        let events = self.commands.join("cgroup.events");
        let reached = async {
            while !fs::read_to_string(&events)?.contains(wanted) {
                sleep(LOOK).await;
            }
            Ok(())
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("not '{wanted}' in time"));
        timeout(PATIENCE, reached).await.map_err(late)?
    }

    /// Makes a group for one command.
    pub(super) fn group(&self, processes: u32) -> io::Result<Group> {
        let name = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = self.commands.join(format!("exec-{name}"));
        fs::create_dir(&dir)?;
        let group = Group { dir };
        fs::write(group.dir.join("pids.max"), processes.to_string())?;
        Ok(group)
    }
}

/// The memory that can be had, in bytes, without the guest running out of it: proc_meminfo(5).
fn available(meminfo: &str) -> io::Result<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10)
        .ok_or_else(|| io::Error::other("/proc/meminfo does not tell what memory is available"))
}

/// The control group of one command. Removed with it.
pub(super) struct Group {
    dir: PathBuf,
}

impl Group {
    /// The file a process writes `0` to in order to enter.
    pub(super) fn entrance(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .open(self.dir.join("cgroup.procs"))
    }

    fn is_empty(&self) -> bool {
        // A group that cannot be read is gone.
        fs::read_to_string(self.dir.join("cgroup.events"))
            .map_or(true, |text| text.contains("populated 0"))
    }

    fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
            .collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// What holds a command together.
pub(super) enum Containment {
    /// A control group, in a guest.
    Cgroup(Group),
    /// Its process group alone, in an ordinary process.
    ProcessGroup,
}

impl Containment {
    /// Asks every process to end.
    pub(super) fn terminate(&self, leader: Pid) {
        let _ = kill_process_group(leader, Signal::TERM);
        if let Self::Cgroup(group) = self {
            for pid in group.members() {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    }

    /// Waits until no process is left, but no longer than `patience`.
    pub(super) async fn settle(&self, patience: Duration) {
        if let Self::Cgroup(group) = self {
            let _ = timeout(patience, async {
                while !group.is_empty() {
                    sleep(LOOK).await;
                }
            })
            .await;
        }
    }

    /// Ends every process that is left. Returns when they are gone.
    pub(super) async fn kill(&self, leader: Pid) {
        match self {
            Self::ProcessGroup => {
                let _ = kill_process_group(leader, Signal::KILL);
            }
            Self::Cgroup(group) => {
                if !group.is_empty() {
                    let _ = fs::write(group.dir.join("cgroup.kill"), "1");
                    self.settle(Duration::from_secs(10)).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_that_is_available_is_read_or_nothing_is_contained() {
        let told =
            "MemTotal:  491520 kB\nMemFree: 400 kB\nMemAvailable:     441344 kB\nBuffers: 1 kB\n";
        assert_eq!(available(told).unwrap(), 441_344 << 10);
        for told in [
            "",
            "MemFree: 1 kB",
            "MemAvailable: much kB",
            "MemAvailable: 12",
        ] {
            assert!(available(told).is_err(), "{told}");
        }
    }
}
