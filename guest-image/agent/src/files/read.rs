//! A file or a tree as a tar stream.

use super::denial;
use super::root::{Root, enter, look, open_file};
use bytes::{Bytes, BytesMut};
use lazaret_domain::{Denial, DenialCode, GuestPath};
use rustix::fs::{Dir, FileType, Stat, fstat, readlinkat};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// How much is sent at once.
const CHUNK: usize = 64 * 1024;
/// How deep a tree may be; each level holds a descriptor.
const MAX_DEPTH: usize = 128;
/// How many entries one directory may have.
const MAX_ENTRIES: usize = 100_000;

/// What is to be sent, opened and checked.
pub(super) enum Source {
    /// A regular file.
    File(String, OwnedFd),
    /// A directory.
    Tree(OwnedFd),
}

/// Opens what a path names, if it may leave.
pub(super) fn open(root: &Root, path: &GuestPath) -> Result<Source, Denial> {
    let Some((parent, name)) = root.parent(path)? else {
        return root.directory(path).map(Source::Tree);
    };
    let stat = look(&parent, name).map_err(denial)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => enter(&parent, name).map(Source::Tree).map_err(denial),
        FileType::RegularFile => {
            let file = open_file(&parent, name).map_err(denial)?;
            // What was opened counts, and not what was looked at before.
            let stat = fstat(&file).map_err(denial)?;
            if !leaves(&stat) {
                return Err(not_a_file());
            }
            Ok(Source::File(name.to_owned(), file))
        }
        _ => Err(not_a_file()),
    }
}

fn not_a_file() -> Denial {
    Denial::new(
        DenialCode::NotAFile,
        "this is not a regular file with a single name",
    )
}

/// A regular file leaves only if it has no other name, which might lie outside the workspace.
fn leaves(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1
}

/// Sends it. A peer that is gone ends it; a failure becomes an error in the stream.
pub(super) fn send(source: Source, pieces: &mpsc::Sender<io::Result<Bytes>>) {
    let mut tar = tar::Builder::new(Pieces {
        pieces,
        buffer: BytesMut::with_capacity(CHUNK),
    });
    let result = match source {
        Source::File(name, file) => append_file(&mut tar, Path::new(&name), file),
        Source::Tree(dir) => append_root(&mut tar, &dir)
            .and_then(|()| append_tree(&mut tar, Path::new(""), &dir, MAX_DEPTH)),
    };
    if let Err(error) = result.and_then(|()| tar.into_inner()?.flush()) {
        let _ = pieces.blocking_send(Err(error));
    }
}

type Tar<'a> = tar::Builder<Pieces<'a>>;

/// A tree begins with the directory itself, which tells it from a file.
fn append_root(tar: &mut Tar<'_>, dir: &OwnedFd) -> io::Result<()> {
    let stat = fstat(dir)?;
    let mut header = header(tar::EntryType::Directory, &stat, 0);
    tar.append_data(&mut header, ".", io::empty())
}

fn append_tree(tar: &mut Tar<'_>, at: &Path, dir: &OwnedFd, depth: usize) -> io::Result<()> {
    if depth == 0 {
        return Err(io::Error::other("the tree is too deep"));
    }
    for name in names(dir)? {
        let Ok(stat) = look(dir, &*name) else {
            continue;
        };
        let path = at.join(OsStr::from_bytes(name.as_bytes()));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let Ok(below) = enter(dir, &*name) else {
                    continue;
                };
                let mut header = header(tar::EntryType::Directory, &stat, 0);
                tar.append_data(&mut header, &path, io::empty())?;
                append_tree(tar, &path, &below, depth - 1)?;
            }
            FileType::Symlink => {
                let Ok(target) = readlinkat(dir, &*name, Vec::new()) else {
                    continue;
                };
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                tar.append_link(
                    &mut header(tar::EntryType::Symlink, &stat, 0),
                    &path,
                    target,
                )?;
            }
            FileType::RegularFile => {
                if let Ok(file) = open_file(dir, &*name)
                    && fstat(&file).is_ok_and(|stat| leaves(&stat))
                {
                    append_file(tar, &path, file)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The names in a directory, sorted, so that the same tree is the same stream.
fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if &*name == c"." || &*name == c".." {
            continue;
        }
        if names.len() == MAX_ENTRIES {
            return Err(io::Error::other("a directory has too many entries"));
        }
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}

fn append_file(tar: &mut Tar<'_>, path: &Path, file: OwnedFd) -> io::Result<()> {
    let stat = fstat(&file)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let mut header = header(tar::EntryType::Regular, &stat, size);
    let mut content = Exactly {
        file: File::from(file),
        left: size,
    };
    tar.append_data(&mut header, path, &mut content)
}

fn header(kind: tar::EntryType, stat: &Stat, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A file that is as long as was announced: what was added since is left out, and one that became
/// shorter breaks the stream instead of shifting everything after it.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        match self.file.read(&mut buffer[..want])? {
            0 => Err(io::Error::other("a file became shorter while it was read")),
            count => {
                self.left -= count as u64;
                Ok(count)
            }
        }
    }
}

/// Writes into a channel, in pieces.
struct Pieces<'a> {
    pieces: &'a mpsc::Sender<io::Result<Bytes>>,
    buffer: BytesMut,
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > CHUNK {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = self.buffer.split().freeze();
        self.pieces
            .blocking_send(Ok(piece))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
