//! From a bare kernel to a running system.
//!
//! ```text
//!  initramfs ──► modules ──► disks ──► root ──► switch ──► cgroups ──► network ──► Boot::Guest
//!                   └─ `lazaret.probe` on the command line ──► Boot::Probe
//! ```
//!
//! The root is an overlay: below it the read-only image (erofs), above it the sandbox's own disk
//! (ext4). Every step fails closed: a guest that could not be set up as it should be powers off,
//! with the reason as the last line of its console.

mod disks;
mod modules;
mod mounts;
mod netlink;
mod network;
mod settings;

use crate::console;
use crate::exec::Cgroups;
use rustix::system::{RebootCommand, reboot};
use std::io;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct BootError {
    step: String,
    source: io::Error,
}

/// Names the step a failure belongs to.
trait Step<T> {
    fn step(self, step: impl Into<String>) -> Result<T, BootError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl Into<String>) -> Result<T, BootError> {
        self.map_err(|source| BootError {
            step: step.into(),
            source: source.into(),
        })
    }
}

/// What was booted.
pub enum Boot {
    /// A guest that is ready to serve.
    Guest(System),
    /// A probe: the kernel and its devices work, and nothing else was wanted.
    Probe,
}

/// A system that is set up.
pub struct System {
    /// Where commands are contained.
    pub cgroups: Cgroups,
    /// Whether it is to be frozen into a template, and is warmed up for that.
    pub warm: bool,
}

/// Sets the system up.
///
/// # Errors
/// The step that failed, and why.
pub async fn boot() -> Result<Boot, BootError> {
    mounts::bare()?;
    console::say("up");
    let cmdline =
        std::fs::read_to_string("/proc/cmdline").step("reading the kernel's command line")?;
    modules::load()?;
    let told = |wanted: &str| cmdline.split_ascii_whitespace().any(|word| word == wanted);
    if told("lazaret.probe") {
        return Ok(Boot::Probe);
    }
    let disks = disks::find().await?;
    mounts::root(&disks)?;
    mounts::switch()?;
    settings::apply()?;
    let cgroups = Cgroups::set_up(mounts::CGROUPS.as_ref()).step("setting up control groups")?;
    network::up()?;
    Ok(Boot::Guest(System {
        cgroups,
        warm: told("lazaret.warm"),
    }))
}

/// Writes everything back and powers off; if the machine cannot, it is reset, which ends it too.
pub fn power_off() {
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
    let _ = reboot(RebootCommand::Restart);
}
