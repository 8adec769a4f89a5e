//! One generation's hold on its run: what it knows, how it commits, and how it asks the host.

use super::outcome::{ending, of_sandbox};
use crate::core::{Backoff, Core};
use crate::ports::host_link::{HostLink, LinkState};
use crate::ports::store::{Fact, RunFacts, RunRecord, SandboxFacts, StepRecord, StoreError, Taken};
use jiff::Timestamp;
use lazaret_api::host::Sandbox;
use lazaret_api::public::EventBody;
use lazaret_domain::run::{Ending, Outcome, RunEvent};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, Fence};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Why a generation cannot go on. Nothing is lost: the next one starts from the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Halt {
    /// The store refused or failed. No effect is had without its intent in the store.
    #[error("the store: {0}")]
    Store(#[from] StoreError),
    /// The host has seen a newer fence.
    #[error("the host has seen a newer driver of this run")]
    Fenced,
    /// The domain refused a state change: a fault of ours.
    #[error("the domain: {0}")]
    Domain(Denial),
}

/// Why the way to done was left.
pub(crate) enum Leave {
    /// The run is to end this way.
    End(Ending),
    /// The generation cannot go on.
    Halt(Halt),
}

impl From<Halt> for Leave {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

impl From<Ending> for Leave {
    fn from(ending: Ending) -> Self {
        Self::End(ending)
    }
}

/// One generation.
pub(crate) struct Session {
    pub(super) core: Arc<Core>,
    pub(super) run: RunRecord,
    pub(super) steps: Vec<StepRecord>,
    /// Whether the run's events say that its host cannot be asked.
    told_unreachable: bool,
}

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
        DenialCode::HostBusy | DenialCode::GuestUnreachable | DenialCode::Stopping
    )
}

impl Session {
    pub(super) fn new(core: Arc<Core>, taken: Taken) -> Self {
        Self {
            core,
            run: taken.run,
            steps: taken.steps,
            told_unreachable: false,
        }
    }

    pub(super) fn fence(&self) -> Fence {
        self.run.fence
    }

    pub(super) fn now(&self) -> Timestamp {
        self.core.now()
    }

    pub(super) fn step(&self, name: &str) -> Option<&StepRecord> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// Makes facts true in the store, then here, and wakes whoever follows the run.
    pub(super) async fn commit(&mut self, facts: Vec<Fact>) -> Result<(), Halt> {
        let now = self.now();
        let seq = self
            .core
            .ports
            .store
            .commit(&self.run.id, self.run.fence, now, facts.clone())
            .await?;
        for fact in facts {
            self.learn(fact);
        }
        self.run.last_seq = seq;
        self.core.feeds.publish(&self.run.id, seq);
        Ok(())
    }

    fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::State(state) => self.run.state = state,
            Fact::Facts(facts) => self.run.facts = *facts,
            Fact::Released => self.run.holds = false,
            Fact::Begun(name) => {
                let position = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
                self.steps.push(StepRecord {
                    position,
                    name,
                    ..StepRecord::default()
                });
            }
            Fact::Done(name, outcome) => {
                if let Some(step) = self.steps.iter_mut().find(|step| step.name == name) {
                    step.outcome = Some(outcome);
                }
            }
            Fact::Read(name, cursor) => {
                if let Some(step) = self.steps.iter_mut().find(|step| step.name == name) {
                    step.cursor = cursor;
                }
            }
            Fact::Event(_) | Fact::Diff(_) => {}
        }
    }

    /// The facts about the run after a change.
    pub(super) fn facts(&self, change: impl FnOnce(&mut RunFacts)) -> Fact {
        let mut facts = self.run.facts.clone();
        change(&mut facts);
        Fact::Facts(Box::new(facts))
    }

    /// The state after an event, with the event that tells of it.
    pub(super) fn transition(&self, event: RunEvent, detail: &str) -> Result<[Fact; 2], Halt> {
        let state = self.run.state.after(event).map_err(Halt::Domain)?;
        let told = match state.ending() {
            Some(ending) => EventBody::End {
                outcome: ending.outcome,
                cause: ending.cause.clone(),
                exit_code: ending.exit_code,
            },
            None => EventBody::State {
                state: state.phase(),
                detail: Some(detail.to_owned()),
            },
        };
        Ok([Fact::State(state), Fact::Event(told)])
    }

    /// Something a person should know. Nothing follows the last event, so then it is only logged.
    pub(super) async fn tell(&mut self, text: String) -> Result<(), Halt> {
        tracing::info!(run = %self.run.id, "{text}");
        if self.run.state.ending().is_some() {
            return Ok(());
        }
        self.commit(vec![Fact::Event(EventBody::Note { text })])
            .await
    }

    /// What is known of the sandbox after its host described it.
    pub(super) fn sandbox_facts(sandbox: &Sandbox) -> SandboxFacts {
        SandboxFacts {
            state: sandbox.state,
            accel: sandbox.accel,
            boot_id: sandbox.boot_id.clone(),
            kernel: sandbox.kernel.clone(),
            deadline: sandbox.deadline,
            confinement: sandbox.confinement.clone(),
        }
    }

    /// When the host has ended the sandbox for certain, reachable or not.
    pub(super) fn deadline(&self) -> Timestamp {
        let known = self
            .run
            .facts
            .sandbox
            .as_ref()
            .map(|sandbox| sandbox.deadline);
        let planned = || {
            self.run
                .created_at
                .checked_add(self.run.plan.spec.max_duration.duration())
                .ok()
        };
        known.or_else(planned).unwrap_or(Timestamp::MAX)
    }

    /// Asks the host, again and again while it cannot be reached. The host's own refusal is the
    /// inner result.
    ///
    /// # Errors
    /// An ending if the host is retired, or stays away until the sandbox cannot be alive any more.
    pub(super) async fn ask<T, F, A>(&mut self, call: F) -> Result<Result<T, Denial>, Leave>
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
            let denial = match call(Arc::clone(&link)).await {
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
            let lost_at = self
                .deadline()
                .checked_add(self.core.settings.pace.lost_grace)
                .unwrap_or(Timestamp::MAX);
            if self.now() > lost_at {
                let why = format!(
                    "host '{host}' could not be asked until after the sandbox's longest duration: {denial}"
                );
                return Err(ending(Outcome::Lost, denial.code.as_str(), why).into());
            }
            if is_transport(&denial) && !std::mem::replace(&mut self.told_unreachable, true) {
                self.tell(format!("host '{host}' cannot be asked: {denial}"))
                    .await?;
            }
            wait_for(&*link, backoff.next()).await;
        }
    }

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
}

/// The ending of a run whose sandbox its host does not have.
pub(super) fn gone(denial: &Denial) -> Ending {
    ending(
        Outcome::Lost,
        denial.code.as_str(),
        format!("the sandbox vanished from its host: {}", denial.message),
    )
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
