//! A ready sandbox, watched: QEMU's end, the console's words, the agent's health. Whichever comes
//! first says why the sandbox ended.

use super::super::guest::Guest;
use super::{Driver, LAST_LINES, Life, Over};
use crate::vmm;
use lazaret_domain::sandbox::EndCause;
use std::time::Duration;

/// How long QEMU may take to end after its guest is seen to be over.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// So many times less often a guest is asked for its health while it has nothing to do.
const IDLE: u32 = 20;

impl Driver {
    /// Watches a ready sandbox until it ends.
    pub(super) async fn watch(&self, life: &mut Life, guest: &Guest) -> Over {
        let mut seen = self.console.seen();
        tokio::select! {
            status = life.vmm.ended() => self.explain(life, status).await,
            seen = seen.wait_for(|seen| seen.panicked || seen.flooded) => {
                let flooded = seen.is_ok_and(|seen| seen.flooded);
                let cause = if flooded { EndCause::ConsoleFlood } else { EndCause::GuestPanic };
                Over::new(cause, self.console.last_lines(LAST_LINES))
            }
            why = self.unhealthy(guest) => {
                // If QEMU ended, that is why, and it says so in a moment.
                match tokio::time::timeout(LAST_BREATH, life.vmm.ended()).await {
                    Ok(status) => self.explain(life, status).await,
                    Err(_) => Over::new(EndCause::GuestUnreachable, why),
                }
            }
        }
    }

    /// Asks for health, seldom, and of a guest without work hardly ever: where many sandboxes are idle
    /// they are to take no processor time. Returns when the guest does not answer any more.
    async fn unhealthy(&self, guest: &Guest) -> String {
        let config = self.state.config();
        let asking = async {
            loop {
                let every = config.health_every.duration();
                tokio::time::sleep(every).await;
                self.activity.busy_or_after(every * (IDLE - 1)).await;
                match tokio::time::timeout(config.health_deadline.duration(), guest.health()).await
                {
                    Ok(Ok(_)) => {}
                    Ok(Err(denial)) => return denial.message,
                    Err(_) => {
                        return format!(
                            "the guest agent did not answer for {}",
                            config.health_deadline
                        );
                    }
                }
            }
        };
        tokio::select! {
            why = asking => why,
            () = guest.lost() => "the connection to the guest agent was lost".to_owned(),
        }
    }

    /// Why QEMU ended, after all its guest had said has been read.
    async fn explain(
        &self,
        life: &Life,
        status: std::io::Result<std::process::ExitStatus>,
    ) -> Over {
        let mut seen = self.console.seen();
        let _ = tokio::time::timeout(
            LAST_BREATH,
            seen.wait_for(|seen| seen.closed || seen.flooded),
        )
        .await;
        let seen = *seen.borrow();
        let cause = if seen.flooded {
            EndCause::ConsoleFlood
        } else if seen.panicked {
            EndCause::GuestPanic
        } else if status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            EndCause::GuestShutdown
        } else {
            EndCause::VmmDied
        };
        let words = [
            vmm::describe(status),
            life.vmm.complaint(),
            self.console.last_lines(LAST_LINES),
        ];
        Over::new(cause, words.join("\n").trim())
    }
}
