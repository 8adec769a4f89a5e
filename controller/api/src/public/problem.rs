//! How every refusal is told.

use lazaret_domain::{Denial, DenialCode};
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
