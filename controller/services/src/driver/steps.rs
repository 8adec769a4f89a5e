//! The way of a run from queued to done.
//!
//! | step | effect | probed by |
//! | --- | --- | --- |
//! | `create` | the sandbox is asked for | its id: asking again finds it |
//! | `settled` | none; the boot is waited for | |
//! | `clone` | the repository is cloned in the guest | the exec's id |
//! | `turn-1` | the command runs | the exec's id |
//! | `diff` | the changes are read | the exec's id |
//! | `remove` | the sandbox is removed ([`super::keep`]) | its id: not there is success |
//!
//! An ending is decided first, in the store, and only then acted on: a sandbox whose work never began
//! is removed before the run is reported as failed, also if the controller dies in between.

use super::command::Collected;
use super::outcome::{ending, excerpt, of_command, of_sandbox, refused};
use super::output::Shown;
use super::session::{Halt, Leave, Session, gone};
use crate::core::millis_between;
use crate::guest_git;
use crate::ports::store::Fact;
use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::host::Sandbox;
use lazaret_api::public::Diff;
use lazaret_domain::run::{Ending, Outcome, RunEvent, RunState};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Argv, BranchName, DenialCode, RepoName, Span};
use std::time::Duration;

/// The order in which steps may be begun. A journal of another order is not one this code wrote.
const ORDER: [&str; 6] = ["create", "settled", "clone", "turn-1", "diff", "remove"];
/// The longest a clone may take.
const CLONE_LIMIT: Span = Span::seconds(900);
/// The host is asked anew about a boot after this long.
const SETTLE: Duration = Duration::from_secs(20);

impl Session {
    /// Brings the run to done, if it is not.
    pub(super) async fn carry_out(&mut self) -> Result<(), Halt> {
        if self.run.state.ending().is_some() {
            return Ok(());
        }
        let ending = match self.run.facts.decided.clone() {
            Some(ending) => ending,
            None => {
                let ending = match self.work().await {
                    Ok(ending) | Err(Leave::End(ending)) => ending,
                    Err(Leave::Halt(halt)) => return Err(halt),
                };
                self.fetch_egress().await?;
                // Nobody looks into a workspace in which nothing was done.
                let never_began = self.run.state != RunState::Running;
                let decided = self.facts(|facts| {
                    facts.decided = Some(ending.clone());
                    facts.discard = never_began;
                });
                self.commit(vec![decided]).await?;
                ending
            }
        };
        if self.run.facts.discard || self.run.facts.teardown_asked.is_some() {
            let patience = self.core.settings.pace.patience;
            // A host that is away must not keep the run from ending; the removal goes on after it.
            if let Ok(removed) = tokio::time::timeout(patience, self.remove()).await {
                removed?;
            }
        }
        let now = self.now();
        let total = millis_between(self.run.created_at, now);
        let mut facts = vec![self.facts(|facts| {
            facts.ended_at = Some(now);
            facts.stages.total_ms = Some(total);
        })];
        facts.extend(self.transition(RunEvent::Ended(ending.clone()), "")?);
        tracing::info!(run = %self.run.id, outcome = ending.outcome.as_str(), cause = %ending.cause.code, "run over");
        self.commit(facts).await
    }

    /// The work itself, up to how it ended.
    async fn work(&mut self) -> Result<Ending, Leave> {
        self.check_journal()?;
        if self.run.facts.teardown_asked.is_some() {
            return Err(ending(Outcome::Cancelled, "teardown", "the run was torn down").into());
        }
        if self.run.state == RunState::Queued {
            let facts = self.transition(RunEvent::Started, "a sandbox is being made")?;
            self.commit(facts.into()).await?;
        }
        if self.run.state == RunState::Starting {
            self.unless_cancelled()?;
            self.create().await?;
            self.settle().await?;
            self.unless_cancelled()?;
            if let Some(repo) = self.run.plan.request.repo.clone() {
                self.clone_repository(&repo).await?;
            }
            self.unless_cancelled()?;
            let facts = self.transition(RunEvent::AgentStarted, "the command begins")?;
            self.commit(facts.into()).await?;
        }
        let exit = self.turn().await?;
        let Some(ending) = of_command(&exit, self.run.facts.cancel_asked.is_some()) else {
            return Err(self.sandbox_ending().await?.into());
        };
        self.capture_diff().await?;
        Ok(ending)
    }

