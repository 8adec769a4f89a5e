//! Host names, canonical once at parse.
use crate::id::id_traits;
use crate::{Denial, DenialCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// A domain name in canonical form: lower case, A-labels, no trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct DomainName(String);

impl DomainName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DomainName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let ok = (1..=253).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
            && text.split('.').all(|label| (1..=63).contains(&label.len()));
        if ok { Ok(Self(text.to_ascii_lowercase())) } else { Err(Denial::new(DenialCode::InvalidEgress, "not a host name")) }
    }
}
id_traits!(DomainName);
