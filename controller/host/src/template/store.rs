//! Where templates lie, and whether one is still what it was when it was made.
//!
//! ```text
//! STATE/templates/<key>.lock         held by the one who makes it
//!                 .<key>/            being made
//!                 <key>/memory       the guest's memory; never written again
//!                       state        the state of its devices
//!                       disk.qcow2   its disk, copied for each fork
//!                       note.json    key, digests, and what the files looked like
//!                       used         touched by each fork
//! ```
//!
//! Hashing the memory takes longer than a fork may, so it is hashed when the template was made and
//! whenever a file looks different since (size, inode, change time); whoever can forge the change
//! time owns the host.

use super::Key;
use crate::state::{State, internal, replace};
use lazaret_domain::Denial;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files of a template.
const FILES: [&str; 3] = ["memory", "state", "disk.qcow2"];
/// The note about them.
const NOTE: &str = "note.json";
/// The file whose time of change says when the last fork was made.
const USED: &str = "used";
/// A template that no fork was made of for so long is removed.
const IDLE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A template that is as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    dir: PathBuf,
}

impl Template {
    /// The guest's memory.
    pub(crate) fn memory(&self) -> PathBuf {
        self.dir.join(FILES[0])
    }

    /// The state of its devices.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join(FILES[1])
    }

    /// Its disk.
    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join(FILES[2])
    }

    /// Remembers that a fork was made.
    pub(crate) fn touch(&self) {
        if let Err(error) = replace(&self.dir.join(USED), b"") {
            tracing::debug!(%error, "the use of a template could not be noted");
        }
    }
}

/// What a file looked like: device, inode, size and change time.
type Look = (u64, u64, u64, i64, i64);

#[derive(Serialize, Deserialize)]
struct Note {
    key: Key,
    digests: Vec<String>,
    looks: Vec<Look>,
}

fn look(path: &Path) -> io::Result<Look> {
    let meta = std::fs::metadata(path)?;
    Ok((
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.ctime(),
        meta.ctime_nsec(),
    ))
}

fn looks(dir: &Path) -> io::Result<Vec<Look>> {
    FILES.iter().map(|name| look(&dir.join(name))).collect()
}

fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut hasher) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0_u8; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            count => hasher.update(&piece[..count]),
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn digests(dir: &Path) -> io::Result<Vec<String>> {
    FILES.iter().map(|name| digest(&dir.join(name))).collect()
}

/// The template of that key, if there is one and it is whole. One that is not is removed. Blocks the
/// thread, for seconds where a file looks different than it did.
pub(crate) fn find(state: &State, key: &Key) -> Option<Template> {
    let dir = state.templates().join(key.name());
    let bytes = std::fs::read(dir.join(NOTE)).ok()?;
    match whole(&dir, key, &bytes) {
        Ok(()) => Some(Template { dir }),
        Err(why) => {
            tracing::warn!(template = %dir.display(), %why, "a template is not what it was and is removed");
            remove(&dir);
            None
        }
    }
}

fn whole(dir: &Path, key: &Key, note: &[u8]) -> Result<(), String> {
    let note: Note = serde_json::from_slice(note)
        .map_err(|error| format!("its note is not in order: {error}"))?;
    if note.key != *key {
        return Err("it was made for another machine".to_owned());
    }
    let now = looks(dir).map_err(|error| format!("a file is missing: {error}"))?;
    if now == note.looks {
        return Ok(());
    }
    let same = digests(dir).map_err(|error| format!("a file cannot be read: {error}"))?;
    if same != note.digests {
        return Err("a file was altered".to_owned());
    }
    let note = Note { looks: now, ..note };
    write(dir, &note).map_err(|error| format!("it could not be noted: {error}"))
}

fn write(dir: &Path, note: &Note) -> io::Result<()> {
    replace(&dir.join(NOTE), &serde_json::to_vec(note)?)
}

/// Puts a template that was made in `making` in its place. Blocks the thread while it is hashed.
pub(super) fn publish(state: &State, key: &Key, making: &Path) -> Result<Template, Denial> {
    let fault = |error: io::Error| internal("keep a template", &error);
    for name in FILES {
        File::open(making.join(name))
            .and_then(|file| file.sync_all())
            .map_err(fault)?;
    }
    let note = Note {
        key: key.clone(),
        digests: digests(making).map_err(fault)?,
        looks: looks(making).map_err(fault)?,
    };
    write(making, &note).map_err(fault)?;
    let dir = state.templates().join(key.name());
    if dir.exists() {
        remove(&dir);
    }
    // A rename changes no file in it, so the looks stay true.
    std::fs::rename(making, &dir).map_err(fault)?;
    Ok(Template { dir })
}

/// Removes a template in one step. Forks that run keep what they have mapped.
fn remove(dir: &Path) {
    let mut name = std::ffi::OsString::from(".old-");
    name.push(dir.file_name().unwrap_or_default());
    let aside = dir.with_file_name(name);
    let removed = std::fs::rename(dir, &aside).and_then(|()| std::fs::remove_dir_all(&aside));
    if let Err(error) = removed {
        tracing::warn!(template = %dir.display(), %error, "a template could not be removed");
    }
}

