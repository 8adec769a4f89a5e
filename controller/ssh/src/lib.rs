//! The controller's way to its hosts.
//!
//! ```text
//!  HostLink calls ──► Over<Link> ──► one HTTP/2 connection ─┐ channel 1, exec `session`
//!                        ▲                                  ├─ one SSH connection per host
//!                  watch │ Up / Down                        │
//!                     Driver (the connection's only owner) ─┘ channel 2, exec `uplink`:
//!                                                             HTTP/2 with the roles reversed
//! ```
//!
//! - [`links`] is the port's implementation: one [`driver`] task per host owns the connection;
//!   everyone else asks it through a watch channel. It connects at once, again after every loss
//!   (backoff with jitter), and at once when a call finds the link down.
//! - [`transport`] is one SSH connection: the host key is compared with the pinned fingerprint
//!   before anything is sent, the client authenticates with an ed25519 key from a private file
//!   ([`key`]). The only command texts that ever cross are the constants of [`channel::Remote`];
//!   what callers supply travels as typed values inside HTTP requests.
//! - [`client`] and [`calls`] are the host API as typed requests over any byte stream, so tests
//!   speak it over a socket pair and the product over an SSH channel.
//! - [`uplink`] is the server on channel 2.
#![forbid(unsafe_code)]

pub mod calls;
pub mod channel;
pub mod client;
mod driver;
pub mod key;
pub mod links;
mod over;
pub mod transport;
pub mod uplink;

pub use client::HostClient;
pub use key::{ClientKey, HostKeyPin};
pub use links::{SshLinks, SshSettings};
pub use over::{Exchange, Over};
pub use uplink::{Uplink, UplinkBody, UplinkService};
