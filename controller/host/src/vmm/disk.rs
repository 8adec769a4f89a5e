//! A sandbox's disk: a thin layer over an empty, formatted file system that all disks of that size
//! share. Its size is a bound: a guest that fills it gets "no space left" and the host keeps its own.

use super::arguments::find;
use lazaret_domain::{ByteSize, Denial, DenialCode};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// Makes the disk of a sandbox. `cache` holds the formatted file systems and an empty layer over
/// each: a layer names its base and is otherwise the same every time, so that it is only copied.
pub(crate) async fn make_disk(cache: &Path, disk: &Path, size: ByteSize) -> Result<(), Denial> {
    let layer = cache.join(format!("ext4-{}.qcow2", size.bytes()));
    if !layer.is_file() {
        let base = formatted(cache, size).await?;
        let making = cache.join(format!("layer-{}.{}", size.bytes(), std::process::id()));
        let mut command = Command::new(find(Path::new("qemu-img"))?);
        command
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .arg(&base)
            .arg(&making);
        let made = finish(command, "make an empty disk").await;
        let fault = |error: io::Error| fault("make an empty disk", &error);
        let placed = made.and_then(|()| place(&making, &layer).map_err(fault));
        let _ = std::fs::remove_file(&making);
        placed?;
    }
    copy_disk(&layer, disk)
}

/// Makes an empty layer over another, which may be in use: it is not looked at.
pub(crate) async fn make_layer(below: &Path, layer: &Path, size: ByteSize) -> Result<(), Denial> {
    let mut command = Command::new(find(Path::new("qemu-img"))?);
    command
        .args(["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b"])
        .arg(below)
        .arg(layer)
        .arg(size.bytes().to_string());
    finish(command, "lay a layer over a disk").await
}

/// Copies a thin layer over its base: an empty one, or that of a template. The copy is a file of its
/// own also where one lay before: a QEMU that is just being killed may still hold that.
pub(crate) fn copy_disk(layer: &Path, disk: &Path) -> Result<(), Denial> {
    let removed = match std::fs::remove_file(disk) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    removed
        .and_then(|()| std::fs::copy(layer, disk))
        .map(drop)
        .map_err(|error| fault("make the sandbox's disk", &error))
}

/// The empty file system that all disks of that size lie over.
pub(crate) fn base_of(cache: &Path, size: ByteSize) -> PathBuf {
    cache.join(format!("ext4-{}.img", size.bytes()))
}

/// A full disk has a code of its own.
fn fault(doing: &str, error: &io::Error) -> Denial {
    if error.kind() == io::ErrorKind::StorageFull {
        return Denial::new(
            DenialCode::DiskFull,
            format!("the host could not {doing}: {error}"),
        );
    }
    crate::state::internal(doing, error)
}

/// Gives a finished file its name, unless it has been given: the first maker wins. What is there is
/// never replaced, because disks and templates lie over it and know its blocks.
fn place(making: &Path, name: &Path) -> io::Result<()> {
    match std::fs::hard_link(making, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// The empty file system of that size, the same for all who ask.
async fn formatted(cache: &Path, size: ByteSize) -> Result<PathBuf, Denial> {
    let base = base_of(cache, size);
    if base.is_file() {
        return Ok(base);
    }
    let making = cache.join(format!("ext4-{}.{}", size.bytes(), std::process::id()));
    let fault = |error: io::Error| fault("make a formatted disk", &error);
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
    let placed = made.and_then(|()| place(&making, &base).map_err(fault));
    let _ = std::fs::remove_file(&making);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_first_of_two_makers_wins() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("ext4-1.img");
        for maker in ["one", "two"] {
            let making = dir.path().join(maker);
            std::fs::write(&making, maker).unwrap();
            place(&making, &name).unwrap();
        }
        assert_eq!(std::fs::read(&name).unwrap(), b"one");
    }

    #[tokio::test]
    async fn disks_of_one_size_lie_over_one_file_and_leave_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, size) = (dir.path().join("disks"), ByteSize::mebibytes(64));
        std::fs::create_dir(&cache).unwrap();
        make_disk(&cache, &dir.path().join("a.qcow2"), size)
            .await
            .unwrap();
        let base = cache.join(format!("ext4-{}.img", size.bytes()));
        let first = std::fs::metadata(&base).unwrap().ino();
        // As if another maker had begun before the layer was there.
        std::fs::remove_file(cache.join(format!("ext4-{}.qcow2", size.bytes()))).unwrap();
        make_disk(&cache, &dir.path().join("b.qcow2"), size)
            .await
            .unwrap();
        assert_eq!(std::fs::metadata(&base).unwrap().ino(), first);
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 2);
    }
}
