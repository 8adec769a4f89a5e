//! Files of ours: readable by nobody else, replaced at once or not at all.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file of ours that only we may read, made if it is missing, opened for reading and writing.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// A directory of ours that only we may enter, made if it is missing.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces a file at once: readers see the old bytes or the new ones. Only we may read it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_as(path, bytes, 0o600, None)
}

/// As [`replace`], with a mode and, if it is given, an owner: uid and gid. Both are set before the
/// file has its name, and on the file itself, so that nothing put in its way gets them.
///
/// # Errors
/// If it cannot be written or handed over; the old one is then still there.
pub(crate) fn replace_as(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{turn}", std::process::id()));
    let fresh = PathBuf::from(name);
    // An earlier process of our number may have died here.
    let _ = std::fs::remove_file(&fresh);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            if let Some((uid, gid)) = owner {
                fchown(&file, Some(uid), Some(gid))?;
            }
            std::fs::rename(&fresh, path)
        });
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.y");
        replace(&path, b"one").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let us = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        replace_as(&path, b"two", 0o644, Some((us, group))).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        assert!(replace(&dir.path().join("missing/x"), b"").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn writers_of_one_process_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::thread::scope(|scope| {
            for text in [[b'a'; 4096], [b'b'; 4096]] {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        replace(path, &text).unwrap();
                    }
                });
            }
        });
        let last = std::fs::read(&path).unwrap();
        assert!(last == [b'a'; 4096] || last == [b'b'; 4096]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
