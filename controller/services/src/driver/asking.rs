//! Asking the host: within a time, and again while it cannot be reached.

use super::outcome::ending;
use super::session::{Halt, Leave, Session};
use crate::core::Backoff;
use crate::ports::host_link::{HostLink, LinkState};
use lazaret_domain::run::Outcome;
use lazaret_domain::{Denial, DenialCode};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Whether a denial says that the host could not be asked at all.
pub(crate) fn is_transport(denial: &Denial) -> bool {
    matches!(
        denial.code,
        DenialCode::HostUnreachable
            | DenialCode::HostKeyMismatch
            | DenialCode::HostRefused
            | DenialCode::HostVersion
    )
}

/// Whether asking the same again can help soon.
fn is_passing(denial: &Denial) -> bool {
    matches!(
        denial.code,
        DenialCode::HostBusy
            | DenialCode::GuestUnreachable
            | DenialCode::Stopping
            // It stands still for copies, or is on its way to sleep.
            | DenialCode::SandboxNotReady
    )
}

impl Session {
    /// Asks the host, again and again while it cannot be reached or does not answer in time. The
    /// host's own refusal is the inner result.
    ///
    /// # Errors
    /// An ending if the host is retired, or stays away until the sandbox cannot be alive any more.
    pub(super) async fn ask<T, F, A>(&mut self, call: F) -> Result<Result<T, Denial>, Leave>
    where
        F: Fn(Arc<dyn HostLink>) -> A + Send,
        A: Future<Output = Result<T, Denial>> + Send,
        T: Send,
    {
        self.ask_for(self.core.settings.pace.call, call).await
    }

    /// The same for a call that may take longer than others.
    pub(super) async fn ask_for<T, F, A>(
        &mut self,
        longest: Duration,
        call: F,
    ) -> Result<Result<T, Denial>, Leave>
    where
        F: Fn(Arc<dyn HostLink>) -> A + Send,
        A: Future<Output = Result<T, Denial>> + Send,
        T: Send,
    {
        let mut backoff = Backoff::new(&self.core.settings.pace);
        loop {
            let host = self.run.plan.host.clone();
            let Some(link) = self.core.hosts.link(&host) else {
                return Err(ending(
                    Outcome::Lost,
                    "host_retired",
                    format!("host '{host}' was retired"),
                )
                .into());
            };
            let denial = match answered(longest, call(Arc::clone(&link))).await {
                Ok(answer) => {
                    if std::mem::take(&mut self.told_unreachable) {
                        self.tell(format!("host '{host}' answers again")).await?;
                    }
                    return Ok(Ok(answer));
                }
                Err(denial) => denial,
            };
            if denial.code == DenialCode::StaleFence {
                return Err(Halt::Fenced.into());
            }
            if !is_transport(&denial) && !is_passing(&denial) {
                return Ok(Err(denial));
            }
            if self.overdue() {
                let why = format!(
                    "host '{host}' could not be asked until after the sandbox's longest duration: {denial}"
                );
                return Err(ending(Outcome::Lost, denial.code.as_str(), why).into());
            }
            if is_transport(&denial) && !std::mem::replace(&mut self.told_unreachable, true) {
                self.tell(format!("host '{host}' cannot be asked: {denial}"))
                    .await?;
            }
            self.flush().await?;
            wait_for(&*link, backoff.next()).await;
        }
    }
}

/// Waits until a link that is down is up again, or for so long.
pub(super) async fn wait_for(link: &dyn HostLink, wait: Duration) {
    let mut state = link.state();
    let down = matches!(*state.borrow(), LinkState::Down { .. });
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        _ = state.wait_for(|state| *state == LinkState::Up), if down => {}
    }
}

/// What a host answers, if it does so in time. One that does not counts as one that is away: whether
/// it had the effect is found out by asking again.
///
/// # Errors
/// What the host refused; `host_unreachable` after `longest`.
pub(super) async fn answered<T>(
    longest: Duration,
    call: impl Future<Output = Result<T, Denial>>,
) -> Result<T, Denial> {
    match tokio::time::timeout(longest, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("the host did not answer within {longest:?}");
            Err(Denial::new(DenialCode::HostUnreachable, why))
        }
    }
}
