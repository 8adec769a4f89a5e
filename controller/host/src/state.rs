//! The state directory of a host, and in it one directory per sandbox.
//!
//! ```text
//! STATE/host.toml                 settings
//!       lock                      held while a sandbox comes into being or leaves
//!       images/<digest>/          guest images
//!       disks/                    formatted, empty file systems that sandbox disks are laid over
//!       templates/<key>/          frozen guests that sandboxes are forked from
//!       layers/                   what disks were when copies were made of their sandboxes
//!       spares/<id>/              forks of templates that wait to become a sandbox: they move there whole
//!       fences/<id>               the highest fence seen, kept for a day after the sandbox
//!       uplink.sock               the way to the controller, while there is one
//!       sandboxes/<id>/           all of one sandbox
//!           record.json           what it is to be (written before it appears)
//!           shim.json  vmm.json   who its processes are
//!           status.json           what it was when it last changed
//!           shim.sock             its shim
//!           disk.qcow2            its disk
//!           memory.lz4            what was saved of it, while it sleeps
//!           execs/<exec>/         its commands and their output
//! ```
//!
//! A sandbox directory appears by a rename, complete, and disappears by one. Names that start with
//! a dot are on their way in or out and belong to whoever holds the lock.

mod fence;
mod files;
mod layers;
mod places;
mod sandbox_dir;

pub(crate) use files::{private_dir, private_file, replace, replace_as};
pub(crate) use layers::LAYERS;
pub(crate) use places::Waking;
pub(crate) use sandbox_dir::{CAGE, DISK};
pub use sandbox_dir::{Record, SandboxDir};

use crate::config::HostConfig;
use lazaret_domain::{Denial, DenialCode, SandboxId};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The longest path of a Unix socket that QEMU and the kernel take, with some room.
const LONGEST_SOCKET_PATH: usize = 100;

/// A state directory with its settings. Cheap to clone.
#[derive(Clone, Debug)]
pub struct State {
    root: Arc<Path>,
    config: Arc<HostConfig>,
}

/// Held while a sandbox comes into being or leaves; let go when dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl State {
    /// Opens a state directory, making what is missing in it.
    ///
    /// # Errors
    /// If it cannot be made or its path is too long for sockets in it.
    pub fn open(root: PathBuf, config: HostConfig) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        private_dir(&root)?;
        private_dir(&root.join("sandboxes"))?;
        private_dir(&root.join("disks"))?;
        private_dir(&root.join("fences"))?;
        private_dir(&root.join("templates"))?;
        private_dir(&root.join("layers"))?;
        private_dir(&root.join("spares"))?;
        let longest = root
            .join("sandboxes")
            .join("s0123456789abcdef")
            .join("control.sock");
        if longest.as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the path {} is too long for sockets below it",
                    root.display()
                ),
            ));
        }
        Ok(Self {
            root: root.into(),
            config: Arc::new(config),
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where images are.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.config
            .images_dir
            .clone()
            .unwrap_or_else(|| self.root.join("images"))
    }

    /// Where formatted empty disks are kept.
    #[must_use]
    pub fn disks(&self) -> PathBuf {
        self.root.join("disks")
    }

    /// Where templates are.
    #[must_use]
    pub fn templates(&self) -> PathBuf {
        self.root.join("templates")
    }

    /// The socket of the uplink.
    #[must_use]
    pub fn uplink_socket(&self) -> PathBuf {
        self.root.join(lazaret_api::uplink::SOCKET)
    }

    /// The directory of a sandbox, whether or not it is there.
    #[must_use]
    pub fn sandbox(&self, id: &SandboxId) -> SandboxDir {
        self.sandbox_at(self.root.join("sandboxes").join(id.as_str()), id)
    }

    /// The directory of a sandbox that is being made, before it is moved to its place.
    pub(crate) fn new_sandbox(&self, id: &SandboxId) -> SandboxDir {
        self.sandbox_at(self.passage(id, "new"), id)
    }

    fn sandbox_at(&self, path: PathBuf, id: &SandboxId) -> SandboxDir {
        SandboxDir::at(path, self.root.join("fences").join(id.as_str()))
    }

    /// Where spares are.
    pub(crate) fn spares(&self) -> PathBuf {
        self.root.join("spares")
    }

    /// The directory of a spare.
    pub(crate) fn spare(&self, id: &SandboxId) -> SandboxDir {
        self.sandbox_at(self.spares().join(id.as_str()), id)
    }

    /// The name under which a sandbox directory is made (`new`) or removed (`old`).
    pub(crate) fn passage(&self, id: &SandboxId, way: &str) -> PathBuf {
        self.root.join("sandboxes").join(format!(".{way}-{id}"))
    }

    /// The ids of all sandboxes that have a directory, oldest first.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn ids(&self) -> io::Result<Vec<SandboxId>> {
        ids_in(&self.root.join("sandboxes"))
    }

    /// The ids of all spares that have a directory, oldest first.
    pub(crate) fn spare_ids(&self) -> io::Result<Vec<SandboxId>> {
        ids_in(&self.spares())
    }

    /// Waits for the lock. Blocks the thread.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn lock_blocking(&self) -> io::Result<StateLock> {
        let file = private_file(&self.root.join("lock"))?;
        file.lock()?;
        Ok(StateLock { _file: file })
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// `internal` if the lock file cannot be opened.
    pub async fn lock(&self) -> Result<StateLock, Denial> {
        let state = self.clone();
        match tokio::task::spawn_blocking(move || state.lock_blocking()).await {
            Ok(Ok(lock)) => Ok(lock),
            Ok(Err(error)) => Err(internal("take the host's lock", &error)),
            Err(_) => Err(Denial::new(
                DenialCode::Stopping,
                "the host session is stopping",
            )),
        }
    }

    /// Bytes that are free for sandboxes.
    ///
    /// # Errors
    /// If the file system does not say.
    pub fn disk_free(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(self.root.as_ref())?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Removes what a crash left half made or half removed, and fences that are no longer needed.
    /// The lock is the proof that nobody is at it.
    pub(crate) fn sweep(&self, _lock: &StateLock) {
        self.prune_fences();
        self.collect_layers();
        let Ok(entries) = std::fs::read_dir(self.root.join("sandboxes")) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".")
                && let Err(error) = std::fs::remove_dir_all(entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "a leftover could not be removed");
            }
        }
    }
}

