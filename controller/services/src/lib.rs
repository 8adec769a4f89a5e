//! The use cases of the controller, and the ports they act through.
//!
//! ```text
//!   edge ──► Services ──► Runs ───► drivers: one task per run, the only one that changes it
//!                    │      │          │
//!                    │      └── reads ─┤          every effect: intent ► effect ► outcome
//!                    ├──► Keys         ▼
//!                    └──► Hosts ──► ports: Store · HostLinks · Clock · Random
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`runs`] · [`keys`] · [`hosts`] | the use cases |
//! | [`driver`] | the life of a run, as journaled steps |
//! | [`reconcile`] | what hosts have that no run holds |
//! | [`guest_git`] | clone and diff, as constant scripts |
//! | [`again`] | what asking again under an idempotency key finds |
//! | [`ports`] | what all of it acts through |
//!
//! Every use case takes the [`Principal`] that asks, checks its scope, and answers a value or a
//! [`Denial`](lazaret_domain::Denial). HTTP, MCP and the command line are faces over these; none of
//! them decides anything of its own.
#![forbid(unsafe_code)]

pub mod hex;
pub mod ports;

mod again;
mod core;
mod driver;
mod feed;
mod guest_git;
mod hosts;
mod keys;
mod principal;
mod reconcile;
mod runs;
mod services;
mod settings;

pub use hosts::Hosts;
pub use keys::{Keys, Secret};
pub use principal::{IdempotencyKey, Principal};
pub use runs::{FileBytes, Runs};
pub use services::{Ports, Services};
pub use settings::{EgressSettings, Pace, ServicesSettings};