    /// A journal that does not fit the order of the steps was written by other code, or is damaged.
    /// Nothing is done on the word of such a journal.
    fn check_journal(&self) -> Result<(), Ending> {
        let places: Vec<_> = self
            .steps
            .iter()
            .map(|step| ORDER.iter().position(|name| *name == step.name))
            .collect();
        if places.iter().all(Option::is_some) && places.is_sorted() {
            return Ok(());
        }
        Err(ending(
            Outcome::Lost,
            "journal_diverged",
            "the run's journal does not fit this version of the controller",
        ))
    }

    fn unless_cancelled(&self) -> Result<(), Ending> {
        match self.run.facts.cancel_asked {
            Some(_) => Err(ending(
                Outcome::Cancelled,
                "cancelled",
                "somebody cancelled the run before its work began",
            )),
            None => Ok(()),
        }
    }

    /// Whether a step is done; one that is not begun is begun.
    pub(super) async fn begin(&mut self, name: &str) -> Result<Begun, Halt> {
        match self.step(name).map(|step| step.outcome.clone()) {
            Some(Some(outcome)) => Ok(Begun::Done(outcome)),
            Some(None) => Ok(Begun::Before),
            None => {
                self.commit(vec![Fact::Begun(name.to_owned())]).await?;
                Ok(Begun::Now)
            }
        }
    }

