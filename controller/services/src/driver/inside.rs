//! The steps inside the guest: the clone, the command, and reading what was changed.

use super::collect::Collected;
use super::command::Stepped;
use super::outcome::{ending, excerpt, refused};
use super::output::Shown;
use super::session::{Leave, Session};
use super::steps::Begun;
use crate::core::millis_between;
use crate::guest_git;
use crate::ports::store::{Fact, Parent};
use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::public::Diff;
use lazaret_domain::run::{Ending, Outcome};
use lazaret_domain::{Argv, BranchName, DenialCode, RepoName, Span};
use std::time::Duration;

/// The longest a clone may take.
const CLONE_LIMIT: Span = Span::seconds(900);
/// What is left of a sandbox's time after its command: to kill it, and to read what it changed.
const AFTER_COMMAND: Duration = Duration::from_secs(30);
/// The longest that reading the changes waits: for git, and for the host to give up on it.
const DIFF_WAIT: Duration = Duration::from_secs(240);

impl Session {
    pub(super) async fn clone_repository(&mut self, repo: &RepoName) -> Result<(), Leave> {
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
        let Stepped { exit, stdout } = self.command_step("clone", &request, Shown::Setup).await?;
        if self.run.facts.base.is_some() {
            return Ok(());
        }
        if exit.end == ExecEnd::SandboxEnded {
            return Err(self.sandbox_ending().await?.into());
        }
        let named = |stdout: &[u8]| {
            exit.success()
                .then(|| guest_git::commit_id(stdout))
                .flatten()
        };
        // Read a second time only if it was not read in one piece, or to say what went wrong.
        let base = match stdout.as_deref().and_then(named) {
            Some(base) => base,
            None => {
                let said = self.collect("clone", 64 * 1024, None).await?;
                named(&said.stdout).ok_or_else(|| clone_failed(&exit, &said))?
            }
        };
        let facts = self.facts(|facts| {
            facts.base = Some(base);
            facts.stages.clone_ms = Some(exit.duration_ms);
        });
        self.put_off([facts]);
        Ok(())
    }

    /// A copy goes on from the same commit, on a branch of its own.
    pub(super) async fn branch_off(
        &mut self,
        repo: &RepoName,
        parent: &Parent,
    ) -> Result<(), Leave> {
        let Some(base) = parent.base.clone() else {
            return Ok(());
        };
        let request = guest_git::branch(&self.run.id, repo).map_err(|denial| refused(&denial))?;
        let Stepped { exit, .. } = self.command_step("branch", &request, Shown::Setup).await?;
        if exit.end == ExecEnd::SandboxEnded {
            return Err(self.sandbox_ending().await?.into());
        }
        if !exit.success() {
            // What was copied is there all the same; it only lies on its parent's branch.
            self.tell("the copy has no branch of its own: git refused".to_owned())
                .await?;
        }
        let facts = self.facts(|facts| facts.base = Some(base));
        self.put_off([facts]);
        Ok(())
    }

    pub(super) async fn turn(&mut self) -> Result<ExecExit, Leave> {
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
        let longest = self.turn_limit();
        let request = guest_git::command(&self.run.id, argv, cwd, longest)
            .map_err(|denial| refused(&denial))?;
        // Both intents in one commit; what became of the turn is stored while the diff is read.
        self.begin_ahead("turn-1");
        if self.run.plan.request.repo.is_some() && self.run.facts.base.is_some() {
            self.begin_ahead("diff");
        }
        self.flush().await?;
        let Stepped { exit, .. } = self.command_step("turn-1", &request, Shown::Both).await?;
        if self.run.facts.stages.command_ms.is_none() {
            let facts = self.facts(|facts| facts.stages.command_ms = Some(exit.duration_ms));
            self.put_off([facts]);
        }
        Ok(exit)
    }

    /// The longest duration of the command. It is decided once and written with the step's intent:
    /// the host refuses another command under the same id.
    fn turn_limit(&mut self) -> Span {
        let whole = self.run.plan.spec.max_duration;
        if self.step("turn-1").is_some() {
            return self.run.facts.command_limit.unwrap_or(whole);
        }
        // By this machine's clock alone, from when the host had the create call: the sandbox's
        // deadline is by the host's clock, which may be wrong.
        let dispatched = self.run.facts.stages.dispatch_ms.unwrap_or(0);
        let passed = millis_between(self.run.created_at, self.now()).saturating_sub(dispatched);
        let limit = within(whole, Duration::from_millis(passed));
        let facts = self.facts(|facts| facts.command_limit = Some(limit));
        self.put_off([facts]);
        limit
    }

    /// Keeps what the run changed, so that it can be seen after the sandbox is gone. If it cannot be
    /// read that is told, and the run's outcome stands.
    pub(super) async fn capture_diff(&mut self) -> Result<(), Leave> {
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
            Ok(()) => {
                // While git works: how the command ended, and what it tried to reach.
                self.flush().await?;
                self.next_egress().await.ok();
                let cap = guest_git::DIFF_CAP + 1;
                self.collect("diff", cap, Some(DIFF_WAIT)).await
            }
            Err(leave) => Err(leave),
        };
        let mut facts = Vec::new();
        match read {
            Ok(said) if said.exit.success() => {
                self.egress_known = said.exit.egress_seq;
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
        self.put_off(facts);
        Ok(())
    }
}

/// The longest duration of a command in a sandbox that has `whole` and has used `passed` of it. The
/// sandbox must outlive it so that what it did can be read; of a short time it has at least half.
fn within(whole: Span, passed: Duration) -> Span {
    let left = whole.duration().saturating_sub(passed);
    let limit = left.saturating_sub(AFTER_COMMAND).max(left / 2);
    let millis = limit.as_millis().max(1);
    format!("{millis}ms").parse().unwrap_or(whole)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_before_its_sandbox_and_has_at_least_half_of_a_short_time() {
        let limit = |whole: u64, passed: u64| {
            within(Span::seconds(whole), Duration::from_secs(passed)).to_string()
        };
        assert_eq!(limit(3600, 10), "59m20s");
        assert_eq!(limit(60, 10), "25s");
        assert_eq!(limit(5, 1), "2s");
        assert_eq!(limit(5, 9), "1ms", "a span is never nothing");
    }
}
