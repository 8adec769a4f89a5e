//! The highest fence seen for each sandbox id. It outlives the sandbox: else an executor that lost its
//! lease could make again, with an older fence, what a newer one has destroyed.

use super::files::private_file;
use lazaret_domain::Fence;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long the fence of a sandbox that is no more is remembered. No request lives that long.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// Remembers a fence if it is higher than those before, and gives the highest of them.
///
/// # Errors
/// If the file cannot be read or written, or holds no fence.
pub(super) fn raise(path: &Path, fence: Fence) -> io::Result<Fence> {
    let mut file = open_locked(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let newest = match text.trim() {
        "" => Fence(0),
        text => Fence(
            text.parse()
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a fence"))?,
        ),
    };
    if fence > newest {
        file.rewind()?;
        // Numbers only grow, so the new text is never shorter than the old one.
        file.write_all(fence.0.to_string().as_bytes())?;
    }
    // Counted from the last use, see [`prune`].
    file.set_modified(SystemTime::now())?;
    Ok(newest)
}

/// Locked over read and write: sessions and the shim all come through here.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = private_file(path)?;
        file.lock()?;
        // It may have been removed while we waited for it.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes a fence that was not used for a day. The sandbox must not be there.
///
/// # Errors
/// If the file cannot be looked at or removed.
pub(super) fn prune(path: &Path, now: SystemTime) -> io::Result<()> {
    let file = File::open(path)?;
    file.lock()?;
    let used = file.metadata()?.modified()?;
    if now.duration_since(used).is_ok_and(|age| age > REMEMBERED) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_forgotten_a_day_after_its_last_use_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert_eq!(raise(&path, Fence(7)).unwrap(), Fence(0));
        File::open(&path)
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(raise(&path, Fence(5)).unwrap(), Fence(7));
        let now = SystemTime::now();
        prune(&path, now).unwrap();
        assert_eq!(raise(&path, Fence(5)).unwrap(), Fence(7));
        prune(&path, now + REMEMBERED + Duration::from_secs(60)).unwrap();
        assert_eq!(raise(&path, Fence(5)).unwrap(), Fence(0));
    }
}
