//! The HTTP face over real services, a real store and a host in memory.
#![allow(missing_docs, unreachable_pub)]

mod artifacts;
mod auth;
mod bodies;
mod crawl;
mod golden;
mod mcp;
mod mcp_runs;
mod names;
mod origin;
mod server;
mod stream;
mod support;
