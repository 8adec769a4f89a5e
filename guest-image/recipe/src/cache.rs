//! The results of steps, kept under a digest of everything that went into them.
//!
//! A result is a directory. It is made under another name and then renamed, so one that is there is
//! whole. One result per step is kept. A lock keeps two builds with one cache apart.

use crate::error::At;
use crate::{ImageError, digest};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A directory of results, locked for as long as this lives.
pub(crate) struct Cache {
    dir: PathBuf,
    _lock: File,
}

/// The result of a step.
pub(crate) struct Entry {
    /// Where it is.
    pub(crate) dir: PathBuf,
    /// Whether it was there already.
    pub(crate) cached: bool,
}

impl Cache {
    pub(crate) fn open(dir: &Path) -> Result<Self, ImageError> {
        fs::create_dir_all(dir).at("making", dir)?;
        let path = dir.join("lock");
        let lock = File::create(&path).at("making", &path)?;
        flock(&lock, FlockOperation::LockExclusive).at("locking", &path)?;
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    /// The result of a step with these inputs: what is there, or what `make` puts into an empty
    /// directory.
    pub(crate) fn step(
        &self,
        name: &str,
        inputs: &[&[u8]],
        fresh: bool,
        make: impl FnOnce(&Path) -> Result<(), ImageError>,
    ) -> Result<Entry, ImageError> {
        let key = digest::of_parts(inputs.iter().copied());
        let dir = self.dir.join(format!("{name}-{}", &key[..32]));
        if !fresh && dir.is_dir() {
            return Ok(Entry { dir, cached: true });
        }
        let partial = tempfile::Builder::new()
            .prefix(&format!("partial-{name}-"))
            .tempdir_in(&self.dir)
            .at("making a directory in", &self.dir)?;
        make(partial.path())?;
        self.forget(name)?;
        let partial = partial.keep();
        fs::rename(&partial, &dir).at("moving the result to", &dir)?;
        Ok(Entry { dir, cached: false })
    }

    /// Removes earlier results of a step.
    fn forget(&self, name: &str) -> Result<(), ImageError> {
        for entry in fs::read_dir(&self.dir).at("reading", &self.dir)?.flatten() {
            let file_name = entry.file_name();
            let old = file_name
                .to_str()
                .and_then(|text| text.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with('-'));
            if old {
                fs::remove_dir_all(entry.path()).at("removing", &entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_done_once_per_input() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let run = |input: &[u8], fresh| {
            cache
                .step("root", &[input], fresh, |out| {
                    fs::write(out.join("x"), input).at("writing", out)
                })
                .unwrap()
        };
        assert!(!run(b"one", false).cached);
        assert!(run(b"one", false).cached);
        assert!(!run(b"one", true).cached, "a fresh one was asked for");
        let other = run(b"two", false);
        assert!(!other.cached);
        assert_eq!(fs::read(other.dir.join("x")).unwrap(), b"two");
        assert!(!run(b"one", false).cached, "only the latest result is kept");
    }

    #[test]
    fn a_failed_step_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let failed = cache.step("root", &[b"x"], false, |out| {
            fs::write(out.join("half"), "").at("writing", out)?;
            Err(ImageError::Recipe("no".into()))
        });
        assert!(failed.is_err());
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(names, ["lock"]);
    }
}
