//! Which repository a sandbox may see, asked of the runs.
//!
//! The links to hosts need the git route, the git route needs the runs, and the runs need the links:
//! the circle is closed here, after all three exist. Before that every answer is no.

use async_trait::async_trait;
use lazaret_domain::{RepoName, SandboxId};
use lazaret_github::GitGrants;
use lazaret_services::Runs;
use std::sync::{Arc, OnceLock};

/// Grants that come from the runs, once there are some to ask.
#[derive(Clone, Default)]
pub(super) struct LateGrants(Arc<OnceLock<Runs>>);

impl LateGrants {
    /// From now on these runs are asked. Only the first call counts.
    pub(super) fn ask(&self, runs: Runs) {
        if self.0.set(runs).is_err() {
            tracing::debug!("the git route asks the runs already");
        }
    }
}

#[async_trait]
impl GitGrants for LateGrants {
    async fn granted(&self, sandbox: &SandboxId, repo: &RepoName) -> bool {
        match self.0.get() {
            Some(runs) => matches!(runs.repo_of(sandbox).await, Ok(Some(granted)) if granted == *repo),
            None => false,
        }
    }
}
