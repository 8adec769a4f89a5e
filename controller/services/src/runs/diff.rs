//! What a run changed. While it works that is a command in its sandbox, which has room for few and
//! remembers few: however many ask, one such command of a run is at work, and its answer holds for a
//! moment. When the work ends the diff is kept, and outlives the sandbox.

use super::Runs;
use crate::Principal;
use crate::core::Core;
use crate::driver::{inside, outcome};
use crate::guest_git;
use crate::ports::store::RunRecord;
use lazaret_api::host::ExecRequest;
use lazaret_api::public::Diff;
use lazaret_domain::{BranchName, Denial, DenialCode, RunId};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long a diff counts as what the run changed by now.
const FRESH: Duration = Duration::from_millis(1500);

/// What a diff that is being made, or was just made, comes to.
type Answer = watch::Receiver<Option<Result<Diff, Denial>>>;

/// The diffs of running runs that are being made or were made just now.
#[derive(Default)]
pub(crate) struct LiveDiffs {
    answers: Mutex<HashMap<RunId, Answer>>,
}

impl LiveDiffs {
    fn answers(&self) -> MutexGuard<'_, HashMap<RunId, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's diff as it is being made, or else as `make` makes it. Making it goes on when whoever
    /// asked goes away: the next one gets what comes of it.
    async fn get(
        &self,
        core: &Arc<Core>,
        run: &RunId,
        make: impl Future<Output = Result<Diff, Denial>> + Send + 'static,
    ) -> Result<Diff, Denial> {
        let mut answer = {
            let mut answers = self.answers();
            // Whose maker is gone, by a panic, will not be answered.
            match answers
                .get(run)
                .filter(|answer| answer.has_changed().is_ok())
            {
                Some(answer) => answer.clone(),
                None => {
                    let (sender, answer) = watch::channel(None);
                    answers.insert(run.clone(), answer.clone());
                    let (held, run) = (Arc::clone(core), run.clone());
                    core.spawn(async move {
                        sender.send_replace(Some(make.await));
                        tokio::time::sleep(FRESH).await;
                        held.diffs.answers().remove(&run);
                    });
                    answer
                }
            }
        };
        let stopping = || Denial::new(DenialCode::Stopping, "the controller is stopping");
        let made = answer.wait_for(Option::is_some).await;
        made.ok()
            .and_then(|made| made.clone())
            .unwrap_or_else(|| Err(stopping()))
    }
}

impl Runs {
    /// What the run changed: while it works as it is now, afterwards as it was when the work ended.
    /// Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `no_diff`, and why the host cannot be asked.
    pub async fn diff(&self, by: &Principal, run: &RunId) -> Result<Diff, Denial> {
        let record = self.record(by, run).await?;
        let none = |why: &str| Denial::new(DenialCode::NoDiff, why);
        let Some(repo) = record.plan.request.repo.clone() else {
            return Err(none("the run has no repository, hence no diff"));
        };
        if let Some(diff) = self.core.ports.store.diff(run).await? {
            return Ok(diff);
        }
        if record.state.ending().is_some() {
            return Err(none(
                "the run ended before there was a diff, or it could not be read",
            ));
        }
        let not_yet = || {
            Denial::new(DenialCode::RunNotReady, "the repository is not cloned yet").retry_after(2)
        };
        let base = record.facts.base.clone().ok_or_else(not_yet)?;
        self.workspace(&record)?;
        let command = guest_git::diff(run, &repo, &base)?;
        let (runs, by, id) = (self.clone(), by.clone(), run.clone());
        let make = async move { runs.diff_now(&by, record, &id, &command, base).await };
        Box::pin(self.core.diffs.get(&self.core, run, make)).await
    }

    /// Makes the diff in the run's sandbox, as it is now.
    async fn diff_now(
        &self,
        by: &Principal,
        record: RunRecord,
        run: &RunId,
        command: &ExecRequest,
        base: String,
    ) -> Result<Diff, Denial> {
        let said = self
            .beside(by, record, command, guest_git::DIFF_CAP + 1)
            .await?;
        if !said.exit.success() {
            let why = outcome::excerpt(&String::from_utf8_lossy(&said.stderr));
            let why = format!("the diff could not be made: {why}");
            return Err(Denial::new(DenialCode::NoDiff, why));
        }
        Ok(inside::diff_of(&said, base, BranchName::of(run)))
    }
}
