//! The workspace of a run: files out and uploads in. All of it needs the sandbox.

use super::archive::{First, first_entry, first_file, tar_of};
use super::{FileBytes, Runs};
use crate::Principal;
use crate::ports::host_link::{Area, HostLink};
use crate::ports::store::RunRecord;
use bytes::Bytes;
use futures::{StreamExt, stream};
use lazaret_api::public::{FileList, Scope};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, GuestPath, RunId, UploadName};
use std::sync::Arc;

/// The largest file that is read, in bytes.
const FILE_CAP: usize = 10 * 1000 * 1000;
/// Headers and padding of a tar stream with one file, generously.
const TAR_OVERHEAD: usize = 64 * 1024;

pub(super) fn gone() -> Denial {
    Denial::new(
        DenialCode::SandboxGone,
        "the run's sandbox is gone, and its workspace with it",
    )
}

impl Runs {
    /// The run's host, if its sandbox can be used.
    pub(super) fn workspace(&self, record: &RunRecord) -> Result<Arc<dyn HostLink>, Denial> {
        let Some(sandbox) = &record.facts.sandbox else {
            let ended = record.state.ending().is_some();
            let not_yet = || {
                Denial::new(
                    DenialCode::RunNotReady,
                    "the run's sandbox is not ready yet",
                )
                .retry_after(2)
            };
            return Err(if ended { gone() } else { not_yet() });
        };
        match sandbox.state {
            _ if !record.holds || record.facts.teardown_asked.is_some() => Err(gone()),
            SandboxState::Gone => Err(gone()),
            SandboxState::Forking => Err(Denial::new(
                DenialCode::RunNotReady,
                "the run's sandbox is not ready yet",
            )
            .retry_after(2)),
            SandboxState::Ready | SandboxState::Asleep => {
                self.core.hosts.link(&record.plan.host).ok_or_else(gone)
            }
        }
    }

    /// A directory of the workspace. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `file_not_found`, and why the host cannot be
    /// asked.
    pub async fn files(
        &self,
        by: &Principal,
        run: &RunId,
        path: &GuestPath,
    ) -> Result<FileList, Denial> {
        let record = self.record(by, run).await?;
        let listing = self
            .workspace(&record)?
            .list_files(&record.plan.sandbox, path)
            .await?;
        Ok(FileList {
            path: path.as_str().to_owned(),
            entries: listing.entries,
            truncated: listing.truncated,
        })
    }

    /// A file of the workspace, at most 10 MB. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `file_not_found`, `not_a_file`, `too_large`,
    /// and why the host cannot be asked.
    pub async fn read_file(
        &self,
        by: &Principal,
        run: &RunId,
        path: &GuestPath,
    ) -> Result<FileBytes, Denial> {
        let record = self.record(by, run).await?;
        let not_a_file =
            || Denial::new(DenialCode::NotAFile, "the path is not a regular file").at("path");
        let name = path.file_name().ok_or_else(not_a_file)?.to_owned();
        let mut stream = self
            .workspace(&record)?
            .read_tar(&record.plan.sandbox, path)
            .await?;
        let mut tar = Vec::new();
        while let Some(bytes) = stream.next().await {
            tar.extend_from_slice(&bytes?);
            // Its header says what it is: a tree need not be read to its end to be refused.
            let too_large = match first_entry(&tar) {
                First::Unknown => tar.len() > TAR_OVERHEAD + FILE_CAP,
                First::NoFile => return Err(not_a_file()),
                First::File { size } => {
                    size > FILE_CAP as u64 || tar.len() > FILE_CAP + TAR_OVERHEAD
                }
            };
            if too_large {
                let why = format!(
                    "files of more than {} MB are not read this way",
                    FILE_CAP / 1_000_000
                );
                return Err(Denial::new(DenialCode::TooLarge, why).at("path"));
            }
        }
        let bytes = first_file(&tar).ok_or_else(not_a_file)?;
        Ok(FileBytes { name, bytes })
    }

    /// Puts a file into the area that the agent can only read. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, and why the host cannot be asked.
    pub async fn put_file(
        &self,
        by: &Principal,
        run: &RunId,
        name: &UploadName,
        bytes: Bytes,
    ) -> Result<(), Denial> {
        by.require(Scope::Run)?;
        let mut record = self.record(by, run).await?;
        let link = self.workspace(&record)?;
        let parts = tar_of(name, &bytes, self.core.now().as_second())?;
        for last in [false, false, true] {
            let tar = stream::iter(parts.clone().map(Ok)).boxed();
            let root = GuestPath::default();
            match link
                .write_tar(
                    record.fence,
                    &record.plan.sandbox,
                    Area::Uploads,
                    &root,
                    tar,
                )
                .await
            {
                Err(denial) if !last => record = self.once_more(by, run, denial).await?,
                answer => return answer,
            }
        }
        Ok(())
    }
}
