//! One process at a time: a lock on a file, held until it is dropped or the process ends.
//!
//! Two controllers on one store would drive each run twice, and two `lazaret up` in one directory
//! would end each other's sshd. The kernel lets a lock go with its process, however that ends, so a
//! file that was left behind stops nobody.

use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A pid is shorter than this.
const MAX_PID: u64 = 20;

/// A lock that is held.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on a store, in a file beside it.
    ///
    /// # Errors
    /// Where another process has it, saying which, or the file cannot be made.
    #[expect(
        clippy::disallowed_methods,
        reason = "two names of one store get one lock; nothing is trusted for having this path"
    )]
    pub fn of_store(store: &Path) -> Result<Self, Failure> {
        // Two names of one store, one of them a link, are one store.
        let store = std::fs::canonicalize(store).unwrap_or_else(|_| store.to_owned());
        let mut name: OsString = store.clone().into();
        name.push(".lock");
        let what = format!("another controller works on the store {}", store.display());
        Self::take(&PathBuf::from(name), &what)
    }

    /// Takes the lock on a directory of `lazaret up`.
    ///
    /// # Errors
    /// As [`Lock::of_store`].
    pub fn of_data(root: &Path) -> Result<Self, Failure> {
        let what = format!("another 'lazaret up' works in {}", root.display());
        Self::take(&root.join("up.lock"), &what)
    }

    fn take(path: &Path, what: &str) -> Result<Self, Failure> {
        let doing = |error| Failure::doing(format!("cannot lock {}", path.display()), error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(doing)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::Failed(format!("{what}{}", holder(&mut file))));
            }
            Err(TryLockError::Error(error)) => return Err(doing(error)),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(doing)?;
        Ok(Self { _file: file })
    }
}

/// Who has the lock, and what to do about it. Between taking a lock and writing its pid a process
/// is unknown for a moment.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    file.take(MAX_PID).read_to_string(&mut text).ok();
    match text.trim().parse::<u32>() {
        Ok(pid) => format!(" (process {pid}). Use that one, or stop it first"),
        Err(_) => ". Use that one, or stop it first".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_told_who_has_it_until_the_first_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("lazaret.db");
        std::fs::write(&store, "").unwrap();
        let first = Lock::of_store(&store).unwrap();
        let said = Lock::of_store(&store).unwrap_err().to_string();
        let pid = std::process::id().to_string();
        assert!(
            said.contains("lazaret.db") && said.contains(&format!("(process {pid})")),
            "{said}"
        );
        let link = dir.path().join("other.db");
        std::os::unix::fs::symlink(&store, &link).unwrap();
        assert!(Lock::of_store(&link).is_err());
        drop(first);
        Lock::of_store(&store).unwrap();
    }

    #[test]
    fn a_file_that_was_left_behind_stops_nobody() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("up.lock"), "1234567890\n").unwrap();
        let lock = Lock::of_data(dir.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join("up.lock")).unwrap(),
            format!("{}\n", std::process::id())
        );
        assert!(Lock::of_data(dir.path()).is_err());
        drop(lock);
    }
}
