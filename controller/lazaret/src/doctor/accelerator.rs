//! The accelerator, proven by a boot: this program's own `host probe` in a directory of its own.

use super::{Check, Surroundings};
use lazaret_api::host::AccelChoice;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// A probe that takes longer than this is given up; its own deadline is shorter.
const PATIENCE: Duration = Duration::from_secs(180);
const NAME: &str = "accelerator";

/// Boots a probe guest with what the settings allow.
pub(super) async fn accelerator(around: &Surroundings) -> Check {
    if !around.boot {
        return Check::warn(NAME, "not checked, as asked", "leave out --no-boot");
    }
    let images = around.paths.images();
    if !images.is_dir() {
        return Check::fail(
            NAME,
            "not checked: there is no image to boot",
            "run: lazaret image build",
        );
    }
    match around.settings().services.accel {
        AccelChoice::Kvm => match probe(&images, "kvm").await {
            Ok(()) => Check::ok(NAME, "a probe guest booted with kvm"),
            Err(why) => Check::fail(
                NAME,
                format!("kvm: {why}"),
                "use a machine with hardware virtualisation, or knowingly set host.accel = \"tcg\" (no security boundary)",
            ),
        },
        AccelChoice::Tcg => tcg(&images, "as host.accel says").await,
        AccelChoice::Auto => match probe(&images, "kvm").await {
            Ok(()) => Check::ok(NAME, "a probe guest booted with kvm"),
            Err(why) => tcg(&images, &format!("kvm does not work here: {why}")).await,
        },
    }
}

async fn tcg(images: &Path, why: &str) -> Check {
    match probe(images, "tcg").await {
        Ok(()) => Check::warn(
            NAME,
            format!("a probe guest booted with tcg ({why})"),
            "software emulation is slow, and QEMU does not regard it as a security boundary: trust what runs in it",
        ),
        Err(error) => Check::fail(
            NAME,
            format!("tcg: {error}"),
            "see the lines above for what is missing",
        ),
    }
}

/// One probe boot. The error is the last line that the probe said.
async fn probe(images: &Path, accel: &str) -> Result<(), String> {
    let state = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut table = toml::Table::new();
    table.insert("images_dir".into(), images.display().to_string().into());
    table.insert("accel".into(), accel.into());
    std::fs::write(state.path().join("host.toml"), table.to_string())
        .map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let child = Command::new(program)
        .args(["host", "probe", "--accel", accel, "--fresh", "--state"])
        .arg(state.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let said = tokio::time::timeout(PATIENCE, child)
        .await
        .map_err(|_| "the probe did not end".to_owned())?
        .map_err(|error| error.to_string())?;
    if said.status.success() {
        return Ok(());
    }
    let out = String::from_utf8_lossy(&said.stdout);
    let err = String::from_utf8_lossy(&said.stderr);
    let last = out
        .lines()
        .chain(err.lines())
        .find(|line| !line.trim().is_empty());
    Err(last.unwrap_or("it said nothing").trim().to_owned())
}