    async fn create(&mut self) -> Result<(), Leave> {
        if let Begun::Done(_) = self.begin("create").await? {
            return Ok(());
        }
        let (fence, id, spec) = (
            self.fence(),
            self.run.plan.sandbox.clone(),
            self.run.plan.spec.clone(),
        );
        let answer = self
            .ask(|link| {
                let (id, spec) = (id.clone(), spec.clone());
                async move { link.create(fence, &id, &spec).await }
            })
            .await?;
        let sandbox = answer.map_err(|denial| refused(&denial))?;
        let dispatch = millis_between(self.run.created_at, self.now());
        let facts = self.facts(|facts| {
            facts.sandbox = Some(Self::sandbox_facts(&sandbox));
            facts.stages.dispatch_ms = Some(dispatch);
        });
        self.commit(vec![
            facts,
            Fact::Done("create".to_owned(), "{}".to_owned()),
        ])
        .await?;
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Leave> {
        if let Begun::Done(_) = self.begin("settled").await? {
            return Ok(());
        }
        let sandbox = self.settled().await?;
        let facts = self.facts(|facts| {
            facts.sandbox = Some(Self::sandbox_facts(&sandbox));
            facts.stages.boot = sandbox.stages.clone();
        });
        self.commit(vec![
            facts,
            Fact::Done("settled".to_owned(), "{}".to_owned()),
        ])
        .await?;
        Ok(())
    }

    async fn settled(&mut self) -> Result<Sandbox, Leave> {
        let id = self.run.plan.sandbox.clone();
        loop {
            let answer = self
                .ask(|link| {
                    let id = id.clone();
                    async move { link.settled(&id, SETTLE).await }
                })
                .await?;
            let sandbox = answer.map_err(|denial| match denial.code {
                DenialCode::SandboxNotFound | DenialCode::SandboxGone => gone(&denial),
                _ => refused(&denial),
            })?;
            match (sandbox.state, &sandbox.end) {
                (SandboxState::Ready | SandboxState::Asleep, _) => return Ok(sandbox),
                (SandboxState::Gone, Some(end)) => return Err(of_sandbox(end).into()),
                (SandboxState::Gone, None) => {
                    return Err(ending(
                        Outcome::Lost,
                        "sandbox_gone",
                        "the sandbox is gone without a cause",
                    )
                    .into());
                }
                (SandboxState::Forking, _) => {
                    tokio::time::sleep(self.core.settings.pace.retry_min).await;
                }
            }
        }
    }

    async fn clone_repository(&mut self, repo: &RepoName) -> Result<(), Leave> {
        let limit = CLONE_LIMIT.min(self.run.plan.spec.max_duration);
        let (plan, run) = (&self.run.plan, &self.run.id);
        let request = guest_git::clone(
            run,
            &plan.spec.git_base_url,
            repo,
            plan.request.git_ref.as_ref(),
            limit,
        )
        .map_err(|denial| refused(&denial))?;
        let exit = self.command_step("clone", &request, Shown::Setup).await?;
        if self.run.facts.base.is_some() {
            return Ok(());
        }
        if exit.end == ExecEnd::SandboxEnded {
            return Err(self.sandbox_ending().await?.into());
        }
        let said = self.collect("clone", 64 * 1024).await?;
        let base = exit
            .success()
            .then(|| guest_git::commit_id(&said.stdout))
            .flatten();
        let Some(base) = base else {
            return Err(clone_failed(&exit, &said).into());
        };
        let facts = self.facts(|facts| {
            facts.base = Some(base);
            facts.stages.clone_ms = Some(exit.duration_ms);
        });
        self.commit(vec![facts]).await?;
        Ok(())
    }

    async fn turn(&mut self) -> Result<ExecExit, Leave> {
        let plan = &self.run.plan;
        let nothing = || {
            ending(
                Outcome::Failed,
                DenialCode::NothingToDo.as_str(),
                "the run has no command",
            )
        };
        let argv: Argv = plan.request.command.clone().ok_or_else(nothing)?;
        let cwd = guest_git::directory(plan.request.repo.as_ref());
        let request = guest_git::command(&self.run.id, argv, cwd, plan.spec.max_duration)
            .map_err(|denial| refused(&denial))?;
        let exit = self.command_step("turn-1", &request, Shown::Both).await?;
        if self.run.facts.stages.command_ms.is_none() {
            let facts = self.facts(|facts| facts.stages.command_ms = Some(exit.duration_ms));
            self.commit(vec![facts]).await?;
        }
        Ok(exit)
    }

    /// Keeps what the run changed, so that it can be seen after the sandbox is gone. If it cannot be
    /// read that is told, and the run's outcome stands.
    async fn capture_diff(&mut self) -> Result<(), Leave> {
        let (Some(repo), Some(base)) = (
            self.run.plan.request.repo.clone(),
            self.run.facts.base.clone(),
        ) else {
            return Ok(());
        };
        let begun = self.begin("diff").await?;
        if let Begun::Done(_) = begun {
            return Ok(());
        }
        let request =
            guest_git::diff(&self.run.id, &repo, &base).map_err(|denial| refused(&denial))?;
        let read = match self.start("diff", &request, begun).await {
            Ok(()) => self.collect("diff", guest_git::DIFF_CAP + 1).await,
            Err(leave) => Err(leave),
        };
        let mut facts = Vec::new();
        match read {
            Ok(said) if said.exit.success() => {
                facts.push(self.facts(|facts| facts.stages.diff_ms = Some(said.exit.duration_ms)));
                facts.push(Fact::Diff(diff_of(
                    &said,
                    base,
                    BranchName::of(&self.run.id),
                )));
            }
            Ok(said) => {
                let why = excerpt(&String::from_utf8_lossy(&said.stderr));
                self.tell(format!("what the run changed could not be read: {why}"))
                    .await?;
            }
            Err(Leave::End(ending)) => {
                self.tell(format!(
                    "what the run changed could not be read: {}",
                    ending.cause.message
                ))
                .await?;
            }
            Err(Leave::Halt(halt)) => return Err(halt.into()),
        }
        facts.push(Fact::Done("diff".to_owned(), "{}".to_owned()));
        self.commit(facts).await?;
        Ok(())
    }
}

/// What became of beginning a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It was done before; its outcome.
    Done(String),
    /// It was begun before this generation: whether it had its effect is to be found out.
    Before,
    /// It is begun just now.
    Now,
}

fn clone_failed(exit: &ExecExit, said: &Collected) -> Ending {
    let why = match exit.end {
        ExecEnd::TimedOut => "it took too long".to_owned(),
        _ => exit
            .message
            .as_deref()
            .map_or_else(|| excerpt(&String::from_utf8_lossy(&said.stderr)), excerpt),
    };
    ending(
        Outcome::Failed,
        "clone_failed",
        format!("the repository could not be cloned: {why}"),
    )
}

/// A diff as it is shown. Bytes that are no text are replaced.
pub(crate) fn diff_of(said: &Collected, base: String, branch: BranchName) -> Diff {
    let truncated = said.truncated || said.stdout.len() > guest_git::DIFF_CAP;
    let kept = &said.stdout[..said.stdout.len().min(guest_git::DIFF_CAP)];
    Diff {
        base,
        branch,
        diff: String::from_utf8_lossy(kept).into_owned(),
        truncated,
    }
}
