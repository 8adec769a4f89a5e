//! Address groups: what an address is, in every spelling.
use serde::{Deserialize, Serialize};

/// What kind of address it is. Only `Public` may be dialled without a rule that pins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressGroup {
    /// A public unicast address.
    Public,
    /// Anything else.
    Reserved,
}
