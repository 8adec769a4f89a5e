//! Where templates lie, and whether one is still what it was when it was made.
//!
//! ```text
//! STATE/templates/lock               held while one is made or removed
//!                 .<key>/            being made
//!                 <key>.failed       touched when making it failed
//!                 <key>/memory       the guest's memory; never written again
//!                       state        the state of its devices
//!                       disk.qcow2   its disk, copied for each fork; it lies over STATE/disks
//!                       note.json    key, digests, and what the files looked like
//!                       used         touched by each fork
//! ```
//!
//! Hashing the memory takes longer than a fork may, so it is hashed when the template was made and
//! whenever a file looks different since (size, inode, change time); whoever can forge the change
//! time owns the host.

use super::Key;
use crate::state::{State, internal, private_file, replace};
use crate::vmm::{self, Cage};
use lazaret_domain::{Denial, DenialCode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files of a template.
const FILES: [&str; 3] = ["memory", "state", "disk.qcow2"];
/// The cgroup of one that is being made.
pub(super) const CAGE: &str = "template";
/// The note about them.
const NOTE: &str = "note.json";
/// The file whose time of change says when the last fork was made.
const USED: &str = "used";
/// A template that no fork was made of for so long is removed.
const IDLE: Duration = Duration::from_secs(7 * 24 * 3600);

/// So many templates are kept on a host; the one used longest ago makes room.
const MOST: usize = 8;
/// A failure is remembered for so long.
const FORGIVEN: Duration = Duration::from_secs(600);

/// A template that is as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    dir: PathBuf,
    note: Vec<u8>,
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

    /// Removes it because no fork of it came up, unless another has taken its place.
    pub(crate) fn discard(&self, state: &State) {
        let Some(_lock) = lock_now(state) else {
            return;
        };
        if std::fs::read(self.dir.join(NOTE)).is_ok_and(|note| note == self.note) {
            tracing::warn!(template = %self.dir.display(), "no fork of it came up: a template is removed");
            remove(&self.dir);
        }
    }
}

