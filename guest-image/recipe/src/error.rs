//! Why an image could not be built, or is not what it says.

use lazaret_domain::{Denial, DenialCode};
use std::io;
use std::path::{Path, PathBuf};

/// A failure around images.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program that the build runs is not installed.
    #[error("{tool} is missing; install it with: apt-get install {package}")]
    ToolMissing {
        /// The program.
        tool: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program that the build runs failed.
    #[error("{tool} failed ({status}): {tail}")]
    ToolFailed {
        /// The program.
        tool: String,
        /// How it ended.
        status: String,
        /// The last lines it wrote.
        tail: String,
    },
    /// A file or directory cannot be handled.
    #[error("{what} {}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The recipe is out of form.
    #[error("the recipe is not usable: {0}")]
    Recipe(String),
    /// A layer that the recipe does not have.
    #[error("the recipe has no layer {0}")]
    UnknownLayer(String),
    /// The guest agent to put in is not one.
    #[error("{} is not the static guest agent; build it first", .0.display())]
    NotTheAgent(PathBuf),
    /// The kernel package holds something unexpected.
    #[error("the kernel package is not usable: {0}")]
    Kernel(String),
    /// Something that looks like a credential is in the image.
    #[error("a credential is in the image: {}", .0.join(", "))]
    Credential(Vec<String>),
    /// The packages are not those that the lock names.
    #[error("the packages differ from the lock: {}", .0.join(", "))]
    Drift(Vec<String>),
    /// There is no image.
    #[error("there is no image at {}", .0.display())]
    Missing(PathBuf),
    /// An image is not what its manifest says.
    #[error("the image at {} was altered: {why}", path.display())]
    Altered {
        /// Where it is.
        path: PathBuf,
        /// What differs.
        why: String,
    },
}

impl ImageError {
    /// The refusal that this means to whoever wanted to use the image.
    #[must_use]
    pub fn denial(&self) -> Denial {
        let code = match self {
            Self::Missing(_) => DenialCode::ImageMissing,
            Self::Altered { .. } | Self::Credential(_) | Self::Drift(_) => DenialCode::ImageAltered,
            Self::UnknownLayer(_) => DenialCode::InvalidName,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                DenialCode::DiskFull
            }
            _ => DenialCode::Internal,
        };
        Denial::new(code, self.to_string())
    }
}

/// Says what was being done with which path when a call failed.
pub(crate) trait At<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, ImageError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, ImageError> {
        self.map_err(|source| ImageError::Io {
            what,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}
