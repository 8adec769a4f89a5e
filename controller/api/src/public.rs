//! The public API: what `/api/v1` speaks, and what the MCP tools carry. OpenAPI is generated from
//! these types; a golden file freezes it.
//!
//! Requests refuse unknown fields. Text that came from a guest is data: it is never interpreted.

use crate::guest::FileEntry;
use crate::host::{Accel, BootStages, Confinement, EgressRecord};
use jiff::Timestamp;
use lazaret_domain::egress::EgressRule;
use lazaret_domain::run::{Cause, Outcome, RunPhase};
use lazaret_domain::sandbox::{Reach, SandboxState};
use lazaret_domain::{
    Argv, BranchName, ByteSize, Cpus, Denial, DenialCode, GitRef, HostName, KeyId, RepoName, RunId,
    SandboxId, Span,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error, RFC 9457. `type` is `about:blank`; `code` is what programs read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Problem {
    /// Always `about:blank`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status' words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: DenialCode,
    /// What was refused and what to do next.
    pub detail: String,
    /// The input field at fault, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Seconds after which trying again can help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

impl Problem {
    /// A denial as a problem, with the status (and its words) that the face chose.
    #[must_use]
    pub fn of(denial: &Denial, status: u16, title: &str) -> Self {
        Self {
            kind: "about:blank".to_owned(),
            title: title.to_owned(),
            status,
            code: denial.code,
            detail: denial.message.clone(),
            field: denial.field.clone(),
            retry_after: denial.retry_after,
        }
    }
}

/// Which agent carries the task out.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    /// Runs a command line; needs no model.
    #[default]
    Command,
}

/// What a run may reach: `"sealed"`, `"open"`, or a list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(untagged)]
pub enum EgressChoice {
    /// A mode by name.
    Mode(EgressMode),
    /// An allow-list.
    Rules(Vec<EgressRule>),
    /// What the operator's settings say (the field is absent).
    #[default]
    Default,
}

/// The egress modes that have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EgressMode {
    /// Nothing but the gateway's own services.
    Sealed,
    /// Any public host on 443 and 80, where the operator's settings allow it.
    Open,
}

/// A request to delegate a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRun {
    /// The repository to work on, `owner/name`. None: an empty workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<RepoName>,
    /// The branch, tag or commit to start from. None: the repository's default branch.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<GitRef>,
    /// The agent. Default: `command`.
    #[serde(default)]
    pub agent: AgentKind,
    /// The command of the `command` agent: program and arguments, given to no shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Argv>,
    /// The task in words; for the `command` agent a note that is shown with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// What it may reach. Default: the operator's setting, which is sealed unless changed.
    #[serde(default, skip_serializing_if = "is_default_egress")]
    pub egress: EgressChoice,
    /// Memory, such as `1G`. At most the operator's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Virtual CPUs. At most the operator's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// The sandbox is ended after this long. At most the operator's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Span>,
}

fn is_default_egress(choice: &EgressChoice) -> bool {
    *choice == EgressChoice::Default
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Run {
    /// Its id.
    pub run: RunId,
    /// Its state.
    pub state: RunPhase,
    /// How it ended, once done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why it ended, once done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// The command's exit status, where it ran to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<RepoName>,
    /// What was asked to be checked out.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<GitRef>,
    /// The commit the work starts from, once cloned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The branch the work happens on, once cloned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchName>,
    /// The agent.
    pub agent: AgentKind,
    /// The command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Argv>,
    /// The task in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// What it may reach: `sealed`, `open` or the rules.
    pub egress: EgressChoice,
    /// Its sandbox, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxView>,
    /// When it was accepted.
    #[schema(value_type = String)]
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub ended_at: Option<Timestamp>,
    /// When everything it held was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub torn_down_at: Option<Timestamp>,
    /// How long each stage took.
    pub stages: RunStages,
}

/// A run's sandbox as far as callers may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct SandboxView {
    /// Its id.
    pub id: SandboxId,
    /// The host it is on.
    pub host: HostName,
    /// Its last known state.
    pub state: SandboxState,
    /// Whether the host can be asked.
    #[serde(flatten)]
    pub reach: Reach,
    /// The accelerator; `tcg` is not a security boundary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// The guest's boot id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The guest's kernel release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// When the host will end it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    /// What confines its VMM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
}

