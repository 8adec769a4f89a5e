//! Runs the programs a build needs, by argument vectors, and says clearly what is missing or failed.

use crate::ImageError;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};

/// How many of its last lines are shown when a program fails.
const TAIL: usize = 12;

/// A program, and the Debian package that has it.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    name: &'static str,
    package: &'static str,
}

pub(crate) const MMDEBSTRAP: Tool = Tool {
    name: "mmdebstrap",
    package: "mmdebstrap",
};
/// With it an ordinary user builds in a user namespace; root does not need it.
pub(crate) const NEWUIDMAP: Tool = Tool {
    name: "newuidmap",
    package: "uidmap",
};
pub(crate) const MKFS_EROFS: Tool = Tool {
    name: "mkfs.erofs",
    package: "erofs-utils",
};
pub(crate) const FSCK_EROFS: Tool = Tool {
    name: "fsck.erofs",
    package: "erofs-utils",
};
pub(crate) const APT_GET: Tool = Tool {
    name: "apt-get",
    package: "apt",
};
pub(crate) const APT_CONFIG: Tool = Tool {
    name: "apt-config",
    package: "apt",
};
pub(crate) const NPM: Tool = Tool {
    name: "npm",
    package: "npm",
};
pub(crate) const TAR: Tool = Tool {
    name: "tar",
    package: "tar",
};

impl Tool {
    /// A command line to fill in.
    pub(crate) fn command(self) -> Command {
        let mut command = Command::new(self.name);
        command.stdin(Stdio::null());
        command
    }

    /// Whether it can be started at all.
    pub(crate) fn is_there(self) -> Result<(), ImageError> {
        let output = self.command().arg("--help").output();
        output.map(|_| ()).map_err(|error| self.no_start(&error))
    }

    /// Runs it to its end; each line it writes goes to `line`.
    pub(crate) fn run(
        self,
        mut command: Command,
        line: &mut dyn FnMut(&str),
    ) -> Result<(), ImageError> {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| self.no_start(&error))?;
        let mut tail = VecDeque::new();
        if let Some(stderr) = child.stderr.take() {
            for text in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&text).trim_end().to_owned();
                line(&text);
                tail.push_back(text);
                if tail.len() > TAIL {
                    tail.pop_front();
                }
            }
        }
        let status = child.wait().map_err(|error| self.no_start(&error))?;
        if status.success() {
            return Ok(());
        }
        Err(ImageError::ToolFailed {
            tool: self.name.to_owned(),
            status: status.to_string(),
            tail: Vec::from(tail).join("\n"),
        })
    }

    /// Runs it and returns what it writes to standard output.
    pub(crate) fn output(self, mut command: Command) -> Result<String, ImageError> {
        let output = command.output().map_err(|error| self.no_start(&error))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(ImageError::ToolFailed {
            tool: self.name.to_owned(),
            status: output.status.to_string(),
            tail: String::from_utf8_lossy(&output.stderr)
                .trim_end()
                .to_owned(),
        })
    }

    fn no_start(self, error: &io::Error) -> ImageError {
        if error.kind() == io::ErrorKind::NotFound {
            return ImageError::ToolMissing {
                tool: self.name.to_owned(),
                package: self.package,
            };
        }
        ImageError::ToolFailed {
            tool: self.name.to_owned(),
            status: error.to_string(),
            tail: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let tool = Tool {
            name: "no-such-tool-here",
            package: "some-package",
        };
        assert!(tool.is_there().is_err() && TAR.is_there().is_ok());
        let error = tool
            .run(tool.command(), &mut |_| {})
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no-such-tool-here") && error.contains("apt-get install some-package"),
            "{error}"
        );
    }

    #[test]
    fn a_failure_shows_the_last_lines() {
        let mut command = TAR.command();
        command.args(["-xf", "/no/such/file"]);
        let mut seen = 0;
        let error = TAR
            .run(command, &mut |_| seen += 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such/file") && seen > 0, "{error}");
    }
}