/// Removes templates that nothing can use any more or nobody used for long, and what a crash left
/// half made.
pub(crate) fn collect(state: &State) {
    let Ok(entries) = std::fs::read_dir(state.templates()) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(key) = name.strip_prefix('.') {
            // One that is being made is locked by its maker.
            let key = key.trim_start_matches("old-");
            if super::build::lock_now(state, key).is_some() {
                let _ = std::fs::remove_dir_all(&path);
            }
        } else if path.is_dir() && !is_worth_keeping(state, &path) {
            tracing::info!(template = %path.display(), "a template of no more use is removed");
            remove(&path);
        }
    }
}

fn is_worth_keeping(state: &State, dir: &Path) -> bool {
    let note: Option<Note> = std::fs::read(dir.join(NOTE))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(note) = note else {
        return false;
    };
    let used = [USED, NOTE]
        .iter()
        .filter_map(|name| dir.join(name).metadata().ok()?.modified().ok())
        .max();
    let idle = used.and_then(|at| at.elapsed().ok()).unwrap_or_default();
    idle < IDLE && !note.key.is_of_the_past() && state.images().join(&note.key.image).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::image::Image;
    use crate::vmm::{Machine, Origin};
    use lazaret_api::host::Accel;
    use lazaret_domain::{ByteSize, Cpus};

    struct Place {
        dir: tempfile::TempDir,
        state: State,
        key: Key,
    }

    /// A state directory with one template, whose QEMU is a file of the test.
    fn place() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let qemu = dir.path().join("qemu");
        std::fs::write(&qemu, "qemu").unwrap();
        let config = HostConfig {
            qemu,
            ..HostConfig::default()
        };
        let state = State::open(dir.path().join("s"), config).unwrap();
        std::fs::create_dir_all(state.images().join("i")).unwrap();
        let key = key(&state, 512);
        make(&state, &key);
        Place { dir, state, key }
    }

    fn key(state: &State, memory: u64) -> Key {
        let machine = Machine {
            qemu: state.config().qemu.clone(),
            image: Image {
                kernel: "k".into(),
                initrd: "i".into(),
                root: "r".into(),
            },
            accel: Accel::Tcg,
            memory: ByteSize::mebibytes(memory),
            cpus: Cpus::ONE,
            disk: None,
            probe: false,
            kernel_args: String::new(),
            origin: Origin::Boot,
        };
        Key::of(state, "i", &machine, ByteSize::mebibytes(1024)).unwrap()
    }

    fn make(state: &State, key: &Key) {
        let making = state.templates().join(format!(".{}", key.name()));
        std::fs::create_dir_all(&making).unwrap();
        for name in FILES {
            std::fs::write(making.join(name), format!("the {name}")).unwrap();
        }
        publish(state, key, &making).unwrap();
    }

    #[test]
    fn a_template_is_found_by_its_key_alone() {
        let Place {
            state,
            key: made,
            dir: _dir,
        } = place();
        assert!(find(&state, &made).is_some());
        assert!(find(&state, &key(&state, 513)).is_none());
    }

    #[test]
    fn a_template_that_was_altered_by_one_byte_or_cut_is_removed_and_not_used() {
        for (file, content) in [
            ("memory", "The memory"),
            ("memory", "the memor"),
            ("state", "the statf"),
            ("disk.qcow2", ""),
            ("note.json", "{}"),
        ] {
            let Place {
                state,
                key,
                dir: _dir,
            } = place();
            let dir = state.templates().join(key.name());
            std::fs::write(dir.join(file), content).unwrap();
            assert!(find(&state, &key).is_none(), "{file}: {content}");
            assert!(!dir.exists(), "{file}: {content}");
        }
        let Place {
            state,
            key,
            dir: _dir,
        } = place();
        std::fs::remove_file(find(&state, &key).unwrap().memory()).unwrap();
        assert!(find(&state, &key).is_none());
    }

    #[test]
    fn a_file_that_only_looks_different_is_hashed_and_kept() {
        let Place {
            state,
            key,
            dir: _dir,
        } = place();
        let memory = find(&state, &key).unwrap().memory();
        let copy = memory.with_extension("copy");
        std::fs::copy(&memory, &copy).unwrap();
        std::fs::rename(&copy, &memory).unwrap();
        assert!(find(&state, &key).is_some());
    }

    #[test]
    fn another_qemu_has_other_templates_and_the_old_ones_are_collected() {
        let Place {
            dir,
            state,
            key: old,
        } = place();
        std::fs::write(dir.path().join("qemu"), "another qemu").unwrap();
        assert!(find(&state, &key(&state, 512)).is_none());
        make(&state, &key(&state, 512));
        collect(&state);
        assert!(!state.templates().join(old.name()).exists());
        assert!(find(&state, &key(&state, 512)).is_some());
    }

    #[test]
    fn what_a_crash_left_is_collected_unless_it_is_being_made() {
        let Place {
            state,
            key,
            dir: _dir,
        } = place();
        let dead = state.templates().join(".0000000000000000");
        let live = state.templates().join(".1111111111111111");
        for path in [&dead, &live] {
            std::fs::create_dir_all(path.join("x")).unwrap();
        }
        let _lock = super::super::build::lock_now(&state, "1111111111111111").unwrap();
        collect(&state);
        assert!(!dead.exists() && live.exists());
        assert!(find(&state, &key).is_some());
    }

    #[test]
    fn a_template_without_its_image_is_collected() {
        let Place {
            state,
            key,
            dir: _dir,
        } = place();
        std::fs::remove_dir_all(state.images()).unwrap();
        collect(&state);
        assert!(!state.templates().join(key.name()).exists());
    }
}