/// The right to make and remove templates. Whoever only uses one needs none.
pub(super) struct TemplatesLock(#[allow(dead_code, reason = "held, not read")] File);

/// Waits for that right. Blocks the thread.
pub(super) fn lock(state: &State) -> io::Result<TemplatesLock> {
    let file = private_file(&state.templates().join("lock"))?;
    file.lock()?;
    Ok(TemplatesLock(file))
}

/// That right, if nobody has it.
fn lock_now(state: &State) -> Option<TemplatesLock> {
    let file = private_file(&state.templates().join("lock")).ok()?;
    file.try_lock().ok().map(|()| TemplatesLock(file))
}

/// What a file looked like: device, inode, size and change time.
type Look = (u64, u64, u64, i64, i64);

#[derive(Serialize, Deserialize)]
struct Note {
    key: Key,
    digests: Vec<String>,
    looks: Vec<Look>,
    /// What the file system under its disk looked like. It is never written, and never made twice.
    base: Look,
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

fn base(state: &State, key: &Key) -> io::Result<Look> {
    look(&vmm::base_of(&state.disks(), key.disk))
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

/// Why a template is not used.
enum Unfit {
    /// It is not what it was.
    Broken(String),
    /// That cannot be told now.
    Unknown(io::Error),
}

impl Unfit {
    fn of(what: &str, error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound {
            Self::Broken(format!("{what} is missing"))
        } else {
            Self::Unknown(error)
        }
    }
}

/// The template of that key, if there is one and it is whole; one that is not is removed. Blocks the
/// thread, for seconds where a file looks different than it did.
pub(crate) fn find(state: &State, key: &Key) -> Option<Template> {
    let dir = state.templates().join(key.name());
    let note = std::fs::read(dir.join(NOTE)).ok()?;
    if is_as_noted(state, &dir, key, &note) {
        return Some(used(dir, note));
    }
    // Whoever makes or removes one now will have judged it when they are done.
    find_locked(state, key, &lock_now(state)?)
}

/// [`find`] for who holds the lock.
pub(super) fn find_locked(state: &State, key: &Key, _lock: &TemplatesLock) -> Option<Template> {
    let dir = state.templates().join(key.name());
    let note = std::fs::read(dir.join(NOTE)).ok()?;
    match whole(state, &dir, key, &note) {
        Ok(note) => Some(used(dir, note)),
        Err(Unfit::Unknown(error)) => {
            tracing::warn!(template = %dir.display(), %error, "a template cannot be checked");
            None
        }
        Err(Unfit::Broken(why)) => {
            tracing::warn!(template = %dir.display(), %why, "a template is not what it was and is removed");
            remove(&dir);
            None
        }
    }
}

fn used(dir: PathBuf, note: Vec<u8>) -> Template {
    if let Err(error) = replace(&dir.join(USED), b"") {
        tracing::debug!(%error, "the use of a template could not be noted");
    }
    Template { dir, note }
}

/// Whether all is as it was noted, at a glance.
fn is_as_noted(state: &State, dir: &Path, key: &Key, note: &[u8]) -> bool {
    serde_json::from_slice::<Note>(note).is_ok_and(|note| {
        note.key == *key
            && looks(dir).is_ok_and(|looks| looks == note.looks)
            && base(state, key).is_ok_and(|base| base == note.base)
    })
}

/// Whether all is as it was made, by hashing what looks different. Gives the note that holds now.
fn whole(state: &State, dir: &Path, key: &Key, bytes: &[u8]) -> Result<Vec<u8>, Unfit> {
    let note: Note = serde_json::from_slice(bytes)
        .map_err(|error| Unfit::Broken(format!("its note is not in order: {error}")))?;
    if note.key != *key {
        return Err(Unfit::Broken("it was made for another machine".to_owned()));
    }
    let base = base(state, key).map_err(|error| Unfit::of("what its disk lies over", error))?;
    if base != note.base {
        let why = "what its disk lies over is another file";
        return Err(Unfit::Broken(why.to_owned()));
    }
    let now = looks(dir).map_err(|error| Unfit::of("a file", error))?;
    if now == note.looks {
        return Ok(bytes.to_vec());
    }
    let same = digests(dir).map_err(|error| Unfit::of("a file", error))?;
    if same != note.digests {
        return Err(Unfit::Broken("a file was altered".to_owned()));
    }
    write(dir, &Note { looks: now, ..note }).map_err(Unfit::Unknown)
}

fn write(dir: &Path, note: &Note) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(note)?;
    replace(&dir.join(NOTE), &bytes)?;
    Ok(bytes)
}

/// Where a template is made.
pub(super) fn making(state: &State, key: &Key) -> PathBuf {
    state.templates().join(format!(".{}", key.name()))
}

/// Puts a template that was made in [`making`] in its place. Blocks the thread while it is hashed.
pub(super) fn publish(state: &State, key: &Key, _lock: &TemplatesLock) -> Result<Template, Denial> {
    let fault = |error: io::Error| internal("keep a template", &error);
    let making = making(state, key);
    for name in FILES {
        File::open(making.join(name))
            .and_then(|file| file.sync_all())
            .map_err(fault)?;
    }
    let note = Note {
        key: key.clone(),
        digests: digests(&making).map_err(fault)?,
        looks: looks(&making).map_err(fault)?,
        base: base(state, key).map_err(fault)?,
    };
    let note = write(&making, &note).map_err(fault)?;
    let dir = state.templates().join(key.name());
    if dir.exists() {
        remove(&dir);
    }
    // A rename changes no file in it, so the looks stay true.
    std::fs::rename(making, &dir).map_err(fault)?;
    Ok(used(dir, note))
}

/// Remembers whether the last try to make it failed.
pub(super) fn remember(state: &State, key: &Key, failed: bool) {
    let file = state.templates().join(format!("{}.failed", key.name()));
    let done = if failed {
        replace(&file, b"")
    } else {
        std::fs::remove_file(&file)
    };
    if let Err(error) = done
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(%error, "whether a template could be made could not be noted");
    }
}

/// Whether making it failed so lately that it is not tried again.
pub(super) fn failed_lately(state: &State, key: &Key) -> bool {
    age(&state.templates().join(format!("{}.failed", key.name()))).is_some_and(|age| age < FORGIVEN)
}

fn age(path: &Path) -> Option<Duration> {
    path.metadata().ok()?.modified().ok()?.elapsed().ok()
}

/// Refuses where there is no disk for one more, after those used longest ago made room in number.
pub(super) fn make_room(state: &State, key: &Key, _lock: &TemplatesLock) -> Result<(), Denial> {
    let mut kept: Vec<_> = complete(state)
        .map(|dir| (age(&dir.join(USED)).unwrap_or(Duration::MAX), dir))
        .collect();
    kept.sort();
    for (_, dir) in kept.iter().skip(MOST - 1) {
        tracing::info!(template = %dir.display(), "a template makes room for another");
        remove(dir);
    }
    let free = state
        .disk_free()
        .map_err(|error| internal("see how much disk is free", &error))?;
    let least = state.config().min_free_disk.bytes() + key.memory.bytes();
    if free < least {
        let text = format!(
            "only {}M of disk are free on this host; a template of that size needs {}M",
            free >> 20,
            least >> 20
        );
        return Err(Denial::new(DenialCode::DiskFull, text).retry_after(60));
    }
    Ok(())
}

/// The directories of templates, whole or not.
fn complete(state: &State) -> impl Iterator<Item = PathBuf> {
    entries(state).filter(|path| path.is_dir() && !is_hidden(path))
}

fn entries(state: &State) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(state.templates());
    entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Removes a template in one step. Forks that run keep what they have mapped.
fn remove(dir: &Path) {
    let mut name = std::ffi::OsString::from(".old-");
    name.push(dir.file_name().unwrap_or_default());
    let aside = dir.with_file_name(name);
    let _ = std::fs::remove_dir_all(&aside);
    let removed = std::fs::rename(dir, &aside).and_then(|()| std::fs::remove_dir_all(&aside));
    if let Err(error) = removed {
        tracing::warn!(template = %dir.display(), %error, "a template could not be removed");
    }
}

/// Removes templates that nothing can use any more or nobody used for long, and what a crash left
/// half made. Does nothing while one is being made.
pub(crate) fn collect(state: &State) {
    if let Some(lock) = lock_now(state) {
        collect_locked(state, &lock);
    }
}

/// Removes the cgroup of a template that was being made by a session that was killed.
pub(crate) async fn collect_cage(state: &State) {
    if let Some(_lock) = lock_now(state) {
        Cage::left_by(&state.config().cgroup, CAGE).open().await;
    }
}

/// [`collect`] for who holds the lock.
pub(super) fn collect_locked(state: &State, _lock: &TemplatesLock) {
    for path in entries(state) {
        if is_hidden(&path) {
            let _ = std::fs::remove_dir_all(&path);
        } else if path.is_dir() {
            if !is_worth_keeping(state, &path) {
                tracing::info!(template = %path.display(), "a template of no more use is removed");
                remove(&path);
            }
        } else if path.extension().is_some_and(|ending| ending == "failed")
            && age(&path).is_none_or(|age| age > FORGIVEN)
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn is_worth_keeping(state: &State, dir: &Path) -> bool {
    let note = std::fs::read(dir.join(NOTE)).ok();
    let note = note.and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
    let idle = age(&dir.join(USED)).unwrap_or(Duration::MAX);
    note.is_some_and(|note| {
        state.config().templates
            && idle < IDLE
            && !note.key.is_of_the_past()
            && state.images().join(&note.key.image).is_dir()
    })
}

#[cfg(test)]
mod tests;
