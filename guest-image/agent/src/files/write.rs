//! Takes a tar stream into a directory.

use super::denial;
use super::root::Root;
use bytes::{Buf, Bytes};
use lazaret_domain::{Denial, DenialCode, GuestPath};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use tar::EntryType;
use tokio::sync::mpsc;

/// The longest stream.
const MAX_BYTES: u64 = 1 << 30;
/// The most entries.
const MAX_ENTRIES: usize = 50_000;

/// Takes everything in, or says what was wrong with the first entry that could not be taken.
pub(super) fn receive(
    root: &Root,
    into: &GuestPath,
    pieces: mpsc::Receiver<io::Result<Bytes>>,
) -> Result<(), Denial> {
    root.make_directory(into)?;
    let mut archive = tar::Archive::new(Pieces {
        pieces,
        current: Bytes::new(),
        left: MAX_BYTES,
    });
    for (count, entry) in archive
        .entries()
        .map_err(|error| broken(&error))?
        .enumerate()
    {
        let mut entry = entry.map_err(|error| broken(&error))?;
        if count == MAX_ENTRIES {
            return Err(Denial::new(
                DenialCode::TooLarge,
                format!("at most {MAX_ENTRIES} files are taken at once"),
            ));
        }
        let path = beneath(into, &entry.path_bytes())?;
        match entry.header().entry_type() {
            EntryType::Directory => {
                root.make_directory(&path)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                let executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
                let size = entry.size();
                place(root, &path, executable, size, &mut entry)?;
            }
            EntryType::XGlobalHeader => {}
            _ => {
                return Err(Denial::new(
                    DenialCode::InvalidPath,
                    format!(
                        "{path} is neither a file nor a directory; links and devices are not taken"
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// The path of an entry, checked by itself before it is joined.
fn beneath(into: &GuestPath, name: &[u8]) -> Result<GuestPath, Denial> {
    let name = std::str::from_utf8(name)
        .map_err(|_| Denial::new(DenialCode::InvalidPath, "a name in the stream is not UTF-8"))?;
    let name = name.strip_prefix("./").unwrap_or(name);
    let name: GuestPath = if name == "." {
        GuestPath::default()
    } else {
        name.parse()?
    };
    match (into.is_root(), name.is_root()) {
        (true, _) => Ok(name),
        (false, true) => Ok(into.clone()),
        (false, false) => format!("{into}/{name}").parse(),
    }
}

/// Writes a file under a name of its own and then renames it: whoever looks sees the old or the
/// new, and whatever had the name (a link, say) is replaced and neither followed nor written to.
fn place(
    root: &Root,
    path: &GuestPath,
    executable: bool,
    size: u64,
    content: &mut impl Read,
) -> Result<(), Denial> {
    let Some(name) = path.file_name() else {
        return Err(Denial::new(
            DenialCode::InvalidPath,
            "a file in the stream has no name",
        ));
    };
    let parent = path
        .as_str()
        .strip_suffix(name)
        .unwrap_or_default()
        .parse::<GuestPath>()?;
    let dir = root.make_directory(&parent)?;
    let (partial, file) = create(&dir)?;
    let result = fill(root, file, executable, size, content)
        .and_then(|()| renameat(&dir, &*partial, &dir, name).map_err(denial));
    if result.is_err() {
        let _ = unlinkat(&dir, &*partial, AtFlags::empty());
    }
    result
}

/// A new file with a name that nothing has.
fn create(dir: &OwnedFd) -> Result<(String, OwnedFd), Denial> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for number in 0..1000 {
        let name = format!(".lazaret-partial-{number}");
        match openat(dir, &*name, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok((name, file)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(denial(error)),
        }
    }
    Err(Denial::new(
        DenialCode::AlreadyExists,
        "too many files are being written here",
    ))
}

fn fill(
    root: &Root,
    file: OwnedFd,
    executable: bool,
    size: u64,
    content: &mut impl Read,
) -> Result<(), Denial> {
    let mut file = File::from(file);
    let copied =
        io::copy(content, &mut file).map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => denial(errno),
            None => broken(&error),
        })?;
    // The library takes a stream that ends early for a short file.
    if copied != size {
        return Err(broken(&io::ErrorKind::UnexpectedEof.into()));
    }
    let file = OwnedFd::from(file);
    fchmod(
        &file,
        Mode::from_raw_mode(if executable { 0o755 } else { 0o644 }),
    )
    .map_err(denial)?;
    root.give(&file)
}

fn broken(error: &io::Error) -> Denial {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            Denial::new(DenialCode::TooLarge, "the stream is longer than 1 GiB")
        }
        _ => Denial::new(
            DenialCode::InvalidRequest,
            format!("the body is not a whole tar stream: {error}"),
        ),
    }
}

/// Reads from a channel.
struct Pieces {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
    left: u64,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let count = self.current.len().min(buffer.len());
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
