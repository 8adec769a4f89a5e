//! What sandboxes left behind on a host.

use super::{Ground, until};
use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Everything of sandboxes that is still there. The sshd, the session with its shim in waiting and
/// the uplink belong to the connection, not to a sandbox, and are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Command lines of processes of the host's account.
    pub processes: BTreeSet<String>,
    /// Entries of the directories of sandboxes and spares.
    pub entries: BTreeSet<PathBuf>,
    /// Sockets anywhere in the state directory.
    pub sockets: BTreeSet<PathBuf>,
    /// Mounts of or in the host's directory.
    pub mounts: BTreeSet<String>,
    /// Cgroups below the host's.
    pub cgroups: BTreeSet<PathBuf>,
}

/// Whether this is a shim of a living session that has no sandbox yet: one that has works in its
/// directory.
fn waits_for_a_sandbox(pid: u32, command: &str) -> bool {
    let works_in = std::fs::read_link(format!("/proc/{pid}/cwd"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let session = std::fs::read(format!(
        "/proc/{}/cmdline",
        parent.unwrap_or_default().trim()
    ));
    command.contains(" --waiting")
        && works_in.is_ok_and(|dir| dir == Path::new("/"))
        && session.is_ok_and(|line| String::from_utf8_lossy(&line).contains("\0host\0"))
}

impl Leftovers {
    /// Looks until there is nothing, or the time for that is over.
    pub(super) async fn settle(ground: &Ground) -> anyhow::Result<Self> {
        let clean = until("a clean host", || async {
            Self::look(ground)
                .ok()
                .filter(|left| *left == Self::default())
        });
        match tokio::time::timeout(std::time::Duration::from_secs(10), clean).await {
            Ok(Ok(clean)) => Ok(clean),
            _ => Self::look(ground),
        }
    }

    /// What is there now.
    ///
    /// # Errors
    /// If the host's directories cannot be read.
    pub fn look(ground: &Ground) -> anyhow::Result<Self> {
        let state = ground.state();
        let of_the_connection = |pid: u32, command: &str| {
            command.starts_with("sshd")
                || ["gate", "session", "uplink"]
                    .iter()
                    .any(|word| command.contains(&format!(" host {word} ")))
                || waits_for_a_sandbox(pid, command)
        };
        let mut left = Self {
            processes: ground
                .processes()
                .into_iter()
                .filter(|(pid, command)| !of_the_connection(*pid, command))
                .map(|(_, command)| command)
                .collect(),
            ..Self::default()
        };
        if let Ok(entries) = std::fs::read_dir(state.join("sandboxes")) {
            left.entries = entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<Result<_, _>>()?;
        }
        if let Ok(entries) = std::fs::read_dir(state.join("spares")) {
            let paths = entries.flatten().map(|entry| entry.path());
            left.entries.extend(paths.filter(|path| path.is_dir()));
        }
        sockets(&state, &mut left.sockets);
        left.sockets
            .remove(&state.join(lazaret_api::uplink::SOCKET));
        let base = ground.dir().to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        left.mounts = mounts
            .lines()
            .filter(|line| line.contains(&base))
            .map(str::to_owned)
            .collect();
        for controller in ["memory", "pids", "cpu", ""] {
            let own = Path::new("/sys/fs/cgroup")
                .join(controller)
                .join(ground.account());
            for entry in std::fs::read_dir(own).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != "sshd"
                {
                    left.cgroups.insert(entry.path());
                }
            }
        }
        Ok(left)
    }

    /// # Panics
    /// If anything is left.
    pub fn assert_none(&self) {
        assert!(*self == Self::default(), "the host is not clean: {self:#?}");
    }
}

fn sockets(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => sockets(&entry.path(), found),
            Ok(kind) if kind.is_socket() => {
                found.insert(entry.path());
            }
            _ => {}
        }
    }
}
