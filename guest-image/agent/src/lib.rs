//! PID 1 and guest agent of a sandbox.
//!
//! | module | role |
//! | --- | --- |
//! | [`boot`] | from a bare kernel to a running system: mounts, modules, disks, network |
//! | [`control`] | the virtio-serial port as a byte stream |
//! | [`serve`] | HTTP/2 on that stream, for as long as the guest lives |
//! | [`api`] | the routes of the guest API, free of any transport |
//! | [`machine`] | what adopting and stopping do to the machine, behind a trait |
//! | [`exec`] | runs commands as the agent user, bounded, and leaves none behind |
//! | [`files`] | files in and out, beneath a root that no link leads out of |
//! | [`children`] | waits for children, and as PID 1 for orphans |
//! | [`warm`] | what a guest starts once before it is frozen into a template |
//! | [`sys`] | the only `unsafe` code of the product |
//!
//! Nothing here is a protection that the product relies on: a hostile root in the guest may replace
//! all of it. It keeps an ordinary run in order; the walls are outside.

pub mod api;
pub mod boot;
pub mod children;
pub mod console;
pub mod control;
pub mod exec;
pub mod files;
pub mod machine;
pub mod serve;
pub mod sys;
mod warm;
