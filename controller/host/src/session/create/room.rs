//! Whether there is room for one more sandbox: a place among the host's, and disk.
//!
//! A disk takes only what its guest has written, so free space alone says little: all living
//! sandboxes could still fill theirs. What they were promised and have not taken counts too, divided
//! by the host's `disk_overcommit`, since hardly any disk is ever filled.

use crate::config::HostConfig;
use crate::shim::RECORD;
use crate::state::{Record, SandboxDir, State, StateLock, internal};
use lazaret_domain::{ByteSize, Denial, DenialCode};
use std::os::unix::fs::MetadataExt;

/// Bytes of one block, as the system counts what a file really takes.
const BLOCK: u64 = 512;

/// The caps of this host. The caller holds the lock, so two sessions cannot both take the last
/// place. A sandbox whose shim is dead holds no place and keeps no disk.
///
/// # Errors
/// `sandbox_cap` or `disk_full`, to be asked again later.
pub(super) fn admit(state: &State, disk: ByteSize, lock: &StateLock) -> Result<(), Denial> {
    state.has_places(1, lock)?;
    let promised = state.living()?.iter().map(still_promised).sum();
    let free = state
        .disk_free()
        .map_err(|error| internal("see how much disk is free", &error))?;
    room(state.config(), free, promised, disk)
}

/// Bytes that a sandbox's disk may still grow by.
fn still_promised(dir: &SandboxDir) -> u64 {
    let size = dir
        .read::<Record>(RECORD)
        .map_or(0, |record| record.spec.disk.bytes());
    // One that is not made yet takes nothing yet.
    let taken = std::fs::metadata(dir.top_disk()).map_or(0, |meta| meta.blocks() * BLOCK);
    size.saturating_sub(taken)
}

/// `free` and `promised` in bytes.
fn room(config: &HostConfig, free: u64, promised: u64, disk: ByteSize) -> Result<(), Denial> {
    let least = config.min_free_disk;
    let full = |text: String| Err(Denial::new(DenialCode::DiskFull, text).retry_after(60));
    if free < least.bytes() {
        return full(format!(
            "only {}M of disk are free on this host; {least} must stay free",
            free >> 20
        ));
    }
    let factor = config.disk_overcommit.get();
    let bearable = (free - least.bytes()).saturating_mul(factor.into());
    if promised.saturating_add(disk.bytes()) > bearable {
        return full(format!(
            "no room for a disk of {disk}: {}M are free on this host, of which {least} must stay free, and its \
             sandboxes may still fill {}M; it promises at most {factor} times what is free (disk_overcommit)",
            free >> 20,
            promised >> 20
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn what_living_sandboxes_may_still_fill_counts() {
        let strict = HostConfig {
            min_free_disk: ByteSize::mebibytes(1024),
            disk_overcommit: NonZeroU32::MIN,
            ..HostConfig::default()
        };
        let (free, disk) = (10 << 30, ByteSize::mebibytes(4096));
        room(&strict, free, 5 << 30, disk).unwrap();
        let denial = room(&strict, free, (5 << 30) + 1, disk).unwrap_err();
        assert_eq!(denial.code, DenialCode::DiskFull);
        assert!(denial.retry_after.is_some() && denial.message.contains("disk_overcommit"));
        let denial = room(&strict, 1, 0, disk).unwrap_err();
        assert_eq!(denial.code, DenialCode::DiskFull);
    }

    #[test]
    fn by_default_five_disks_of_8g_fit_where_12g_are_free_and_not_where_less_are() {
        let config = HostConfig::default();
        let disk = ByteSize::mebibytes(8 << 10);
        room(&config, 12 << 30, 4 * disk.bytes(), disk).unwrap();
        assert!(room(&config, 11 << 30, 4 * disk.bytes(), disk).is_err());
        // No sum of sizes wraps around.
        assert!(room(&config, 12 << 30, u64::MAX, disk).is_err());
    }
}
