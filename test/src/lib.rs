//! What the tests of Lazaret stand on: real peers, and the whole product started for a test.
//!
//! - [`peers`] are servers a sandbox or the controller talks to: a real git smart-HTTP server, a
//!   package registry for npm and an index for pip that serve one tiny package each, and a sink
//!   that records whatever reaches it.
//! - [`figures`] is what the benches share.
//! - [`clients`] are callers that are not ours: the official MCP SDKs.
//! - [`station`] is a controller with a host of its own on this machine: a real sshd, a real
//!   account, real microVMs, and an HTTP client to ask the controller with.
//!
//! Everything is on loopback, and everything a value started ends when it is dropped.
#![forbid(unsafe_code)]

pub mod clients;
pub mod figures;
pub mod peers;
#[cfg(feature = "station")]
pub mod station;
