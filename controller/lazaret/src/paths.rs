//! Where `lazaret up` keeps everything, in one directory.
//!
//! ```text
//!   DATA/lazaret.toml           the settings (made once, then the operator's)
//!   DATA/lazaret.db             the store
//!   DATA/images/<digest>/       guest images
//!   DATA/cache/                 what building images keeps
//!   DATA/host/                  this machine as a host: its state, its own sshd, and the controller's key
//! ```

use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// The data directory and what is in it.
#[derive(Clone, Debug)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    /// The directory that was asked for, or the usual one: `/var/lib/lazaret` for root, else below
    /// `XDG_DATA_HOME`.
    ///
    /// # Errors
    /// Where there is no home to put it in.
    pub fn find(asked: Option<&Path>) -> Result<Self, Failure> {
        let root = match asked {
            Some(path) => std::path::absolute(path)
                .map_err(|error| Failure::doing("cannot find --data", error))?,
            None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/lazaret"),
            None => {
                let home = |name| {
                    std::env::var_os(name)
                        .map(PathBuf::from)
                        .filter(|path| path.is_absolute())
                };
                home("XDG_DATA_HOME")
                    .or_else(|| home("HOME").map(|home| home.join(".local/share")))
                    .map(|base| base.join("lazaret"))
                    .ok_or_else(|| {
                        Failure::Usage(
                            "neither XDG_DATA_HOME nor HOME is set; say --data DIR".into(),
                        )
                    })?
            }
        };
        Ok(Self { root })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The settings file.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.root.join("lazaret.toml")
    }

    /// What building images keeps.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// The guest images.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// This machine as a host.
    #[must_use]
    pub fn host(&self) -> PathBuf {
        self.root.join("host")
    }
}
