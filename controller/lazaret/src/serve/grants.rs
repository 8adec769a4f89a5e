//! Which repository a sandbox may see, asked of the runs.
//!
//! The links to hosts need the git route, the git route needs the runs, and the runs need the links:
//! the circle is closed here, after all three exist, and opened again at the stop. Outside of that
//! time every answer is no.

use async_trait::async_trait;
use lazaret_domain::{RepoName, SandboxId};
use lazaret_github::GitGrants;
use lazaret_services::Runs;
use std::sync::{Arc, PoisonError, RwLock};

/// Grants that come from the runs, while there are some to ask.
#[derive(Clone, Default)]
pub(super) struct LateGrants(Arc<RwLock<Option<Runs>>>);

impl LateGrants {
    /// From now on these runs are asked.
    pub(super) fn ask(&self, runs: Runs) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(runs);
    }

    /// From now on nobody is asked.
    pub(super) fn forget(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn runs(&self) -> Option<Runs> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[async_trait]
impl GitGrants for LateGrants {
    async fn granted(&self, sandbox: &SandboxId, repo: &RepoName) -> bool {
        match self.runs() {
            Some(runs) => {
                matches!(runs.repo_of(sandbox).await, Ok(Some(granted)) if granted == *repo)
            }
            None => false,
        }
    }
}
