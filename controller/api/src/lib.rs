//! Wire types, one module per hop. Handlers convert them to domain values at the door; nothing here
//! decides anything.
//!
//! | module | spoken between |
//! | --- | --- |
//! | [`public`] | callers, the command line, the console and the controller (OpenAPI comes from here) |
//! | [`host`] | the controller and `lazaret host session`, and the session and its shims |
//! | [`guest`] | the shim and the guest agent |
//! | [`uplink`] | the shims' gateways and the controller |
//! | [`frame`] | the framing of command output on the host and guest hops |
//!
//! All hops but the public one are HTTP/2 over a byte stream (an SSH channel, a Unix socket, a
//! virtio-serial port). Their version is [`PROTOCOL`]; additions only, the newer side speaks the
//! older form.
#![forbid(unsafe_code)]

pub mod frame;
pub mod guest;
pub mod host;
pub mod public;
pub mod uplink;

/// The generation of the host, guest and uplink protocols. Both ends name theirs in the
/// `lazaret-protocol` header; a side that is asked in a generation it does not know refuses.
pub const PROTOCOL: u32 = 1;

/// The header that carries [`PROTOCOL`].
pub const PROTOCOL_HEADER: &str = "lazaret-protocol";

/// The header that carries a [`lazaret_domain::Fence`] on every host API call with an effect.
pub const FENCE_HEADER: &str = "lazaret-fence";
