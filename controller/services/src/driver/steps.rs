//! The way of a run from queued to done.
//!
//! | step | effect | probed by |
//! | --- | --- | --- |
//! | `create` | the sandbox is asked for | its id: asking again finds it |
//! | `settled` | none; the boot is waited for | |
//! | `clone` | the repository is cloned in the guest | the exec's id |
//! | `branch` | a copy of a run gets a branch of its own instead | the exec's id |
//! | `turn-1` | the command runs | the exec's id |
//! | `diff` | the changes are read | the exec's id |
//! | `remove` | the sandbox is removed ([`super::keep`]) | its id: not there is success |
//!
//! An intent is in the store before its effect; what became known of the step before is written with
//! it. Where the guest is waited for anyway, the next step's intent is stored meanwhile, ahead of its
//! turn ([`Session::ahead`]), and what became known goes to the store while the guest works. An ending that asks for an effect is decided first, in the store, and only then acted on: a sandbox whose work never began
//! is removed before the run is reported as failed, also if the controller dies in between.

use super::lost::gone;
use super::outcome::{ending, of_command, of_sandbox, refused};
use super::session::{Halt, Leave, Session};
use crate::core::millis_between;
use crate::ports::store::Fact;
use lazaret_api::host::Sandbox;
use lazaret_domain::DenialCode;
use lazaret_domain::run::{Ending, Outcome, RunEvent, RunState};
use lazaret_domain::sandbox::SandboxState;
use std::time::Duration;

/// The first step: its intent is stored with the run.
pub(crate) const FIRST: &str = "create";
/// The order in which steps may be begun. A journal of another order is not one this code wrote.
const ORDER: [&str; 7] = [
    FIRST, "settled", "clone", "branch", "turn-1", "diff", "remove",
];
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
                self.fetch_last_egress().await?;
                // Nobody looks into a workspace in which nothing was done.
                let never_began = self.run.state != RunState::Running;
                let decided = self.facts(|facts| {
                    facts.decided = Some(ending.clone());
                    facts.discard = never_began;
                });
                self.put_off([decided]);
                ending
            }
        };
        if self.run.facts.discard || self.run.facts.teardown_asked.is_some() {
            self.flush().await?;
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
            self.put_off(facts);
        }
        if self.run.state == RunState::Starting {
            self.unless_cancelled()?;
            self.create().await?;
            self.settle().await?;
            self.unless_cancelled()?;
            let (repo, parent) = (
                self.run.plan.request.repo.clone(),
                self.run.plan.parent.clone(),
            );
            match (repo, parent) {
                (Some(repo), None) => self.clone_repository(&repo).await?,
                (Some(repo), Some(parent)) => self.branch_off(&repo, &parent).await?,
                (None, _) => {}
            }
            self.unless_cancelled()?;
            let facts = self.transition(RunEvent::AgentStarted, "the command begins")?;
            self.put_off(facts);
        }
        if let (None, Some(parent)) = (&self.run.plan.request.command, &self.run.plan.parent) {
            let why = format!("a copy of run {}, without a command of its own", parent.run);
            return Ok(ending(Outcome::Succeeded, "forked", why));
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
            Some(None) if self.ahead.contains(&name) => {
                self.ahead.retain(|ahead| *ahead != name);
                Ok(Begun::Now)
            }
            Some(None) => {
                self.flush().await?;
                Ok(Begun::Before)
            }
            None => {
                self.commit(vec![Fact::Begun(name.to_owned())]).await?;
                Ok(Begun::Now)
            }
        }
    }

    /// Puts off the intent of a step whose turn is still to come; it is to be stored before that.
    pub(super) fn begin_ahead(&mut self, name: &'static str) {
        if self.step(name).is_none() {
            self.put_off([Fact::Begun(name.to_owned())]);
            self.ahead.push(name);
        }
    }

    async fn create(&mut self) -> Result<(), Leave> {
        if let Begun::Done(_) = self.begin(FIRST).await? {
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
        // Written while the guest comes up, see [`Self::settle`]: asking again finds the sandbox.
        self.put_off([facts, Fact::Done(FIRST.to_owned(), "{}".to_owned())]);
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Leave> {
        match self.step("settled").map(|step| step.outcome.is_some()) {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => {
                self.put_off([Fact::Begun("settled".to_owned())]);
                let plan = &self.run.plan;
                let base = plan.parent.as_ref().map(|parent| parent.base.is_some());
                match (&plan.request.repo, base) {
                    (Some(_), None) => self.begin_ahead("clone"),
                    (Some(_), Some(true)) => self.begin_ahead("branch"),
                    _ => {}
                }
                // The guest is on its way up: this costs the run no time.
                self.flush().await?;
            }
        }
        let sandbox = self.settled().await?;
        let facts = self.facts(|facts| {
            facts.sandbox = Some(Self::sandbox_facts(&sandbox));
            facts.stages.boot = sandbox.stages.clone();
        });
        self.put_off([facts, Fact::Done("settled".to_owned(), "{}".to_owned())]);
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
                (SandboxState::Forking, _) if self.overdue() => {
                    return Err(self.outlived().await?.into());
                }
                (SandboxState::Forking, _) => {
                    tokio::time::sleep(self.core.settings.pace.retry_min).await;
                }
            }
        }
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
