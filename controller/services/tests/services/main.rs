//! The use cases against a host in memory and a real SQLite file.

mod access;
mod crash;
mod history;
mod life;
mod outage;
mod support;
mod teardown;
