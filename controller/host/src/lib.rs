//! What runs on a host. There is no daemon: every part is a process that somebody started.
//!
//! ```text
//!   sshd ── gate ─┬─ session ──(unix socket)──► shim ──► QEMU      one shim per sandbox
//!                 └─ uplink ◄──(unix socket)──── gateway (in the shim)
//! ```
//!
//! * [`gate`] is the forced command of the controller's key: `session` or `uplink`, nothing else.
//! * [`session`] answers the host API on its standard streams. It holds nothing but spares: sandboxes are
//!   directories, and what concerns a living one is passed on to its shim.
//! * [`shim`] owns one sandbox: QEMU, deadline, console, commands, gateway. It outlives session and
//!   controller, and dies with its VM as the VM dies with it.
//! * [`uplink`] passes what the gateways ask on to the controller.
//! * [`probe`] finds out by booting a guest which accelerator really works.
//!
//! Everything runs as one unprivileged account and needs no helper with more rights.
#![forbid(unsafe_code)]

pub mod command;
pub mod config;
pub mod gate;
pub mod gateway;
pub mod local;
pub mod probe;
pub mod session;
pub mod shim;
pub mod state;
pub mod uplink;

mod image;
mod pipe;
mod process;
mod template;
mod vmm;
mod wire;

pub use command::{HostCommand, run};
