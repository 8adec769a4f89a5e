//! The product on this machine, for one test.
//!
//! A [`Ground`] is this machine as a host, made ready as `lazaret up` does it, with an account, an
//! sshd, keys and a directory that no other test shares.

mod ground;

pub use ground::Ground;
