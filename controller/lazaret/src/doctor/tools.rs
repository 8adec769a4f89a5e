//! The programs that Lazaret starts.

use super::Check;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, the package that brings it, and the argument that makes it say its version.
struct Tool {
    program: &'static str,
    package: &'static str,
    version: Option<&'static str>,
}

const TOOLS: &[Tool] = &[
    Tool {
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        version: Some("--version"),
    },
    Tool {
        program: "qemu-img",
        package: "qemu-utils",
        version: None,
    },
    Tool {
        program: "sshd",
        package: "openssh-server",
        version: None,
    },
    Tool {
        program: "ssh-keygen",
        package: "openssh-client",
        version: None,
    },
    Tool {
        program: "setpriv",
        package: "util-linux",
        version: None,
    },
    Tool {
        program: "mke2fs",
        package: "e2fsprogs",
        version: None,
    },
    Tool {
        program: "mmdebstrap",
        package: "mmdebstrap",
        version: None,
    },
    Tool {
        program: "mkfs.erofs",
        package: "erofs-utils",
        version: None,
    },
];

/// Where programs are looked for: `PATH`, and where Debian keeps those of administrators.
pub(super) fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .collect();
    for dir in ["/usr/sbin", "/sbin"] {
        if !all.iter().any(|known| known == Path::new(dir)) {
            all.push(dir.into());
        }
    }
    all
}

/// The programs that are missing, each with its package.
pub(super) fn missing(programs: &[PathBuf]) -> Vec<(&'static str, &'static str)> {
    TOOLS
        .iter()
        .filter(|tool| find(programs, tool.program).is_none())
        .map(|tool| (tool.program, tool.package))
        .collect()
}

pub(super) fn tools(programs: &[PathBuf]) -> Vec<Check> {
    TOOLS.iter().map(|tool| check(programs, tool)).collect()
}

fn check(programs: &[PathBuf], tool: &Tool) -> Check {
    let Some(path) = find(programs, tool.program) else {
        return Check::fail(
            tool.program,
            "not found",
            format!("apt-get install {}", tool.package),
        );
    };
    let Some(argument) = tool.version else {
        return Check::ok(tool.program, path.display().to_string());
    };
    let said = Command::new(&path).arg(argument).env_clear().output();
    match said {
        Ok(said) if said.status.success() => {
            let text = String::from_utf8_lossy(&said.stdout);
            Check::ok(tool.program, text.lines().next().unwrap_or_default().trim())
        }
        Ok(said) => Check::fail(
            tool.program,
            format!(
                "{} does not run: {}",
                path.display(),
                String::from_utf8_lossy(&said.stderr).trim()
            ),
            format!("apt-get install --reinstall {}", tool.package),
        ),
        Err(error) => Check::fail(
            tool.program,
            format!("{} does not run: {error}", path.display()),
            format!("apt-get install --reinstall {}", tool.package),
        ),
    }
}

fn find(programs: &[PathBuf], name: &str) -> Option<PathBuf> {
    programs
        .iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}
