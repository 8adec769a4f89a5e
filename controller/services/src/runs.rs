//! Runs: what callers can ask of them. Reading goes to the store; changing goes to the run's driver.
//!
//! | module | use cases |
//! | --- | --- |
//! | [`accept`] | delegate: check, place, store, start |
//! | [`view`] | a stored run as it is shown |
//! | [`fork`] | copies of a run |
//! | [`rest`] | sleep, wake, keep |
//! | [`places`] | who holds a place under the cap |
//! | [`turns`] | one at a time for each run |
//! | [`history`] | events, following, the log |
//! | [`workspace`] | files out, uploads in |
//! | [`beside`] | commands beside the run |
//! | [`diff`] | what the run changed, as stored or as it is now |
//! | [`archive`] | one file as a tar stream: pure |

mod accept;
mod archive;
mod beside;
mod diff;
mod fork;
mod history;
mod places;
mod rest;
mod turns;
mod view;
mod workspace;

pub(crate) use diff::LiveDiffs;
pub(crate) use places::Places;
pub(crate) use turns::Turns;

use crate::core::Core;
use crate::driver::{self, Want};
use crate::ports::store::RunRecord;
use crate::{IdempotencyKey, Principal};
use bytes::Bytes;
use lazaret_api::public::{CreateRun, Run, RunList, Scope, TornDown};
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_domain::{Denial, DenialCode, RepoName, RunId, SandboxId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Runs.
#[derive(Clone)]
pub struct Runs {
    pub(crate) core: Arc<Core>,
}

/// A file from a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBytes {
    /// Its name, the last segment of its path.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A number from the outside that must lie between two others.
fn within(field: &str, value: u32, max: u32) -> Result<u32, Denial> {
    if (1..=max).contains(&value) {
        Ok(value)
    } else {
        Err(Denial::new(
            DenialCode::InvalidRequest,
            format!("{field} is a whole number from 1 to {max}"),
        )
        .at(field))
    }
}

impl Runs {
    /// Accepts a task; its run is durable when this answers. Needs `run`.
    ///
    /// # Errors
    /// A denial before anything was allocated: input out of form or out of bounds, `sandbox_cap`,
    /// `no_host` or why no host can take it, `idempotency_mismatch`, `store_failed`.
    pub async fn delegate(
        &self,
        by: &Principal,
        key: Option<IdempotencyKey>,
        request: CreateRun,
    ) -> Result<Run, Denial> {
        by.require(Scope::Run)?;
        let record = accept::accept(&self.core, by, key, request).await?;
        Ok(view::run(&self.core, record))
    }

    /// The run, for whoever may read.
    async fn record(&self, by: &Principal, run: &RunId) -> Result<RunRecord, Denial> {
        by.require(Scope::Read)?;
        let record = self.core.ports.store.run(run).await?;
        record.ok_or_else(|| Denial::new(DenialCode::RunNotFound, format!("there is no run {run}")))
    }

    /// One run. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn get(&self, by: &Principal, run: &RunId) -> Result<Run, Denial> {
        Ok(view::run(&self.core, self.record(by, run).await?))
    }

    /// A page of runs, newest first; `limit` is 1 to 200. Needs `read`.
    ///
    /// # Errors
    /// `invalid_request`, `scope_too_narrow`, `store_failed`.
    pub async fn list(
        &self,
        by: &Principal,
        before: Option<RunId>,
        limit: u32,
        active: bool,
    ) -> Result<RunList, Denial> {
        by.require(Scope::Read)?;
        let limit = within("limit", limit, 200)?;
        let mut records = self
            .core
            .ports
            .store
            .runs(before.as_ref(), limit + 1, active)
            .await?;
        let more = records.len() > limit as usize;
        records.truncate(limit as usize);
        let next = records
            .last()
            .filter(|_| more)
            .map(|record| record.id.clone());
        Ok(RunList {
            runs: records
                .into_iter()
                .map(|record| view::run(&self.core, record))
                .collect(),
            next,
        })
    }

    /// A run once it is done or parked, or as it is after `timeout`. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn wait(
        &self,
        by: &Principal,
        run: &RunId,
        timeout: Duration,
    ) -> Result<Run, Denial> {
        let settled =
            |record: &RunRecord| matches!(record.state.phase(), RunPhase::Done | RunPhase::Parked);
        let record = self.wait_until(by, run, timeout, settled).await?;
        Ok(view::run(&self.core, record))
    }

    /// The run once something holds of it, or as it is after `timeout`.
    async fn wait_until(
        &self,
        by: &Principal,
        run: &RunId,
        timeout: Duration,
        holds: impl Fn(&RunRecord) -> bool,
    ) -> Result<RunRecord, Denial> {
        let deadline = Instant::now() + timeout;
        let mut feed = self.core.feeds.subscribe(run);
        loop {
            feed.mark_unchanged();
            let record = self.record(by, run).await?;
            if holds(&record) || self.core.stop.is_cancelled() {
                return Ok(record);
            }
            let changed = async {
                tokio::select! {
                    _ = feed.changed() => {}
                    () = self.core.stop.cancelled() => {}
                }
            };
            if timeout_at(deadline, changed).await.is_err() {
                return Ok(record);
            }
        }
    }

    /// Ends the work and keeps the sandbox. Answers the run once it is done, or as it is when its
    /// host takes too long. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_over`, `scope_too_narrow`, `store_failed`.
    pub async fn cancel(&self, by: &Principal, run: &RunId) -> Result<Run, Denial> {
        by.require(Scope::Run)?;
        self.record(by, run).await?;
        tracing::info!(%run, by = %by.key, "cancel asked for");
        driver::ask(&self.core, run, Want::Cancel).await?;
        self.wait(by, run, self.core.settings.pace.patience).await
    }

    /// Ends the run from any state and removes all it held. Idempotent. If the host is away the
    /// answer says `removed: false`; the removal goes on by itself. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn teardown(&self, by: &Principal, run: &RunId) -> Result<TornDown, Denial> {
        by.require(Scope::Run)?;
        let removed = |record: &RunRecord| record.facts.torn_down_at.is_some();
        let mut record = self.record(by, run).await?;
        if !removed(&record) {
            tracing::info!(%run, by = %by.key, "teardown asked for");
            driver::ask(&self.core, run, Want::Teardown).await?;
            let patience = self.core.settings.pace.patience * 2;
            record = self.wait_until(by, run, patience, removed).await?;
        }
        let outcome = record
            .state
            .ending()
            .map_or(Outcome::Cancelled, |ending| ending.outcome);
        Ok(TornDown {
            run: record.id.clone(),
            outcome,
            removed: removed(&record),
        })
    }

    /// The repository that a live sandbox works on: the only one its gateway may ask for. Asked by
    /// the uplink, which knows the sandbox from its host, not from the guest.
    ///
    /// # Errors
    /// `sandbox_not_found` for a sandbox that no run holds, `store_failed`.
    pub async fn repo_of(&self, sandbox: &SandboxId) -> Result<Option<RepoName>, Denial> {
        let record = self
            .core
            .ports
            .store
            .run_of(sandbox)
            .await?
            .filter(|record| record.holds);
        let record = record
            .ok_or_else(|| Denial::new(DenialCode::SandboxNotFound, "no run holds that sandbox"))?;
        Ok(record.plan.request.repo)
    }
}
