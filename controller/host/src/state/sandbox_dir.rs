//! The directory of one sandbox: its files, and the fence that keeps older executors out.

use super::files::{private_file, replace};
use super::internal;
use jiff::Timestamp;
use lazaret_api::host::SandboxSpec;
use lazaret_domain::{Denial, DenialCode, Fence, SandboxId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

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
}

impl SandboxDir {
    /// A sandbox directory at another place, before it is moved to its own.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
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

    /// Refuses a fence lower than the highest seen here, and remembers a higher one.
    ///
    /// # Errors
    /// `stale_fence`, or `internal` if the fence cannot be read or kept.
    pub fn pass_fence(&self, fence: Fence) -> Result<(), Denial> {
        let newest = self
            .raise_fence(fence)
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

    /// The file is locked over read and write: sessions and the shim all come through here.
    fn raise_fence(&self, fence: Fence) -> io::Result<Fence> {
        let mut file = private_file(&self.join("fence"))?;
        file.lock()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let newest = match text.trim() {
            "" => Fence(0),
            text => Fence(
                text.parse()
                    .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a fence"))?,
            ),
        };
        if fence > newest {
            file.rewind()?;
            // Numbers only grow, so the new text is never shorter than the old one.
            file.write_all(fence.0.to_string().as_bytes())?;
        }
        Ok(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_fence_is_refused_by_every_later_process() {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = SandboxDir::at(dir.path().to_owned());
        sandbox.pass_fence(Fence(7)).unwrap();
        sandbox.pass_fence(Fence(7)).unwrap();
        assert_eq!(
            sandbox.pass_fence(Fence(6)).unwrap_err().code,
            DenialCode::StaleFence
        );
        sandbox.pass_fence(Fence(100)).unwrap();
        let again = SandboxDir::at(dir.path().to_owned());
        assert_eq!(
            again.pass_fence(Fence(99)).unwrap_err().code,
            DenialCode::StaleFence
        );
        again.pass_fence(Fence(u64::MAX)).unwrap();
    }

    #[test]
    fn a_damaged_fence_refuses() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("fence"), "many").unwrap();
        let denial = SandboxDir::at(dir.path().to_owned())
            .pass_fence(Fence(1))
            .unwrap_err();
        assert_eq!(denial.code, DenialCode::Internal);
    }
}
