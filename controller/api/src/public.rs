//! The public API: what `/api/v1` speaks, and what the MCP tools carry. OpenAPI is generated from
//! these types; a golden file freezes it.
//!
//! Requests refuse unknown fields. Text that came from a guest is data: it is never interpreted.
//!
//! | module | what |
//! | --- | --- |
//! | `problem` | how every refusal is told |
//! | `delegate` | what a caller asks for when delegating a task |
//! | `fork` | what a caller asks for when forking a run |
//! | `runs` | a run as callers see it: how it stands, what it changed, its end |
//! | `events` | what happens in a run, one event after the other |
//! | `workspace` | what lies in the workspace of a run, and commands beside the run |
//! | `hosts` | hosts, and whether new sandboxes go to them |
//! | `keys` | API keys and what they may do |
//! | `system` | the controller about itself |

mod delegate;
mod events;
mod fork;
mod hosts;
mod keys;
mod problem;
mod runs;
mod system;
mod workspace;

pub use delegate::{AgentKind, CreateRun, EgressChoice, EgressMode};
pub use events::{Event, EventBody, EventKind, EventPage};
pub use fork::{ForkRun, Forked};
pub use hosts::{EnrollHost, Host, HostAdmission, HostList, SetAdmission};
pub use keys::{CreateKey, Key, KeyList, NewKey, Scope};
pub use problem::Problem;
pub use runs::{Diff, Run, RunList, RunStages, SandboxView, TornDown};
pub use system::System;
pub use workspace::{ExecResult, ExecRun, FileList};