/// How long each stage of a run took, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct RunStages {
    /// From acceptance to the host having the create call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_ms: Option<u64>,
    /// The stages of the boot, since the create call.
    #[serde(default)]
    pub boot: BootStages,
    /// The clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_ms: Option<u64>,
    /// The command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_ms: Option<u64>,
    /// Reading what the run changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_ms: Option<u64>,
    /// From acceptance to done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<u64>,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct RunList {
    /// The runs.
    pub runs: Vec<Run>,
    /// Pass as `before` to get the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RunId>,
}

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

/// What a run changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Diff {
    /// The commit compared against.
    pub base: String,
    /// The branch the work is on.
    pub branch: BranchName,
    /// A unified diff of all changes, committed and not, new files included.
    pub diff: String,
    /// Whether the diff was longer than allowed and was cut.
    pub truncated: bool,
}

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

/// The answer to a teardown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct TornDown {
    /// The run.
    pub run: RunId,
    /// Its outcome.
    pub outcome: Outcome,
    /// Whether everything it held is removed; otherwise the removal goes on and `status` shows it.
    pub removed: bool,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Host {
    /// Its name.
    pub name: HostName,
    /// Where: `user@host:port`.
    pub address: String,
    /// The pinned host key, `SHA256:…`.
    pub host_key: String,
    /// `active`, `drained` or `retired`.
    pub admission: HostAdmission,
    /// Whether it can be asked.
    #[serde(flatten)]
    pub reach: Reach,
    /// Why it cannot be asked, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Cause>,
    /// The accelerator proven there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// QEMU's version there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vmm: Option<String>,
    /// The image there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Sandboxes on it.
    pub sandboxes: u32,
}

/// Whether new sandboxes go to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostAdmission {
    /// They do.
    Active,
    /// They do not; those there go on.
    Drained,
    /// It is no longer used.
    Retired,
}

/// All hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct HostList {
    /// The hosts.
    pub hosts: Vec<Host>,
}

/// Enrols a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollHost {
    /// Its name. Default: derived from the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<HostName>,
    /// Where: `user@host[:port]`.
    pub address: String,
    /// The host key's fingerprint to pin, `SHA256:…`.
    pub host_key: String,
}

/// Changes a host's admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAdmission {
    /// The new admission.
    pub admission: HostAdmission,
}

/// What a key may do; each scope covers those before it.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See runs, events, files, diffs.
    Read,
    /// Delegate, cancel and tear down runs.
    Run,
    /// Answer, approve, run commands beside a run; hosts.
    Operate,
    /// Keys and hosts.
    Admin,
}

/// Creates an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What it may do.
    pub scope: Scope,
    /// A name for people, at most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It stops working after this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Span>,
}

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Key {
    /// Its id.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
    /// When it was made.
    #[schema(value_type = String)]
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub revoked_at: Option<Timestamp>,
}

/// All keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct KeyList {
    /// The keys.
    pub keys: Vec<Key>,
}

/// A new key. The only time its secret is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct NewKey {
    /// The key.
    pub key: Key,
    /// The token, for `Authorization: Bearer`.
    pub token: String,
}

/// The state of the controller, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct System {
    /// Its version.
    pub version: String,
    /// When it started.
    #[schema(value_type = String)]
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// Runs that are not done.
    pub active_runs: u32,
    /// Sandboxes that are not gone, and the cap on them.
    pub sandboxes: u32,
    /// The cap.
    pub max_sandboxes: u32,
    /// The hosts.
    pub hosts: Vec<Host>,
}
