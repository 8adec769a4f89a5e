//! When the sandbox under a run is gone, or should be: what its host knows of that is the run's ending.

use super::outcome::{ending, of_sandbox};
use super::session::{Leave, Session};
use lazaret_domain::Denial;
use lazaret_domain::run::{Ending, Outcome};
use lazaret_domain::sandbox::SandboxState;

impl Session {
    /// Says why the sandbox under a command is gone. If its host still calls it alive for a moment,
    /// the host is asked again; if it does so for long, the command was lost without it.
    pub(super) async fn sandbox_ending(&mut self) -> Result<Ending, Leave> {
        let id = self.run.plan.sandbox.clone();
        for _ in 0..20 {
            let seen = self
                .ask(|link| {
                    let id = id.clone();
                    async move { link.inspect(&id).await }
                })
                .await?;
            match seen {
                Ok(sandbox) => {
                    if let (SandboxState::Gone, Some(end)) = (sandbox.state, &sandbox.end) {
                        return Ok(of_sandbox(end));
                    }
                }
                Err(denial) => return Ok(gone(&denial)),
            }
            tokio::time::sleep(self.core.settings.pace.retry_min).await;
        }
        Ok(ending(
            Outcome::Lost,
            "exec_lost",
            "the host no longer knows the run's command, though its sandbox is there",
        ))
    }

    /// Says how a run ends whose sandbox and command go on although its host was to end both.
    pub(super) async fn outlived(&mut self) -> Result<Ending, Leave> {
        let id = self.run.plan.sandbox.clone();
        let seen = self
            .ask(|link| {
                let id = id.clone();
                async move { link.inspect(&id).await }
            })
            .await?;
        Ok(match seen {
            Err(denial) => gone(&denial),
            Ok(sandbox) => match (sandbox.state, &sandbox.end) {
                (SandboxState::Gone, Some(end)) => of_sandbox(end),
                _ => ending(
                    Outcome::Lost,
                    "sandbox_overdue",
                    "the sandbox reached its longest duration and its host did not end it",
                ),
            },
        })
    }
}

/// The ending of a run whose sandbox its host does not have.
pub(super) fn gone(denial: &Denial) -> Ending {
    ending(
        Outcome::Lost,
        denial.code.as_str(),
        format!("the sandbox vanished from its host: {}", denial.message),
    )
}
