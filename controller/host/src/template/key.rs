//! What has to be equal for a machine to be loaded from a template.

use crate::process::boot_id;
use crate::state::{State, internal};
use crate::vmm::{self, Machine};
use lazaret_api::PROTOCOL;
use lazaret_api::host::Accel;
use lazaret_domain::{ByteSize, Cpus, Denial};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::os::unix::fs::MetadataExt;

/// Digits of a template's name: no longer than a sandbox's, since QEMU's sockets lie below both.
const NAME: usize = 16;

/// All that a template depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    /// The image's digest, which covers kernel, guest agent and root.
    pub image: String,
    /// How instructions are executed.
    pub accel: Accel,
    /// Memory.
    pub memory: ByteSize,
    /// Virtual CPUs.
    pub cpus: Cpus,
    /// The size of the disk.
    pub disk: ByteSize,
    /// QEMU's program, its size, and when it was last changed: enough to see another version.
    vmm: (String, u64, i64, i64),
    /// All that QEMU is told of the machine.
    machine: String,
    /// The host's boot: after another, its CPU, clock and kernel may be others.
    boot_id: String,
    /// This program's own generation of templates and of the guest API.
    generation: (u32, u32),
}

/// Raised whenever a template is made in another way.
const MAKING: u32 = 1;

impl Key {
    /// The key of a machine with a disk of that size, made from an image of that digest.
    ///
    /// # Errors
    /// If QEMU is missing or the host does not say what it is.
    pub(crate) fn of(
        state: &State,
        image: &str,
        machine: &Machine,
        disk: ByteSize,
    ) -> Result<Self, Denial> {
        let fault = |error: std::io::Error| internal("see what a template depends on", &error);
        let qemu = vmm::find(&state.config().qemu)?;
        let meta = std::fs::metadata(&qemu).map_err(fault)?;
        Ok(Self {
            image: image.to_owned(),
            accel: machine.accel,
            memory: machine.memory,
            cpus: machine.cpus,
            disk,
            vmm: (
                qemu.to_string_lossy().into_owned(),
                meta.size(),
                meta.mtime(),
                meta.ctime(),
            ),
            machine: machine.fingerprint(),
            boot_id: boot_id().map_err(fault)?,
            generation: (MAKING, PROTOCOL),
        })
    }

    /// A key of nothing that exists.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            image: "0".repeat(64),
            accel: Accel::Tcg,
            memory: ByteSize::mebibytes(512),
            cpus: Cpus::ONE,
            disk: ByteSize::mebibytes(64),
            vmm: (String::new(), 0, 0, 0),
            machine: String::new(),
            boot_id: String::new(),
            generation: (MAKING, PROTOCOL),
        }
    }

    /// The template's name.
    pub(crate) fn name(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = Sha256::digest(&text);
        let mut name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        name.truncate(NAME);
        name
    }

    /// Whether nothing can ever match it again: another QEMU, another boot of the host, or an older
    /// program.
    pub(super) fn is_of_the_past(&self) -> bool {
        let vmm = std::fs::metadata(&self.vmm.0).map(|meta| {
            let path = self.vmm.0.clone();
            (path, meta.size(), meta.mtime(), meta.ctime())
        });
        self.generation != (MAKING, PROTOCOL)
            || boot_id().is_ok_and(|id| id != self.boot_id)
            || vmm.is_ok_and(|vmm| vmm != self.vmm)
    }
}
