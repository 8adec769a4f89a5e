//! What comes after done: the sandbox is kept to be looked into until somebody tears the run down or
//! its host ends it, and then removed. A removal is tried until it is known to be done; while its host
//! is away the run says so, by still holding its sandbox.

use super::asking::{answered, wait_for};
use super::session::{Halt, Session};
use super::steps::Begun;
use crate::core::{Backoff, millis_between};
use crate::ports::store::Fact;
use lazaret_domain::DenialCode;
use lazaret_domain::sandbox::SandboxState;
use std::time::Duration;

impl Session {
    /// Keeps a run that is done until it holds nothing.
    pub(super) async fn keep(&mut self) -> Result<(), Halt> {
        let wanted = self.run.facts.discard || self.run.facts.teardown_asked.is_some();
        if self.run.holds && (wanted || self.until_gone().await?) {
            self.remove().await?;
        }
        if self.run.facts.teardown_asked.is_some() && self.run.facts.torn_down_at.is_none() {
            let now = self.now();
            let facts = self.facts(|facts| facts.torn_down_at = Some(now));
            self.commit(vec![facts]).await?;
            self.core.feeds.nudge(&self.run.id);
        }
        Ok(())
    }

    /// Waits until the host says that the sandbox is gone, or was to be long ago, and answers true then.
    /// What it sees of it meanwhile it writes down: a sandbox falls asleep by itself.
    async fn until_gone(&mut self) -> Result<bool, Halt> {
        let pace = self.core.settings.pace;
        loop {
            let Some(link) = self.core.hosts.link(&self.run.plan.host) else {
                return Ok(true);
            };
            match answered(pace.call, link.inspect(&self.run.plan.sandbox)).await {
                Ok(sandbox) if sandbox.state == SandboxState::Gone => return Ok(true),
                Err(denial)
                    if matches!(
                        denial.code,
                        DenialCode::SandboxNotFound | DenialCode::SandboxGone
                    ) =>
                {
                    return Ok(true);
                }
                Ok(sandbox) => {
                    let seen = Some(Self::sandbox_facts(&sandbox));
                    if self.run.facts.sandbox != seen {
                        let facts = self.facts(|facts| facts.sandbox = seen);
                        self.commit(vec![facts]).await?;
                        self.core.feeds.nudge(&self.run.id);
                    }
                    // The host was to have ended it by now, as it says itself.
                    if self.overdue() {
                        return Ok(true);
                    }
                }
                // It may have fallen asleep since it was last seen.
                Err(_) if self.outlived_its_rest() => return Ok(true),
                Err(_) => {}
            }
            let left = Duration::from_millis(millis_between(self.now(), self.deadline()));
            // Looked at more often than only at its deadline: it may end by itself before.
            tokio::time::sleep(left.clamp(pace.look, pace.reconcile)).await;
        }
    }

    /// Removes the sandbox and all it held. Ends when the host says so, or is retired.
    pub(super) async fn remove(&mut self) -> Result<(), Halt> {
        if !self.run.holds {
            return Ok(());
        }
        // A create that was begun may have had its effect, whether or not that is known.
        let asked_for = self.step("create").is_some();
        if asked_for && !matches!(self.begin("remove").await?, Begun::Done(_)) {
            let mut backoff = Backoff::new(&self.core.settings.pace);
            while let Some(link) = self.core.hosts.link(&self.run.plan.host) {
                let removed = link.destroy(self.fence(), &self.run.plan.sandbox);
                match answered(self.core.settings.pace.call, removed).await {
                    Ok(()) => break,
                    Err(denial) if denial.code == DenialCode::SandboxNotFound => break,
                    Err(denial) if denial.code == DenialCode::StaleFence => {
                        return Err(Halt::Fenced);
                    }
                    Err(denial) => {
                        tracing::warn!(run = %self.run.id, sandbox = %self.run.plan.sandbox, %denial, "not removed yet");
                        wait_for(&*link, backoff.next()).await;
                    }
                }
            }
        }
        let mut facts = vec![
            self.facts(|facts| {
                if let Some(sandbox) = &mut facts.sandbox {
                    sandbox.state = SandboxState::Gone;
                }
            }),
            Fact::Released,
        ];
        if self
            .step("remove")
            .is_some_and(|step| step.outcome.is_none())
        {
            facts.push(Fact::Done("remove".to_owned(), "{}".to_owned()));
        }
        self.commit(facts).await
    }
}
