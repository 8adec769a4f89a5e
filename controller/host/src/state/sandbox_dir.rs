//! The directory of one sandbox: its files, and beside it the fence that keeps older executors out.

use super::files::replace;
use super::{fence, internal};
use jiff::Timestamp;
use lazaret_api::host::SandboxSpec;
use lazaret_domain::{Denial, DenialCode, Fence, SandboxId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// A sandbox's disk in its directory.
pub(crate) const DISK: &str = "disk.qcow2";

/// In the directory of a sandbox that was a spare: the name of its cgroup.
pub(crate) const CAGE: &str = "cage.json";

/// What a sandbox is to be, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: SandboxId,
    /// Its specification.
    pub spec: SandboxSpec,
    /// When it was asked for.
    pub created_at: Timestamp,
}

/// The directory of one sandbox.
#[derive(Clone, Debug)]
pub struct SandboxDir {
    path: PathBuf,
    fence: PathBuf,
}

impl SandboxDir {
    /// A sandbox directory at that place, whose fence is kept in that file.
    pub(super) fn at(path: PathBuf, fence: PathBuf) -> Self {
        Self { path, fence }
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Something in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The socket of its shim.
    #[must_use]
    pub fn shim_socket(&self) -> PathBuf {
        self.join("shim.sock")
    }

    /// Whether the directory is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// The file that its disk is written to: the last layer, where copies were made of it.
    #[must_use]
    pub fn top_disk(&self) -> PathBuf {
        let layer = |number: &u32| self.join(&format!("disk-{number}.qcow2"));
        let last = (1_u32..).take_while(|number| layer(number).exists()).last();
        last.map_or_else(|| self.join(DISK), |number| layer(&number))
    }

    /// The name of its cgroup: its id, or that of the spare that it was.
    #[must_use]
    pub fn cage(&self, id: &SandboxId) -> SandboxId {
        self.read(CAGE).unwrap_or_else(|| id.clone())
    }

    /// Notes the name of its cgroup, which it keeps.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_cage(&self, id: &SandboxId) -> io::Result<()> {
        self.write(CAGE, id)
    }

    /// Reads one of its JSON files, if it is there and whole.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.join(name)).ok()?).ok()
    }

    /// Replaces one of its JSON files at once.
    ///
    /// # Errors
    /// If it cannot be written; the old one is then still there.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        replace(&self.join(name), &serde_json::to_vec(value)?)
    }

    /// Refuses a fence lower than the highest seen for this id, and remembers a higher one. The
    /// sandbox need not be there, and forgets nothing when it leaves.
    ///
    /// # Errors
    /// `stale_fence`, or `internal` if the fence cannot be read or kept.
    pub fn pass_fence(&self, fence: Fence) -> Result<(), Denial> {
        let newest = fence::raise(&self.fence, fence)
            .map_err(|error| internal("check the fence", &error))?;
        if fence < newest {
            return Err(Denial::new(
                DenialCode::StaleFence,
                format!(
                    "fence {} is older than {}: a newer executor holds this sandbox",
                    fence.0, newest.0
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_fence_is_refused_by_every_later_process() {
        let dir = tempfile::tempdir().unwrap();
        let at = || SandboxDir::at(dir.path().join("s"), dir.path().join("fence"));
        let sandbox = at();
        sandbox.pass_fence(Fence(7)).unwrap();
        sandbox.pass_fence(Fence(7)).unwrap();
        assert_eq!(
            sandbox.pass_fence(Fence(6)).unwrap_err().code,
            DenialCode::StaleFence
        );
        sandbox.pass_fence(Fence(100)).unwrap();
        let again = at();
        assert_eq!(
            again.pass_fence(Fence(99)).unwrap_err().code,
            DenialCode::StaleFence
        );
        again.pass_fence(Fence(u64::MAX)).unwrap();
    }

    #[test]
    fn what_is_written_to_is_the_last_layer() {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = SandboxDir::at(dir.path().to_owned(), dir.path().join("fence"));
        assert_eq!(sandbox.top_disk(), dir.path().join(DISK));
        for name in ["disk-1.qcow2", "disk-2.qcow2", "disk-9.qcow2"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(sandbox.top_disk(), dir.path().join("disk-2.qcow2"));
    }

    #[test]
    fn a_damaged_fence_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let fence = dir.path().join("fence");
        std::fs::write(&fence, "many").unwrap();
        let sandbox = SandboxDir::at(dir.path().join("s"), fence);
        let denial = sandbox.pass_fence(Fence(1)).unwrap_err();
        assert_eq!(denial.code, DenialCode::Internal);
    }
}
