//! A shim that was started before there is a sandbox, and is told on its standard input whose it is.

use super::LOG;
use crate::state::{State, private_file};
use anyhow::Context;
use lazaret_domain::SandboxId;
use std::fs::File;
use std::io::{BufRead as _, stdin};

/// Waits to be told the sandbox; nothing if the session ended before there was one.
///
/// # Errors
/// If what it was told is no sandbox's id.
pub(crate) fn wait_for_sandbox() -> anyhow::Result<Option<SandboxId>> {
    let mut line = String::new();
    stdin()
        .lock()
        .read_line(&mut line)
        .context("wait for a sandbox")?;
    // Without its line's end it was cut off, and whoever wrote it is gone.
    let Some(id) = line.strip_suffix('\n') else {
        return Ok(None);
    };
    id.parse().map(Some).context("what it was told")
}

/// Has standard streams as a shim that is started for its sandbox has them: nothing to read, and the
/// log in the sandbox's directory.
///
/// # Errors
/// If the directory is not there.
pub(crate) fn log_in_its_place(state: State, id: &SandboxId) -> anyhow::Result<State> {
    let log = private_file(&state.sandbox(id).join(LOG)).context("open the shim's log")?;
    rustix::stdio::dup2_stderr(log)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(state)
}
