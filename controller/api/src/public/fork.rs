//! What a caller asks for when forking a run: several ways on from one prepared state.

use super::Run;
use lazaret_domain::Argv;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Forks a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRun {
    /// How many copies are made, 1 to 8. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 8)]
    #[schemars(range(min = 1, max = 8))]
    pub n: Option<u32>,
    /// What each of them runs: program and arguments, given to no shell. Without it a copy is done as
    /// soon as it is up, and commands can be run beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Argv>,
}

/// The runs that a fork made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Forked {
    /// The runs, each with a sandbox of its own.
    pub runs: Vec<Run>,
    /// For how long the forked run stood still, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<u64>,
}
