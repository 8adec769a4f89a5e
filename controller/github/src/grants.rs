//! The port by which the route learns what a sandbox may see.

use async_trait::async_trait;
use lazaret_domain::{RepoName, SandboxId};
use std::collections::HashSet;

/// Knows the repositories of a sandbox's run. When in doubt the answer is no.
#[async_trait]
pub trait GitGrants: Send + Sync + 'static {
    /// Whether that sandbox may read that repository.
    async fn granted(&self, sandbox: &SandboxId, repo: &RepoName) -> bool;
}

/// Grants from a list that does not change: the fake.
#[derive(Clone, Debug, Default)]
pub struct FixedGrants(HashSet<(SandboxId, RepoName)>);

impl FixedGrants {
    /// The same with one more.
    #[must_use]
    pub fn with(mut self, sandbox: SandboxId, repo: RepoName) -> Self {
        self.0.insert((sandbox, repo));
        self
    }
}

#[async_trait]
impl GitGrants for FixedGrants {
    async fn granted(&self, sandbox: &SandboxId, repo: &RepoName) -> bool {
        self.0.contains(&(sandbox.clone(), repo.clone()))
    }
}
