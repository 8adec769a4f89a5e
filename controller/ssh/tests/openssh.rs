//! The client against a real OpenSSH server, a real account, and a stand-in for the host side.

#[path = "openssh/common.rs"]
mod common;
#[path = "openssh/connection.rs"]
mod connection;
#[path = "openssh/trust.rs"]
mod trust;
