//! The settings of a host: `host.toml` in its state directory. Missing means defaults; a field that
//! does not exist is refused, so that a misspelt limit is not silently none.

use anyhow::Context;
use lazaret_api::host::AccelChoice;
use lazaret_domain::{ByteSize, Cpus, Span};
use serde::Deserialize;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// The name of the settings file.
pub const FILE: &str = "host.toml";

/// What the operator of a host set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostConfig {
    /// Sandboxes at once.
    pub max_sandboxes: u32,
    /// No sandbox is created while less disk than this is free.
    pub min_free_disk: ByteSize,
    /// How many times the free disk (beyond [`Self::min_free_disk`]) is promised to sandboxes: what
    /// their disks may still grow by, together. 1 promises nothing that is not there.
    pub disk_overcommit: NonZeroU32,
    /// The most memory a sandbox may have.
    pub max_memory: ByteSize,
    /// The largest disk a sandbox may have.
    pub max_disk: ByteSize,
    /// The most virtual CPUs a sandbox may have.
    pub max_cpus: Cpus,
    /// Where images are; the state directory's `images` if not set.
    pub images_dir: Option<PathBuf>,
    /// The accelerators that are probed for the host's description.
    pub accel: AccelChoice,
    /// How long a probe guest may take.
    pub probe_deadline: Span,
    /// QEMU's program.
    pub qemu: PathBuf,
    /// The cgroup below which sandboxes get theirs, relative to each hierarchy's root; it must
    /// exist and belong to the host's account. Where it does not, no cgroup limits apply, and each
    /// sandbox says so.
    pub cgroup: String,
    /// The most a guest may write to its console within [`Self::console_window`].
    pub console_budget: ByteSize,
    /// See [`Self::console_budget`].
    pub console_window: Span,
    /// How often a guest is asked for its health while it has work; twenty times less often else.
    pub health_every: Span,
    /// A guest that does not answer for so long is ended.
    pub health_deadline: Span,
    /// More kernel parameters, as one text.
    pub kernel_args: String,
    /// Whether sandboxes are forked from templates where there is one, and templates are made.
    pub templates: bool,
    /// How many forks of a template are kept up and ready for the next sandbox, besides
    /// [`Self::max_sandboxes`]. Each takes a few tens of MiB.
    pub spares: u32,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            max_sandboxes: 5,
            min_free_disk: ByteSize::mebibytes(2 << 10),
            disk_overcommit: NonZeroU32::MIN.saturating_add(3),
            max_memory: ByteSize::mebibytes(16 << 10),
            max_disk: ByteSize::mebibytes(256 << 10),
            max_cpus: Cpus::try_from(16).unwrap_or(Cpus::ONE),
            images_dir: None,
            accel: AccelChoice::Kvm,
            probe_deadline: Span::seconds(45),
            qemu: PathBuf::from("qemu-system-x86_64"),
            cgroup: "lazaret".into(),
            console_budget: ByteSize::from_bytes(256 << 10),
            console_window: Span::seconds(10),
            health_every: Span::seconds(15),
            health_deadline: Span::seconds(60),
            kernel_args: String::new(),
            templates: true,
            spares: 1,
        }
    }
}

impl HostConfig {
    /// Reads the settings of a state directory.
    ///
    /// # Errors
    /// If the file is there and cannot be read or holds what is not a setting.
    pub fn load(root: &Path) -> anyhow::Result<Self> {
        let path = root.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        toml::from_str(&text).with_context(|| format!("{} is not in order", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(HostConfig::load(dir.path()).unwrap(), HostConfig::default());
        std::fs::write(
            dir.path().join(FILE),
            "max_sandboxes = 2\nmin_free_disk = \"1G\"\n",
        )
        .unwrap();
        assert_eq!(HostConfig::load(dir.path()).unwrap().max_sandboxes, 2);
        for text in [
            "max_sandbox = 2",
            "min_free_disk = \"lots\"",
            "max_sandboxes = -1",
            "max_cpus = 0",
            "disk_overcommit = 0",
        ] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            assert!(HostConfig::load(dir.path()).is_err(), "{text}");
        }
    }
}
