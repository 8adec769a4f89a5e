//! A sandbox's disk: a thin layer over an empty, formatted file system that all disks of that size
//! share. Its size is a bound: a guest that fills it gets "no space left" and the host keeps its own.

use super::arguments::find;
use lazaret_domain::{ByteSize, Denial, DenialCode};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// Makes the disk of a sandbox. `cache` holds the formatted file systems.
pub(crate) async fn make_disk(cache: &Path, disk: &Path, size: ByteSize) -> Result<(), Denial> {
    let base = formatted(cache, size).await?;
    let mut command = Command::new(find(Path::new("qemu-img"))?);
    command
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(&base)
        .arg(disk);
    finish(command, "make the sandbox's disk").await
}

/// The empty file system of that size. It appears by a rename, so that two makers do not meet.
async fn formatted(cache: &Path, size: ByteSize) -> Result<PathBuf, Denial> {
    let base = cache.join(format!("ext4-{}.img", size.bytes()));
    if base.is_file() {
        return Ok(base);
    }
    let making = cache.join(format!("ext4-{}.{}", size.bytes(), std::process::id()));
    let fault = |error: std::io::Error| crate::state::internal("make a formatted disk", &error);
    std::fs::File::create(&making)
        .and_then(|file| file.set_len(size.bytes()))
        .map_err(fault)?;
    let mut command = Command::new(find(Path::new("mke2fs"))?);
    // No journal: the disk lives no longer than its VM.
    command
        .args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-O",
            "^has_journal",
            "-m",
            "0",
            "-L",
            "lazaret",
        ])
        .arg(&making);
    let made = finish(command, "format a disk").await;
    let placed = made.and_then(|()| std::fs::rename(&making, &base).map_err(fault));
    if placed.is_err() {
        let _ = std::fs::remove_file(&making);
    }
    placed.map(|()| base)
}

async fn finish(mut command: Command, doing: &str) -> Result<(), Denial> {
    let output = command
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| crate::state::internal(doing, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let code = if words.contains("No space left") {
        DenialCode::DiskFull
    } else {
        DenialCode::Internal
    };
    Err(Denial::new(
        code,
        format!("the host could not {doing}: {}", words.trim()),
    ))
}
