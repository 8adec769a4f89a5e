//! The only `unsafe` code of the product. Three things have no safe interface anywhere:
//!
//! - crediting entropy to the kernel's random pool, an `ioctl` with a structure of its own;
//! - having tokio watch a descriptor, since it has to stay the same one while it is watched;
//! - running code between `fork` and `exec`, where only async-signal-safe calls are allowed.
//!
//! Everything else in this crate goes through rustix and the standard library.
#![allow(unsafe_code, reason = "see above: these calls have no safe interface")]

use rustix::ioctl::{NoArg, Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// `_IOW('R', 3, int[2])`
const RNDADDENTROPY: Opcode = opcode::write::<[i32; 2]>(b'R', 3);
/// `_IO('R', 7)`
const RNDRESEEDCRNG: Opcode = opcode::none(b'R', 7);

/// How many bytes of entropy are credited at once.
pub const ENTROPY: usize = 64;

/// The kernel's `struct rand_pool_info` with its buffer.
#[repr(C)]
struct PoolInfo {
    entropy_bits: i32,
    size: i32,
    buffer: [u8; ENTROPY],
}

/// Adds random bytes to the kernel's pool, credits them in full, and has the generator reseeded
/// from it, so that nothing drawn from now on was fixed before. `random` is `/dev/random`.
///
/// # Errors
/// The kernel refuses, for instance for want of privilege.
pub fn credit_entropy(random: &File, bytes: [u8; ENTROPY]) -> io::Result<()> {
    let info = PoolInfo {
        entropy_bits: 8 * 64,
        size: 64,
        buffer: bytes,
    };
    // SAFETY: the opcode is the kernel's RNDADDENTROPY, whose argument is a pointer to a
    // `rand_pool_info`: two ints and `size` bytes. `PoolInfo` is exactly that, with size 64.
    unsafe { ioctl(random, Setter::<RNDADDENTROPY, PoolInfo>::new(info)) }?;
    // SAFETY: RNDRESEEDCRNG takes no argument.
    unsafe { ioctl(random, NoArg::<RNDRESEEDCRNG>::new()) }?;
    Ok(())
}

/// Has `prepare` run in the child, after `fork` and before `exec`.
///
/// `prepare` must be async-signal-safe: plain system calls on values made before, no allocation, no
/// lock. The callers of this crate pass only such closures (see `exec::child`).
pub fn before_exec(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the contract above. The closure runs in a single-threaded copy of this process, and
    // an error it returns is reported to the parent by the standard library.
    unsafe { command.pre_exec(prepare) };
}

/// Watches a descriptor for being ready.
///
/// # Errors
/// The kernel cannot watch it.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is one open descriptor from its making to its drop, and the `AsyncFd`
    // owns it: it cannot change or be closed while it is watched.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
