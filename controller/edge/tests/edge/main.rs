//! The HTTP face over real services, a real store and a host in memory.
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

mod again;
mod artifacts;
mod auth;
mod bodies;
mod crawl;
mod crowd;
mod golden;
mod mcp;
mod mcp_runs;
mod mcp_watch;
mod names;
mod origin;
mod revoked;
mod served;
mod server;
mod shares;
mod slow;
mod stream;
mod support;
