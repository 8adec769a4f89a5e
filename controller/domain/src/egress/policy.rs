//! A policy: ordered rules, pinned hosts, and the verdict on a destination.
use super::{DomainName, EgressRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// A host whose addresses the operator named: the only way to a private address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// The host.
    pub host: DomainName,
    /// The addresses that are dialled for it, instead of resolving it.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<IpAddr>,
}

/// What a sandbox may reach besides the gateway's own services. The default is sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressPolicy {
    /// Ordered; the first match allows; nothing matches means deny.
    #[serde(default)]
    pub rules: Vec<EgressRule>,
    /// Hosts with addresses given by the operator.
    #[serde(default)]
    pub pinned: Vec<Pinned>,
    /// Whether any public host may be reached on ports 443 and 80.
    #[serde(default)]
    pub open: bool,
}

/// The answer to "may this sandbox reach that".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may, by this rule.
    Allow {
        /// The rule as written.
        rule: String,
    },
    /// It may not.
    Deny {
        /// Why, for people.
        reason: String,
    },
}
