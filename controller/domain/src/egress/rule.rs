//! One rule.
use crate::id::id_traits;
use crate::{Denial, DenialCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// One rule of an egress policy, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct EgressRule(String);

impl EgressRule {
    /// The rule as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EgressRule {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        if text.is_empty() { Err(Denial::new(DenialCode::InvalidEgress, "empty rule")) } else { Ok(Self(text.to_owned())) }
    }
}
id_traits!(EgressRule);
