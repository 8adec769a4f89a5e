//! Hosts, and whether new sandboxes go to them.

use crate::host::Accel;
use lazaret_domain::HostName;
use lazaret_domain::run::Cause;
use lazaret_domain::sandbox::Reach;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
