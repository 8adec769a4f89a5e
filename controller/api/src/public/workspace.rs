//! What lies in the workspace of a run, and commands beside the run.

use crate::guest::FileEntry;
use lazaret_domain::{Argv, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A listing of a directory of the workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct FileList {
    /// The directory.
    pub path: String,
    /// Its entries.
    pub entries: Vec<FileEntry>,
    /// Whether there are more.
    pub truncated: bool,
}

/// Runs a command beside the run, in its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRun {
    /// Program and arguments, given to no shell.
    pub command: Argv,
    /// Standard input, text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// It is ended after this long. Default and maximum: 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Span>,
}

/// What such a command said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct ExecResult {
    /// Its exit status, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it ran over its longest duration.
    pub timed_out: bool,
    /// Its standard output, at most 1 MiB.
    pub stdout: String,
    /// Its standard error, at most 1 MiB.
    pub stderr: String,
    /// Whether output was cut.
    pub truncated: bool,
}
