//! `/mcp`: the same use cases as `/api/v1`, as tools.
//!
//! Served without sessions to every client. The 2025 revisions open with `initialize` and get by
//! without a session; the 2026-07-28 revision is stateless, and there a handler lives for one
//! request. So nothing is kept here: a run is named by its id in every call.
//!
//! A call answers within [`call::LIMIT`]. A client that goes away, or closes the response stream
//! (which in the stateless revision means "cancel the call"), ends only the waiting: never a run.

mod args;
pub(crate) mod call;
mod catalog;
pub(crate) mod mount;
mod progress;
mod reply;
mod short;
mod tools;

pub use catalog::list as tool_list;
pub use tools::Tools;
