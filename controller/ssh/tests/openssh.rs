//! The client against a real OpenSSH server, a real account, and a stand-in for the host side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "openssh/common.rs"]
mod common;
#[path = "openssh/connection.rs"]
mod connection;
#[path = "openssh/trust.rs"]
mod trust;
