//! Runs.
use crate::{IdempotencyKey, Principal};
use bytes::Bytes;
use futures::stream::BoxStream;
use lazaret_api::public::{CreateRun, Diff, Event, EventPage, ExecResult, ExecRun, FileList, Run, RunList, TornDown};
use lazaret_domain::{Denial, GuestPath, RepoName, RunId, SandboxId, UploadName};
use std::time::Duration;

/// Runs.
#[derive(Clone)]
pub struct Runs {}

/// A file from a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBytes {
    /// Its name, the last segment of its path.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
}

macro_rules! soon {
    ($($t:tt)*) => {{ let _ = ($($t)*); Err(crate::unbuilt()) }};
}

impl Runs {
    /// Accepts a task; its run is durable when this answers. Needs `run`.
    ///
    /// # Errors
    /// A denial before anything was allocated: input out of form, `sandbox_cap`, `no_host`, …
    pub async fn delegate(&self, by: &Principal, key: Option<IdempotencyKey>, request: CreateRun) -> Result<Run, Denial> {
        soon!(by, key, request)
    }
    /// One run. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`.
    pub async fn get(&self, by: &Principal, run: &RunId) -> Result<Run, Denial> {
        soon!(by, run)
    }
    /// A page of runs, newest first; `limit` is 1 to 200. Needs `read`.
    ///
    /// # Errors
    /// `invalid_request`.
    pub async fn list(&self, by: &Principal, before: Option<RunId>, limit: u32, active: bool) -> Result<RunList, Denial> {
        soon!(by, before, limit, active)
    }
    /// A run once it is done or parked, or as it is after `timeout`. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`.
    pub async fn wait(&self, by: &Principal, run: &RunId, timeout: Duration) -> Result<Run, Denial> {
        soon!(by, run, timeout)
    }
    /// Events after a number; `limit` is 1 to 1000. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `invalid_request`.
    pub async fn events(&self, by: &Principal, run: &RunId, after: u64, limit: u32) -> Result<EventPage, Denial> {
        soon!(by, run, after, limit)
    }
    /// Events after a number, then those to come, without gap or double; ends after `end`. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`.
    pub async fn follow(&self, by: &Principal, run: &RunId, after: u64) -> Result<BoxStream<'static, Event>, Denial> {
        soon!(by, run, after)
    }
    /// The last lines of the log, 1 to 5000. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `invalid_request`.
    pub async fn log_tail(&self, by: &Principal, run: &RunId, lines: u32) -> Result<String, Denial> {
        soon!(by, run, lines)
    }
    /// What the run changed. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `no_diff`.
    pub async fn diff(&self, by: &Principal, run: &RunId) -> Result<Diff, Denial> {
        soon!(by, run)
    }
    /// A directory of the workspace. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `file_not_found`.
    pub async fn files(&self, by: &Principal, run: &RunId, path: &GuestPath) -> Result<FileList, Denial> {
        soon!(by, run, path)
    }
    /// A file of the workspace, at most 10 MB. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `sandbox_gone`, `file_not_found`, `not_a_file`, `too_large`.
    pub async fn read_file(&self, by: &Principal, run: &RunId, path: &GuestPath) -> Result<FileBytes, Denial> {
        soon!(by, run, path)
    }
    /// Puts a file into the area that the agent can only read. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`.
    pub async fn put_file(&self, by: &Principal, run: &RunId, name: &UploadName, bytes: Bytes) -> Result<(), Denial> {
        soon!(by, run, name, bytes)
    }
    /// Runs a command beside the run. Needs `operate`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`.
    pub async fn exec(&self, by: &Principal, run: &RunId, request: ExecRun) -> Result<ExecResult, Denial> {
        soon!(by, run, request)
    }
    /// Ends the work, keeps the sandbox. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_over`.
    pub async fn cancel(&self, by: &Principal, run: &RunId) -> Result<Run, Denial> {
        soon!(by, run)
    }
    /// Ends the run from any state and removes all it held. Idempotent. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`.
    pub async fn teardown(&self, by: &Principal, run: &RunId) -> Result<TornDown, Denial> {
        soon!(by, run)
    }
    /// The repository that a live sandbox works on: the only one its gateway may ask for.
    ///
    /// # Errors
    /// `sandbox_not_found` for a sandbox that no run holds.
    pub async fn repo_of(&self, sandbox: &SandboxId) -> Result<Option<RepoName>, Denial> {
        soon!(sandbox)
    }
}
