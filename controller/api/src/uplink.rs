//! The uplink: HTTP/2 on SSH channel 2 with the roles reversed. `lazaret host uplink` is the client
//! there; it listens on a Unix socket in the host's state directory and passes on what the shims'
//! gateways ask.
//!
//! | request | does |
//! | --- | --- |
//! | `GET /v1/ping` | 204; the link is up |
//! | `/git/{owner}/{name}.git/…` | git smart HTTP, forwarded to the git base URL |
//!
//! The shim, not the guest, says which sandbox asks: it sets [`SANDBOX_HEADER`] and drops one that
//! the guest sent. While the uplink is down the gateway answers 503.

/// Which sandbox's cable the request came from.
pub const SANDBOX_HEADER: &str = "lazaret-sandbox";

/// The name of the uplink's socket in the host's state directory.
pub const SOCKET: &str = "uplink.sock";
