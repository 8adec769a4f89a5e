//! The entries of a directory.

use super::denial;
use super::root::{Root, look};
use lazaret_api::guest::{FileEntry, FileKind, Listing};
use lazaret_domain::{Denial, GuestPath};
use rustix::fs::{Dir, FileType, Stat};

/// How many entries are listed.
const MAX_ENTRIES: usize = 10_000;

pub(super) fn list(root: &Root, path: &GuestPath) -> Result<Listing, Denial> {
    let dir = root.directory(path)?;
    let mut listing = Listing {
        entries: Vec::new(),
        truncated: false,
    };
    for entry in Dir::read_from(&dir).map_err(denial)? {
        let entry = entry.map_err(denial)?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if listing.entries.len() == MAX_ENTRIES {
            listing.truncated = true;
            break;
        }
        // One that went away since is not an entry any more.
        if let Ok(stat) = look(&dir, name) {
            listing
                .entries
                .push(describe(name.to_string_lossy().into_owned(), &stat));
        }
    }
    listing.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(listing)
}

fn describe(name: String, stat: &Stat) -> FileEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    FileEntry {
        name,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified: stat.st_mtime,
    }
}
