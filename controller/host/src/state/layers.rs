//! Layers of disks that several sandboxes share: what a sandbox's disk was when copies were made of it.
//!
//! ```text
//!   STATE/layers/L          the name under which QEMU finds it from the layers above
//!   sandboxes/A/layers/L    the same file: A needs it
//!   sandboxes/B/layers/L    the same file: B needs it
//! ```
//!
//! A layer is never written to. Its links are the count of who needs it: with the last sandbox the
//! one in `STATE/layers` is all that is left, and goes.

use super::{SandboxDir, State};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The links of a sandbox to the layers that its disk lies over.
pub(crate) const LAYERS: &str = "layers";

impl State {
    /// Where layers are.
    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join(LAYERS)
    }

    /// Makes a file the layer of that name, which the sandbox needs. The file keeps its own name too.
    pub(crate) fn make_layer(
        &self,
        file: &Path,
        name: &str,
        dir: &SandboxDir,
    ) -> io::Result<PathBuf> {
        super::private_dir(&dir.join(LAYERS))?;
        std::fs::hard_link(file, dir.join(LAYERS).join(name))?;
        let shared = self.layers().join(name);
        std::fs::hard_link(file, &shared)?;
        Ok(shared)
    }

    /// Removes the layers that no sandbox needs any more.
    pub(crate) fn collect_layers(&self) {
        let Ok(entries) = std::fs::read_dir(self.layers()) else {
            return;
        };
        for entry in entries.flatten() {
            let unused = entry.metadata().is_ok_and(|meta| meta.nlink() == 1);
            if unused && let Err(error) = std::fs::remove_file(entry.path()) {
                tracing::warn!(layer = %entry.path().display(), %error, "a layer could not be removed");
            }
        }
    }
}

impl SandboxDir {
    /// How many layers its disk lies over.
    pub(crate) fn layers(&self) -> usize {
        std::fs::read_dir(self.join(LAYERS)).map_or(0, Iterator::count)
    }

    /// Has this sandbox need all layers that another needs.
    pub(crate) fn share_layers(&self, of: &Self) -> io::Result<()> {
        super::private_dir(&self.join(LAYERS))?;
        for entry in std::fs::read_dir(of.join(LAYERS))? {
            let entry = entry?;
            std::fs::hard_link(entry.path(), self.join(LAYERS).join(entry.file_name()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use lazaret_domain::SandboxId;

    #[test]
    fn a_layer_goes_with_the_last_sandbox_that_needs_it() {
        let root = tempfile::tempdir().unwrap();
        let state = State::open(root.path().join("s"), HostConfig::default()).unwrap();
        let [one, two] = [1, 2].map(|n| {
            let dir = state.sandbox(&SandboxId::make(jiff::Timestamp::UNIX_EPOCH, n));
            std::fs::create_dir(dir.path()).unwrap();
            dir
        });
        std::fs::write(one.join("disk"), "x").unwrap();
        let layer = state.make_layer(&one.join("disk"), "a-0", &one).unwrap();
        two.share_layers(&one).unwrap();
        std::fs::remove_dir_all(one.path()).unwrap();
        state.collect_layers();
        assert_eq!(std::fs::read(&layer).unwrap(), b"x");
        std::fs::remove_dir_all(two.path()).unwrap();
        state.collect_layers();
        assert!(!layer.exists());
    }
}
