//! The system's own programs, by argument vector, found also where only root's PATH leads.

use super::LocalError;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// No tool used here takes longer than this on a healthy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A program and the Debian package that has it.
#[derive(Clone, Copy)]
pub(super) struct Tool {
    name: &'static str,
    package: &'static str,
}

pub(super) const GETENT: Tool = Tool {
    name: "getent",
    package: "libc-bin",
};
pub(super) const USERADD: Tool = Tool {
    name: "useradd",
    package: "passwd",
};
pub(super) const USERMOD: Tool = Tool {
    name: "usermod",
    package: "passwd",
};
pub(super) const ID: Tool = Tool {
    name: "id",
    package: "coreutils",
};
pub(super) const SSH_KEYGEN: Tool = Tool {
    name: "ssh-keygen",
    package: "openssh-client",
};
pub(super) const SSHD: Tool = Tool {
    name: "sshd",
    package: "openssh-server",
};

/// What a program said.
pub(super) struct Said {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Tool {
    /// Where the program is. sshd insists on being started by its full path.
    pub(super) fn find(self) -> Result<PathBuf, LocalError> {
        crate::process::find_program(Path::new(self.name)).ok_or(LocalError::Missing {
            program: self.name,
            package: self.package,
        })
    }

    /// Runs it to its end.
    pub(super) async fn ask<I>(self, args: I) -> Result<Said, LocalError>
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        let output = tokio::process::Command::new(self.find()?)
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(DEADLINE, output)
            .await
            .map_err(|_| LocalError::Failed {
                program: self.name,
                said: "it did not end".to_owned(),
            })?
            .map_err(LocalError::io(format!("run {}", self.name)))?;
        Ok(Said {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Runs it to its end, which must be a success.
    pub(super) async fn run<I>(self, args: I) -> Result<Said, LocalError>
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        let said = self.ask(args).await?;
        if said.success {
            Ok(said)
        } else {
            Err(LocalError::Failed {
                program: self.name,
                said: said.stderr,
            })
        }
    }
}