fn ids_in(dir: &Path) -> io::Result<Vec<SandboxId>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        if let Some(id) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            ids.push(id);
        }
    }
    ids.sort();
    Ok(ids)
}

impl State {
    fn prune_fences(&self) {
        let Ok(entries) = std::fs::read_dir(self.root.join("fences")) else {
            return;
        };
        let now = SystemTime::now();
        for entry in entries.flatten() {
            let there = self.root.join("sandboxes").join(entry.file_name()).exists();
            if !there && let Err(error) = fence::prune(&entry.path(), now) {
                tracing::warn!(path = %entry.path().display(), %error, "a fence could not be removed");
            }
        }
    }
}

/// A fault of ours, logged with its cause where it happens; the caller learns what was being done.
pub(crate) fn internal(doing: &str, error: &dyn std::error::Error) -> Denial {
    tracing::error!(%error, "could not {doing}");
    Denial::new(
        DenialCode::Internal,
        format!("the host could not {doing}: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use lazaret_domain::Fence;

    #[test]
    fn a_state_directory_too_deep_for_sockets_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(80));
        assert!(State::open(deep, HostConfig::default()).is_err());
    }

    #[test]
    fn leftovers_are_swept_and_sandboxes_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().join("s"), HostConfig::default()).unwrap();
        let id = SandboxId::make(Timestamp::UNIX_EPOCH, 5);
        for path in [
            state.passage(&id, "new"),
            state.passage(&id, "old"),
            state.sandbox(&id).path().to_owned(),
        ] {
            std::fs::create_dir_all(path.join("x")).unwrap();
        }
        state.sweep(&state.lock_blocking().unwrap());
        assert_eq!(state.ids().unwrap(), std::slice::from_ref(&id));
        assert!(!state.passage(&id, "new").exists() && !state.passage(&id, "old").exists());
    }

    #[test]
    fn old_fences_are_swept_unless_their_sandbox_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().join("s"), HostConfig::default()).unwrap();
        let [there, gone, fresh] = [5, 6, 7].map(|n| SandboxId::make(Timestamp::UNIX_EPOCH, n));
        for id in [&there, &gone, &fresh] {
            state.sandbox(id).pass_fence(Fence(3)).unwrap();
        }
        std::fs::create_dir(state.sandbox(&there).path()).unwrap();
        for id in [&there, &gone] {
            File::open(state.root().join("fences").join(id.as_str()))
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
        }
        state.sweep(&state.lock_blocking().unwrap());
        for (id, kept) in [(&there, true), (&gone, false), (&fresh, true)] {
            assert_eq!(
                state.sandbox(id).pass_fence(Fence(2)).is_err(),
                kept,
                "{id}"
            );
        }
    }
}
