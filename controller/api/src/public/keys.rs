//! API keys and what they may do.

use jiff::Timestamp;
use lazaret_domain::{KeyId, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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

impl Scope {
    /// The scope as it is written on every surface.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
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
