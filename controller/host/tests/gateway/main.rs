//! The gateway from the guest's side: what a sandbox can reach, and what it can't.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

mod bench;
mod connections;
mod doors;
mod frames;
mod names;
mod services;
#[path = "../support/test_guest.rs"]
mod test_guest;
