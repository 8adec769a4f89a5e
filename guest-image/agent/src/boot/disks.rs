//! Finds the disks by the serial numbers the host gave them; their order means nothing.

use super::{BootError, Step};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The read-only image.
const ROOT_SERIAL: &str = "lazaret-root";
/// The sandbox's own disk.
const DISK_SERIAL: &str = "lazaret-disk";
/// How often and how long to look again: a device may appear a little after its driver.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// The block devices of a sandbox.
pub(super) struct Disks {
    pub(super) root: PathBuf,
    pub(super) disk: PathBuf,
}

/// Finds both, or says which is missing.
pub(super) async fn find() -> Result<Disks, BootError> {
    let mut missing = ROOT_SERIAL;
    for _ in 0..TRIES {
        match (by_serial(ROOT_SERIAL), by_serial(DISK_SERIAL)) {
            (Some(root), Some(disk)) => return Ok(Disks { root, disk }),
            (None, _) => missing = ROOT_SERIAL,
            (_, None) => missing = DISK_SERIAL,
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(io::Error::from(io::ErrorKind::NotFound)).step(format!("finding the disk {missing}"))
}

fn by_serial(serial: &str) -> Option<PathBuf> {
    fs::read_dir("/sys/block")
        .ok()?
        .flatten()
        .find_map(|entry| {
            let text = fs::read_to_string(entry.path().join("serial")).ok()?;
            (text.trim_end() == serial).then(|| PathBuf::from("/dev").join(entry.file_name()))
        })
}
