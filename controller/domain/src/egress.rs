//! The egress policy: ordered rules over destinations; empty means deny.
//!
//! A rule is written `HOST`, `*.HOST`, `HOST:PORT`, `CIDR` or `CIDR:PORT`; without a port 443 and
//! 80 are meant; the first match wins; nothing matches means deny.

mod address;
mod host;
mod policy;
mod rule;

pub use address::AddressGroup;
pub use host::DomainName;
pub use policy::{EgressPolicy, Pinned, Verdict};
pub use rule::EgressRule;
