//! How a command ends: the exit codes of the command line, and the reasons for those that are not 0.
//!
//! | code | means |
//! | --- | --- |
//! | 0 | done |
//! | 1 | the run or the check failed, or a fault of ours |
//! | 2 | the command line or the settings are wrong |
//! | 3 | refused; a denial code is printed |
//! | 4 | not found |
//! | 5 | the controller cannot be reached |

use lazaret_domain::{Denial, DenialClass, DenialCode};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what was asked.
    Done = 0,
    /// The run or the check failed.
    Failed = 1,
    /// The command line or the settings are wrong.
    Usage = 2,
    /// It was refused.
    Refused = 3,
    /// The thing does not exist.
    NotFound = 4,
    /// The controller cannot be reached.
    Unreachable = 5,
}

impl Exit {
    /// The exit status for a kind of denial.
    #[must_use]
    pub fn of(class: DenialClass) -> Self {
        match class {
            DenialClass::NotFound => Self::NotFound,
            DenialClass::Internal => Self::Failed,
            DenialClass::Invalid
            | DenialClass::Unauthenticated
            | DenialClass::Forbidden
            | DenialClass::Conflict
            | DenialClass::Gone
            | DenialClass::TooLarge
            | DenialClass::Capacity
            | DenialClass::Unavailable => Self::Refused,
        }
    }

    /// The exit status for an answer whose code this build does not know.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        match status {
            404 => Self::NotFound,
            500 => Self::Failed,
            502..=504 => Self::Unreachable,
            _ => Self::Refused,
        }
    }

    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The controller, or a rule of ours, said no.
    #[error("{message} ({code})")]
    Refused {
        /// The stable code.
        code: String,
        /// What was refused and what to do next.
        message: String,
        /// The exit status.
        exit: Exit,
        /// Where it may pass by itself: after how long it is worth asking again.
        again: Option<Duration>,
    },
    /// Nobody answers at the controller's address.
    #[error(
        "cannot reach the controller at {url}: {why}\n\
         Start one with 'lazaret up' (or 'lazaret serve --config FILE'), or name another with LAZARET_URL."
    )]
    Unreachable {
        /// The address that was tried.
        url: String,
        /// What happened.
        why: String,
    },
    /// The command line, the client file or the settings are wrong.
    #[error("{0}")]
    Usage(String),
    /// Something else went wrong here.
    #[error("{0}")]
    Failed(String),
    /// The output cannot be written; a reader that went away is nobody's fault.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

impl Failure {
    /// The exit status.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Refused { exit, .. } => *exit,
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Usage(_) => Exit::Usage,
            Self::Failed(_) => Exit::Failed,
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Output(_) => Exit::Failed,
        }
    }

    /// After how long it is worth asking again; none where asking again changes nothing.
    #[must_use]
    pub fn passes_after(&self) -> Option<Duration> {
        match self {
            Self::Unreachable { .. } => Some(Duration::ZERO),
            Self::Refused { again, .. } => *again,
            Self::Usage(_) | Self::Failed(_) | Self::Output(_) => None,
        }
    }

    /// What happened, in one line and without what to do about it.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Self::Unreachable { why, .. } => why.clone(),
            Self::Refused { code, .. } => code.clone(),
            other => other.to_string(),
        }
    }

    /// The JSON document that stands for the answer under `--json`.
    #[must_use]
    pub fn document(&self) -> Value {
        let code = match self {
            Self::Refused { code, .. } => code.as_str(),
            Self::Unreachable { .. } => "unreachable",
            Self::Usage(_) => "usage",
            Self::Failed(_) | Self::Output(_) => "failed",
        };
        let message = match self {
            Self::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        };
        json!({ "error": { "code": code, "message": message } })
    }

    /// A failure here, with what was being done.
    pub fn doing(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        let exit = Exit::of(denial.class());
        let mut message = denial.message;
        if let Some(field) = denial.field {
            message = format!("{field}: {message}");
        }
        if let Some(seconds) = denial.retry_after {
            message = format!("{message}; try again in {seconds} s");
        }
        if denial.code == DenialCode::Unauthenticated {
            message.push_str("; check LAZARET_TOKEN or the client file that 'lazaret up' writes");
        }
        Self::Refused {
            code: denial.code.as_str().to_owned(),
            message,
            exit,
            again: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_denial_code_has_the_exit_status_of_its_class() {
        let mut lines = String::new();
        for code in DenialCode::ALL {
            let exit = Failure::from(Denial::new(*code, "no")).exit();
            lines.push_str(&format!("{} {code}\n", exit.code()));
        }
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn a_failure_names_the_address_and_how_to_start() {
        let failure = Failure::Unreachable {
            url: "http://127.0.0.1:1".into(),
            why: "connection refused".into(),
        };
        assert_eq!(failure.exit(), Exit::Unreachable);
        let text = failure.to_string();
        assert!(
            text.contains("http://127.0.0.1:1") && text.contains("lazaret up"),
            "{text}"
        );
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let pipe = Failure::Output(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(pipe.exit(), Exit::Done);
        let disk = Failure::Output(std::io::ErrorKind::StorageFull.into());
        assert_eq!(disk.exit(), Exit::Failed);
    }
}
