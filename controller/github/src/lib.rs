//! What the controller says to a git host on behalf of a sandbox.
//!
//! A guest's git is told to reach repositories at `http://gateway.lazaret/git/…`. Its shim passes
//! the request over the uplink to [`GitRoute`], which
//!
//! 1. knows exactly two requests ([`path`]): what git smart HTTP needs to clone and fetch;
//! 2. asks [`GitGrants`] whether that sandbox may see that repository;
//! 3. forwards to the configured git host ([`GitBase`]) with a handful of headers, none of them a
//!    credential of the guest's, follows no redirect, and streams both ways;
//! 4. passes back only what a git host answers to these requests.
//!
//! So what a guest can make the controller ask for is: `info/refs` and `git-upload-pack` of the
//! repositories its run was given.
#![forbid(unsafe_code)]

pub mod base;
mod forward;
pub mod grants;
pub mod path;
mod route;

pub use base::GitBase;
pub use grants::{FixedGrants, GitGrants};
pub use route::{GitRoute, RouteBody};
