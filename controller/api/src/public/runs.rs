//! A run as callers see it: how it stands, what it changed, its end.

use crate::host::{Accel, BootStages, Confinement};
use crate::public::{AgentKind, EgressChoice};
use jiff::Timestamp;
use lazaret_domain::run::{Cause, Outcome, RunPhase};
use lazaret_domain::sandbox::{Reach, SandboxState};
use lazaret_domain::{Argv, BranchName, GitRef, HostName, RepoName, RunId, SandboxId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// The run that this one is a copy of, with its memory and disk at that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
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
    /// When the host will end it; never, while it sleeps and is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    /// Since when it sleeps, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[schemars(with = "Option<String>")]
    pub asleep_since: Option<Timestamp>,
    /// Whether it is exempt from its sleep TTL.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
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

/// The answer to a teardown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct TornDown {
    /// The run.
    pub run: RunId,
    /// Its outcome; `cancelled` for a run that is still being ended.
    pub outcome: Outcome,
    /// Whether everything it held is removed; otherwise the removal goes on and `status` shows it.
    pub removed: bool,
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
