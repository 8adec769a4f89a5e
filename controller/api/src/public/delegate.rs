//! What a caller asks for when delegating a task.

use lazaret_domain::egress::EgressRule;
use lazaret_domain::{Argv, ByteSize, Cpus, GitRef, RepoName, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
