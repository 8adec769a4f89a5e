//! How a run ended, from how its command or its sandbox did. Every ending has a cause.

use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::host::End;
use lazaret_domain::Denial;
use lazaret_domain::run::{Cause, Ending, Outcome};
use lazaret_domain::sandbox::EndCause;

/// The longest detail in a cause, in characters.
const DETAIL: usize = 600;

/// An ending without an exit status.
pub(crate) fn ending(outcome: Outcome, code: &str, message: impl Into<String>) -> Ending {
    Ending {
        outcome,
        cause: Cause::new(code, message),
        exit_code: None,
    }
}

/// The run could not be carried out.
pub(crate) fn refused(denial: &Denial) -> Ending {
    Ending {
        outcome: Outcome::Failed,
        cause: Cause::from(denial),
        exit_code: None,
    }
}

/// The last characters of a text that came from a guest, on one line, without control characters.
pub(crate) fn excerpt(text: &str) -> String {
    let plain: String = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let skip = plain.chars().count().saturating_sub(DETAIL);
    plain.chars().skip(skip).collect()
}

/// The run ended because its sandbox did.
pub(crate) fn of_sandbox(end: &End) -> Ending {
    let outcome = match end.cause {
        EndCause::BootFailed | EndCause::SetupFailed => Outcome::Failed,
        EndCause::RunCap
        | EndCause::SleepTtl
        | EndCause::GuestPanic
        | EndCause::GuestShutdown
        | EndCause::GuestUnreachable
        | EndCause::ConsoleFlood
        | EndCause::VmmDied => Outcome::Interrupted,
        EndCause::ShimDied | EndCause::HostRestarted => Outcome::Lost,
        EndCause::Teardown => Outcome::Cancelled,
    };
    let detail = excerpt(&end.detail);
    let separator = if detail.is_empty() { "" } else { ": " };
    ending(
        outcome,
        end.cause.code(),
        format!("{}{separator}{detail}", end.cause.sentence()),
    )
}

/// The run ended because its command did; `None` if that was because its sandbox ended.
pub(crate) fn of_command(exit: &ExecExit, cancel_asked: bool) -> Option<Ending> {
    let message = exit.message.as_deref().map(excerpt);
    let ending = match exit.end {
        ExecEnd::SandboxEnded => return None,
        _ if cancel_asked => ending(
            Outcome::Cancelled,
            "cancelled",
            "somebody cancelled the run",
        ),
        ExecEnd::TimedOut => ending(
            Outcome::Interrupted,
            "run_cap",
            "the command reached the longest duration of the run",
        ),
        ExecEnd::Cancelled => ending(
            Outcome::Interrupted,
            "exec_cancelled",
            "the host ended the command",
        ),
        ExecEnd::NotStarted => {
            let why = message.unwrap_or_else(|| "no reason was given".to_owned());
            ending(
                Outcome::Failed,
                "not_started",
                format!("the command could not be started: {why}"),
            )
        }
        ExecEnd::Exited => match (exit.code, exit.signal) {
            (Some(0), _) => ending(
                Outcome::Succeeded,
                "exit",
                "the command exited with status 0",
            ),
            (Some(code), _) => ending(
                Outcome::Failed,
                "exit",
                format!("the command exited with status {code}"),
            ),
            (None, Some(signal)) => ending(
                Outcome::Failed,
                "signal",
                format!("the command was ended by signal {signal}"),
            ),
            (None, None) => ending(
                Outcome::Failed,
                "exit",
                "the command ended without a status",
            ),
        },
    };
    Some(Ending {
        exit_code: exit.code,
        ..ending
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(end: ExecEnd, code: Option<i32>, signal: Option<i32>) -> ExecExit {
        ExecExit {
            end,
            code,
            signal,
            message: None,
            duration_ms: 1,
            egress_seq: None,
        }
    }

    #[test]
    fn only_a_command_that_exited_with_0_is_a_success() {
        for end in [
            ExecEnd::Exited,
            ExecEnd::TimedOut,
            ExecEnd::Cancelled,
            ExecEnd::NotStarted,
        ] {
            for (code, signal) in [
                (None, None),
                (Some(0), None),
                (Some(1), None),
                (None, Some(9)),
            ] {
                let ending = of_command(&exit(end, code, signal), false).unwrap();
                let good = end == ExecEnd::Exited && code == Some(0);
                assert_eq!(
                    ending.outcome == Outcome::Succeeded,
                    good,
                    "{end:?} {code:?} {signal:?}"
                );
                assert!(!ending.cause.code.is_empty() && !ending.cause.message.is_empty());
            }
        }
        assert!(of_command(&exit(ExecEnd::SandboxEnded, Some(0), None), false).is_none());
    }

    #[test]
    fn a_cancelled_run_is_never_reported_as_its_exit_status() {
        let ending = of_command(&exit(ExecEnd::Exited, Some(0), None), true).unwrap();
        assert_eq!(
            (ending.outcome, ending.exit_code),
            (Outcome::Cancelled, Some(0))
        );
    }

    #[test]
    fn what_a_guest_printed_is_cut_and_plain_in_a_cause() {
        let text = format!("\u{1b}[31m{}\nlast words", "x".repeat(5000));
        let plain = excerpt(&text);
        assert!(plain.ends_with("last words") && plain.chars().count() == DETAIL);
        assert!(!plain.chars().any(char::is_control));
    }
}
