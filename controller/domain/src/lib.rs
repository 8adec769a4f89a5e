//! The pure rules of Lazaret.
//!
//! Everything here is a function of its arguments: no I/O, no clock, no random source. Time and
//! randomness are arguments. Every other crate depends on this one; this one depends on none of
//! them.
//!
//! | module | rule |
//! | --- | --- |
//! | [`id`] | identifiers of runs, sandboxes, execs, keys |
//! | [`name`] | repositories, git refs, hosts, upload names, guest paths: parsed once, at the door |
//! | [`quantity`] | sizes, durations, vCPU counts, with their bounds |
//! | [`command`] | argument vectors and environments that reach a guest |
//! | [`run`] | the run state machine |
//! | [`sandbox`] | the sandbox state machine |
//! | [`egress`] | destinations, address groups, ordered rules, verdicts |
//! | [`denial`] | every "no" of the product, with its stable code |
#![forbid(unsafe_code)]

pub mod command;
pub mod denial;
pub mod egress;
pub mod id;
pub mod name;
pub mod quantity;
pub mod run;
pub mod sandbox;

pub use command::{Argv, EnvName};
pub use denial::{Denial, DenialClass, DenialCode};
pub use id::{ExecId, Fence, KeyId, RunId, SandboxId};
pub use name::{BranchName, GitRef, GuestPath, HostName, RepoName, UploadName};
pub use quantity::{ByteSize, Cpus, Span, millis};
