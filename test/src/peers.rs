//! Servers for a sandbox or the controller to talk to. Each lives on a free port of loopback until
//! it is dropped, and records what it was asked.

mod git;
mod npm;
mod pip;
mod serve;
mod sink;

pub use git::GitServer;
pub use npm::NpmRegistry;
pub use pip::PyIndex;
pub use serve::{Asked, Served};
pub use sink::{Arrival, Sink};

/// Runs a program of the machine to its end, with a clean environment.
pub(crate) async fn tool<I>(program: &str, args: I, cwd: &std::path::Path) -> anyhow::Result<String>
where
    I: IntoIterator<Item: AsRef<std::ffi::OsStr>>,
{
    let output = tokio::process::Command::new(program)
        .args(args)
        .current_dir(cwd)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .envs([
            ("LC_ALL", "C"),
            ("HOME", "/nonexistent"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_AUTHOR_NAME", "Test"),
            ("GIT_AUTHOR_EMAIL", "test@example.org"),
            ("GIT_COMMITTER_NAME", "Test"),
            ("GIT_COMMITTER_EMAIL", "test@example.org"),
            ("GIT_TERMINAL_PROMPT", "0"),
        ])
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    anyhow::ensure!(
        output.status.success(),
        "{program} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
