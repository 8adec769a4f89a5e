//! The controller about itself.

use crate::public::Host;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Sandboxes that are not gone.
    pub sandboxes: u32,
    /// The most sandboxes at the same time.
    pub max_sandboxes: u32,
    /// The hosts.
    pub hosts: Vec<Host>,
}
