//! The sandbox state machine.
//!
//! ```text
//!   forking ──► ready ⇄ asleep ──► gone
//!      │          │                 ▲
//!      └──────────┴─────────────────┘  (always with a cause)
//! ```
//!
//! `unreachable since T` is not a state of the sandbox: it is what the controller says while the
//! host cannot be asked ([`Reach`]). The shim on the host owns the state; it dies with its VM.

use crate::{Denial, DenialCode};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a sandbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// It is being made: booted, or forked from a template, and not adopted yet.
    Forking,
    /// Its guest agent answers and it may run commands.
    Ready,
    /// It sleeps on disk.
    Asleep,
    /// It has ended. Its cause says why.
    Gone,
}

/// What can happen to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxEvent {
    /// The guest confirmed its identity.
    Adopted,
    /// It went to sleep.
    Slept,
    /// It woke.
    Woke,
    /// It ended.
    Ended,
}

/// Why a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// It was asked to end.
    Teardown,
    /// It was awake for its longest duration.
    RunCap,
    /// It slept longer than its sleep TTL, and nobody had asked to keep it.
    SleepTtl,
    /// The guest did not come up within its deadline, after all retries.
    BootFailed,
    /// The guest's kernel panicked.
    GuestPanic,
    /// The guest powered itself off or rebooted.
    GuestShutdown,
    /// The guest agent stopped answering.
    GuestUnreachable,
    /// The guest wrote more to its console than allowed.
    ConsoleFlood,
    /// QEMU ended by itself or was killed.
    VmmDied,
    /// The shim was killed.
    ShimDied,
    /// The host restarted.
    HostRestarted,
    /// It could not be set up on the host.
    SetupFailed,
}

impl EndCause {
    /// The stable code of the cause.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Teardown => "teardown",
            Self::RunCap => "run_cap",
            Self::SleepTtl => "sleep_ttl",
            Self::BootFailed => "boot_failed",
            Self::GuestPanic => "guest_panic",
            Self::GuestShutdown => "guest_shutdown",
            Self::GuestUnreachable => "guest_unreachable",
            Self::ConsoleFlood => "console_flood",
            Self::VmmDied => "vmm_died",
            Self::ShimDied => "shim_died",
            Self::HostRestarted => "host_restarted",
            Self::SetupFailed => "setup_failed",
        }
    }

    /// One sentence for people.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Teardown => "the sandbox was torn down",
            Self::RunCap => "the sandbox reached its longest duration (the run cap)",
            Self::SleepTtl => "the sandbox slept longer than its sleep TTL",
            Self::BootFailed => "the guest did not come up within its boot deadline",
            Self::GuestPanic => "the guest's kernel panicked",
            Self::GuestShutdown => "the guest shut itself down",
            Self::GuestUnreachable => "the guest agent stopped answering",
            Self::ConsoleFlood => "the guest wrote more to its console than allowed",
            Self::VmmDied => "QEMU ended unexpectedly",
            Self::ShimDied => "the shim of the sandbox was killed",
            Self::HostRestarted => "the host restarted",
            Self::SetupFailed => "the sandbox could not be set up on the host",
        }
    }
}

impl SandboxState {
    /// The state after an event.
    ///
    /// # Errors
    /// `sandbox_gone` for anything that happens to one that is gone, `sandbox_not_ready` for an
    /// event that this state does not know.
    pub fn after(self, event: SandboxEvent) -> Result<Self, Denial> {
        match (self, event) {
            (Self::Gone, _) => Err(Denial::new(DenialCode::SandboxGone, "the sandbox is gone")),
            (_, SandboxEvent::Ended) => Ok(Self::Gone),
            (Self::Forking, SandboxEvent::Adopted) | (Self::Asleep, SandboxEvent::Woke) => {
                Ok(Self::Ready)
            }
            (Self::Ready, SandboxEvent::Slept) => Ok(Self::Asleep),
            (state, event) => Err(Denial::new(
                DenialCode::SandboxNotReady,
                format!("a sandbox that is {state:?} cannot take {event:?}").to_lowercase(),
            )),
        }
    }
}

/// Whether the controller can ask the sandbox's host at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase", tag = "reach")]
pub enum Reach {
    /// It can.
    Reachable,
    /// It cannot, since then.
    Unreachable {
        /// When the host last stopped answering.
        #[schema(value_type = String)]
        #[schemars(with = "String")]
        since: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EDGES: &[(SandboxState, SandboxState)] = &[
        (SandboxState::Forking, SandboxState::Ready),
        (SandboxState::Ready, SandboxState::Asleep),
        (SandboxState::Asleep, SandboxState::Ready),
        (SandboxState::Forking, SandboxState::Gone),
        (SandboxState::Ready, SandboxState::Gone),
        (SandboxState::Asleep, SandboxState::Gone),
    ];

    proptest! {
        #[test]
        fn random_event_orders_use_only_the_listed_edges(events in prop::collection::vec(0_u8..12, 0..40)) {
            let mut state = SandboxState::Forking;
            for number in events {
                let event = match number {
                    0..=3 => SandboxEvent::Adopted,
                    4..=6 => SandboxEvent::Slept,
                    7..=10 => SandboxEvent::Woke,
                    _ => SandboxEvent::Ended,
                };
                match state.after(event) {
                    Ok(next) => {
                        prop_assert!(EDGES.contains(&(state, next)));
                        state = next;
                    }
                    Err(denial) => prop_assert_eq!(
                        denial.code,
                        if state == SandboxState::Gone { DenialCode::SandboxGone } else { DenialCode::SandboxNotReady }
                    ),
                }
            }
        }
    }
}
