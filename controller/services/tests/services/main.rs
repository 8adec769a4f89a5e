//! The use cases against a host in memory and a real SQLite file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

mod access;
mod again;
mod crash;
mod history;
mod hung;
mod life;
mod outage;
mod recovery;
mod rest;
mod stores;
mod support;
mod teardown;
