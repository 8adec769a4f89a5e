//! How boots and commands of a fake host go.

use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::host::ExecRequest;
use lazaret_domain::ExecId;
use lazaret_domain::sandbox::EndCause;

/// How a boot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The sandbox is ready at once.
    Ready,
    /// It goes on until it is said otherwise.
    Held,
    /// It fails.
    Fails(EndCause),
}

/// What a command does.
#[derive(Clone, Debug)]
pub struct Play {
    /// What it says at once.
    pub frames: Vec<Frame>,
    /// How it ends; `None`: it runs on.
    pub exit: Option<ExecExit>,
}

/// An exit with this status.
#[must_use]
pub fn exited(code: i32) -> ExecExit {
    ExecExit {
        end: ExecEnd::Exited,
        code: Some(code),
        signal: None,
        message: None,
        duration_ms: 3,
        egress_seq: None,
    }
}

pub(super) fn cancelled() -> ExecExit {
    ExecExit {
        end: ExecEnd::Cancelled,
        code: None,
        signal: Some(15),
        message: None,
        duration_ms: 3,
        egress_seq: None,
    }
}

pub(super) fn ended() -> ExecExit {
    ExecExit {
        end: ExecEnd::SandboxEnded,
        code: None,
        signal: None,
        message: None,
        duration_ms: 3,
        egress_seq: None,
    }
}

/// The commit that fake clones are based on.
#[must_use]
pub fn commit_id() -> String {
    "0123456789abcdef0123456789abcdef01234567".to_owned()
}

/// The ordinary script: clones succeed, diffs show one, commands say `hello` and exit with 0.
#[must_use]
pub fn ordinary(exec: &ExecId, _: &ExecRequest) -> Play {
    let frames = match exec.as_str() {
        "clone" => vec![
            Frame::Stderr("Cloning into 'demo'...\n".into()),
            Frame::Stdout(format!("{}\n", commit_id()).into()),
        ],
        "diff" => vec![Frame::Stdout("diff --git a/a b/a\n".into())],
        _ => vec![Frame::Stdout("hello\n".into())],
    };
    Play {
        frames,
        exit: Some(exited(0)),
    }
}
