//! One generation's hold on its run: what it knows, and how it commits.
//!
//! A commit waits for the disk, so what is known but has no effect yet is put off ([`Session::put_off`])
//! and becomes true together with the next intent. Should the controller die in between, the effect is
//! found again by its id, as if its outcome had never arrived.

use crate::core::Core;
use crate::ports::store::{Fact, RunFacts, RunRecord, SandboxFacts, StepRecord, StoreError, Taken};
use jiff::Timestamp;
use lazaret_api::host::Sandbox;
use lazaret_api::public::EventBody;
use lazaret_domain::run::{Ending, RunEvent};
use lazaret_domain::{Denial, Fence};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// What is true here and is to be written with the next commit.
    pending: Vec<Fact>,
    /// Steps whose intents were stored ahead of their turn and that nobody has done yet.
    pub(super) ahead: Vec<&'static str>,
    /// The number of the gateway's last decision when the last command ended, if the host said it.
    pub(super) egress_known: Option<u64>,
    /// Whether the run's events say that its host cannot be asked.
    pub(super) told_unreachable: bool,
}

impl Session {
    pub(super) fn new(core: Arc<Core>, taken: Taken, ahead: Vec<&'static str>) -> Self {
        Self {
            core,
            run: taken.run,
            steps: taken.steps,
            pending: Vec::new(),
            ahead,
            egress_known: None,
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

    /// Makes facts true here, to be written with the next commit. What is done on their word before
    /// that must be found again by who starts from the store: a command by its id.
    pub(super) fn put_off(&mut self, facts: impl IntoIterator<Item = Fact>) {
        for fact in facts {
            self.learn(fact.clone());
            self.pending.push(fact);
        }
    }

    /// Writes what was put off.
    pub(super) async fn flush(&mut self) -> Result<(), Halt> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.commit(Vec::new()).await
    }

    /// Makes facts, and those that were put off, true in the store, then here, and wakes whoever
    /// follows the run.
    pub(super) async fn commit(&mut self, more: Vec<Fact>) -> Result<(), Halt> {
        let now = self.now();
        let mut facts = std::mem::take(&mut self.pending);
        facts.extend(more.iter().cloned());
        // The facts about the run are written whole: only the last of them counts.
        let last = facts
            .iter()
            .rposition(|fact| matches!(fact, Fact::Facts(_)));
        let mut position = 0..facts.len();
        facts.retain(|fact| {
            let here = position.next();
            !matches!(fact, Fact::Facts(_)) || here == last
        });
        let (count, begun) = (facts.len(), Instant::now());
        let seq = self
            .core
            .ports
            .store
            .commit(&self.run.id, self.run.fence, now, facts)
            .await?;
        tracing::debug!(run = %self.run.id, facts = count, took = ?begun.elapsed(), "committed");
        for fact in more {
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
    pub(crate) fn sandbox_facts(sandbox: &Sandbox) -> SandboxFacts {
        SandboxFacts {
            state: sandbox.state,
            accel: sandbox.accel,
            boot_id: sandbox.boot_id.clone(),
            kernel: sandbox.kernel.clone(),
            deadline: sandbox.deadline,
            asleep_since: sandbox.asleep_since,
            kept: sandbox.kept,
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
            .map(|sandbox| sandbox.deadline.unwrap_or(Timestamp::MAX));
        let planned = || {
            self.run
                .created_at
                .checked_add(self.run.plan.spec.max_duration.duration())
                .ok()
        };
        known.or_else(planned).unwrap_or(Timestamp::MAX)
    }

    /// Whether the host must have ended the sandbox some time ago, also if it fell asleep since it was
    /// last seen. One that is kept may sleep for ever.
    pub(super) fn outlived_its_rest(&self) -> bool {
        let facts = self.run.facts.sandbox.as_ref();
        if facts.is_some_and(|sandbox| sandbox.kept) {
            return false;
        }
        let spec = &self.run.plan.spec;
        let rest = match spec.idle_sleep {
            Some(_) if !self.run.facts.sleeps() => spec.sleep_ttl.duration(),
            _ => Duration::ZERO,
        };
        let last = self
            .deadline()
            .checked_add(rest)
            .and_then(|last| last.checked_add(self.core.settings.pace.lost_grace))
            .unwrap_or(Timestamp::MAX);
        self.now() > last
    }

    /// Whether the host must have ended the sandbox some time ago.
    pub(super) fn overdue(&self) -> bool {
        let last = self
            .deadline()
            .checked_add(self.core.settings.pace.lost_grace)
            .unwrap_or(Timestamp::MAX);
        self.now() > last
    }
}
