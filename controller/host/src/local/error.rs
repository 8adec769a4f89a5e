//! Why this machine could not be made a host.

use std::path::PathBuf;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A program is missing.
    #[error("{program} is missing: install the package {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program failed.
    #[error("{program} failed: {said}")]
    Failed {
        /// The program.
        program: &'static str,
        /// What it said.
        said: String,
    },
    /// A path cannot be used.
    #[error("{} cannot be used: {why}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// An account cannot be used.
    #[error("the account {name} cannot be used: {why}")]
    Account {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// The sshd did not come up.
    #[error("sshd did not start: {said}")]
    Sshd {
        /// The end of its log.
        said: String,
    },
    /// The port of the sshd is taken by somebody else.
    #[error(
        "port {port} on 127.0.0.1, under which this host is known, is taken by another program. End that program \
         (see: ss -ltnp 'sport = :{port}') and start again. Another port would make this another host, and what \
         runs in its sandboxes would be lost; to have it so, remove {} first",
        remembered.display()
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// Where it is remembered.
        remembered: PathBuf,
    },
    /// The system refused something.
    #[error("could not {doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl LocalError {
    /// Adds what was being done to a system error.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// A path that cannot be used.
    pub(crate) fn path(path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self::Path {
            path: path.into(),
            why: why.into(),
        }
    }
}
