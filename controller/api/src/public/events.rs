//! What happens in a run, one event after the other.

use crate::host::EgressRecord;
use jiff::Timestamp;
use lazaret_domain::run::{Cause, Outcome, RunPhase};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What kind of event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// The run's state changed.
    State,
    /// Output of its command.
    Log,
    /// An egress decision.
    Egress,
    /// Something a person should know.
    Note,
    /// Events that are no longer there.
    Gap,
    /// The run is over; the last event.
    End,
}

/// One event of a run. `seq` counts from 1 without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Event {
    /// Its number in the run.
    pub seq: u64,
    /// When.
    #[schema(value_type = String)]
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// What it says.
    #[serde(flatten)]
    pub body: EventBody,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum EventBody {
    /// The run's state changed.
    State {
        /// The state now.
        state: RunPhase,
        /// What led to it, in one sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// Output of the command, as text; bytes that are not UTF-8 are replaced.
    Log {
        /// `stdout`, `stderr`, or `setup` for the preparation of the workspace.
        stream: String,
        /// The text.
        text: String,
    },
    /// An egress decision.
    Egress {
        /// The decision.
        record: EgressRecord,
    },
    /// Something a person should know.
    Note {
        /// The text.
        text: String,
    },
    /// Events that are no longer there, or output that was not kept.
    Gap {
        /// How many events, or bytes of output, are missing.
        missing: u64,
        /// `events` or `bytes`.
        unit: String,
    },
    /// The run is over. Always the last event.
    End {
        /// How.
        outcome: Outcome,
        /// Why.
        cause: Cause,
        /// The exit status of the command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
    },
}

impl EventBody {
    /// The kind of event.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::State { .. } => EventKind::State,
            Self::Log { .. } => EventKind::Log,
            Self::Egress { .. } => EventKind::Egress,
            Self::Note { .. } => EventKind::Note,
            Self::Gap { .. } => EventKind::Gap,
            Self::End { .. } => EventKind::End,
        }
    }
}

/// A page of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Pass as `after` to go on.
    pub last: u64,
    /// Whether the run is over and this page holds its last event.
    pub complete: bool,
}
