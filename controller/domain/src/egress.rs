//! The egress policy: what a sandbox may reach, decided by pure functions.
//!
//! A rule is written `HOST`, `*.HOST`, `HOST:PORT`, `CIDR` or `CIDR:PORT`; without a port 443 and
//! 80 are meant; the first match wins; nothing matches means deny, and so does an empty policy.
//!
//! A connection is judged in steps, each of which hands over what the next one needs, so that no
//! step can be left out:
//!
//! ```text
//! text ── DomainName::from_str ──► DomainName      one canonical spelling, never an address
//!   DomainName + port ── EgressPolicy::permit ──► Permit      before anything is resolved
//!     Permit + address ── Permit::dial ──► Dialable           after resolution
//!       Dialable + peer ── Dialable::confirm                  once connected
//! address + port ── EgressPolicy::permit_address ──► Dialable  a raw address: CIDR rules only
//! ```
//!
//! An address is judged by the [`AddressGroup`] it is in, after every way of wrapping an IPv4
//! address into an IPv6 one was undone. Only public addresses are dialled, with one exception: the
//! addresses that the operator [`Pinned`] to a host, for that host. A pin is no permission by
//! itself: a rule (or `open`) must still allow the name and port.

mod address;
mod explain;
mod host;
mod policy;
mod rule;
#[cfg(test)]
mod tests;

pub use address::AddressGroup;
pub use explain::Explanation;
pub use host::DomainName;
pub use policy::{Dialable, EgressPolicy, Permit, Pinned, Refusal, Verdict};
pub use rule::{DEFAULT_PORTS, EgressRule};
