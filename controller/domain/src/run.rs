//! The run state machine.
//!
//! ```text
//!   queued ──► starting ──► running ⇄ parked ──► done
//!      │           │           │         │        ▲
//!      └───────────┴───────────┴─────────┴────────┘  (outcome and cause, always)
//! ```
//!
//! One driver task per run applies [`RunEvent`]s; everyone else asks it. A state holds only what
//! exists in it. An event that a state does not know is refused by name ([`Denial`]), never
//! swallowed. Nothing leaves `done`.

use crate::{Denial, DenialCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Accepted and durable; nothing was started yet.
    Queued,
    /// A sandbox is being made and prepared for it.
    Starting,
    /// Its agent is at work.
    Running,
    /// It waits for a person.
    Parked,
    /// It is over.
    Done(Ending),
}

/// The word for a run state, as every surface shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunPhase {
    /// Accepted, not started.
    Queued,
    /// A sandbox is being made and prepared.
    Starting,
    /// The agent is at work.
    Running,
    /// Waiting for a person.
    Parked,
    /// Over; see outcome and cause.
    Done,
}

impl RunPhase {
    /// The phase as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Done => "done",
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The command exited 0, or the agent reached its goal.
    Succeeded,
    /// The command exited otherwise, or the run could not be carried out.
    Failed,
    /// Some of the work is done.
    Partial,
    /// Somebody ended it.
    Cancelled,
    /// A cap or a crash of the guest ended it.
    Interrupted,
    /// Its sandbox vanished, or its host did for good.
    Lost,
}

impl Outcome {
    /// The outcome as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Partial => "partial",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
        }
    }
}

/// Why a run ended: a stable word and one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Cause {
    /// A stable code, such as `exit`, `run_cap`, `boot_failed`, `teardown`.
    pub code: String,
    /// One sentence for people.
    pub message: String,
}

impl Cause {
    /// A cause with this code and sentence.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }
}

impl From<&Denial> for Cause {
    fn from(denial: &Denial) -> Self {
        Self::new(denial.code.as_str(), denial.message.clone())
    }
}

/// How and why a run ended, and the exit status of its command where it had one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Ending {
    /// How.
    pub outcome: Outcome,
    /// Why.
    pub cause: Cause,
    /// The exit status of the command, where it ran to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// What can happen to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// Its driver took it up.
    Started,
    /// Its sandbox is ready and its agent begins.
    AgentStarted,
    /// It asked a person something.
    Asked,
    /// A person answered.
    Answered,
    /// It is over.
    Ended(Ending),
}

impl RunState {
    /// The word for this state.
    #[must_use]
    pub fn phase(&self) -> RunPhase {
        match self {
            Self::Queued => RunPhase::Queued,
            Self::Starting => RunPhase::Starting,
            Self::Running => RunPhase::Running,
            Self::Parked => RunPhase::Parked,
            Self::Done(_) => RunPhase::Done,
        }
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        match self {
            Self::Done(ending) => Some(ending),
            _ => None,
        }
    }

    /// The state after an event.
    ///
    /// # Errors
    /// `run_over` for anything that happens to a run that is done, `run_not_ready` for an event
    /// that this state does not know. The state is unchanged then.
    pub fn after(&self, event: RunEvent) -> Result<Self, Denial> {
        match (self, event) {
            (Self::Done(ending), _) => Err(Denial::new(
                DenialCode::RunOver,
                format!(
                    "the run is over ({}): {}",
                    ending.outcome.as_str(),
                    ending.cause.message
                ),
            )),
            (_, RunEvent::Ended(ending)) => Ok(Self::Done(ending)),
            (Self::Queued, RunEvent::Started) => Ok(Self::Starting),
            (Self::Starting, RunEvent::AgentStarted) => Ok(Self::Running),
            (Self::Running, RunEvent::Asked) => Ok(Self::Parked),
            (Self::Parked, RunEvent::Answered) => Ok(Self::Running),
            (state, event) => Err(Denial::new(
                DenialCode::RunNotReady,
                format!(
                    "a run that is {} cannot take '{}'",
                    state.phase().as_str(),
                    event.name()
                ),
            )),
        }
    }
}

impl RunEvent {
    /// The event's name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::AgentStarted => "agent started",
            Self::Asked => "asked",
            Self::Answered => "answered",
            Self::Ended(_) => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ending(outcome: Outcome) -> Ending {
        Ending {
            outcome,
            cause: Cause::new("exit", "the command ended"),
            exit_code: Some(0),
        }
    }

    fn any_event() -> impl Strategy<Value = RunEvent> {
        prop_oneof![
            3 => Just(RunEvent::Started),
            3 => Just(RunEvent::AgentStarted),
            3 => Just(RunEvent::Asked),
            3 => Just(RunEvent::Answered),
            1 => Just(RunEvent::Ended(ending(Outcome::Succeeded))),
            1 => Just(RunEvent::Ended(ending(Outcome::Lost))),
        ]
    }

    /// The edges of the diagram, written down a second time so that the test does not ask the code.
    const EDGES: &[(RunPhase, RunPhase)] = &[
        (RunPhase::Queued, RunPhase::Starting),
        (RunPhase::Starting, RunPhase::Running),
        (RunPhase::Running, RunPhase::Parked),
        (RunPhase::Parked, RunPhase::Running),
        (RunPhase::Queued, RunPhase::Done),
        (RunPhase::Starting, RunPhase::Done),
        (RunPhase::Running, RunPhase::Done),
        (RunPhase::Parked, RunPhase::Done),
    ];

    #[test]
    fn a_plain_run_goes_through_its_states() {
        let state = RunState::Queued.after(RunEvent::Started).unwrap();
        let state = state.after(RunEvent::AgentStarted).unwrap();
        let state = state
            .after(RunEvent::Ended(ending(Outcome::Succeeded)))
            .unwrap();
        assert_eq!(state.ending().unwrap().outcome, Outcome::Succeeded);
        assert_eq!(
            state.after(RunEvent::Started).unwrap_err().code,
            DenialCode::RunOver
        );
    }

    proptest! {
        #[test]
        fn random_event_orders_use_only_the_listed_edges(events in prop::collection::vec(any_event(), 0..40)) {
            let mut state = RunState::Queued;
            for event in events {
                match state.after(event) {
                    Ok(next) => {
                        prop_assert!(EDGES.contains(&(state.phase(), next.phase())), "{state:?} -> {next:?}");
                        state = next;
                    }
                    Err(denial) => {
                        let over = state.phase() == RunPhase::Done;
                        let wanted = if over { DenialCode::RunOver } else { DenialCode::RunNotReady };
                        prop_assert_eq!(denial.code, wanted);
                    }
                }
            }
        }
    }
}
