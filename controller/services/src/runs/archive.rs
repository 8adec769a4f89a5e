//! One file as a tar stream, which is how files go into a sandbox and come out of it.

use bytes::Bytes;
use lazaret_domain::{Denial, DenialCode, UploadName};
use std::io::Read;

/// The longest entry that only describes another: paths have at most 4096 bytes.
const DESCRIPTION_CAP: u64 = 16 * 1024;

/// What the first real entry of a tar stream is, as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Its header has not come.
    Unknown,
    /// A regular file.
    File {
        /// Its size in bytes.
        size: u64,
    },
    /// Something else, or nothing.
    NoFile,
}

/// Looks at the first real entry of a tar stream. Entries before it that only describe it (a long
/// name, extended headers) are passed over.
pub(super) fn first_entry(tar: &[u8]) -> First {
    let mut rest = tar;
    while let Some(header) = rest.first_chunk::<512>() {
        let header = tar::Header::from_byte_slice(header);
        let kind = header.entry_type();
        let Ok(size) = header.entry_size() else {
            return First::NoFile;
        };
        if kind.is_file() {
            return First::File { size };
        }
        let describes = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if !describes || size > DESCRIPTION_CAP {
            return First::NoFile;
        }
        let whole = 512 + usize::try_from(size.next_multiple_of(512)).unwrap_or(usize::MAX);
        rest = rest.get(whole..).unwrap_or_default();
    }
    First::Unknown
}

/// The bytes of the first entry of a tar stream, if that is a regular file and whole.
pub(super) fn first_file(tar: &[u8]) -> Option<Bytes> {
    let mut archive = tar::Archive::new(tar);
    let mut entry = archive.entries().ok()?.next()?.ok()?;
    if !entry.header().entry_type().is_file() {
        return None;
    }
    let size = usize::try_from(entry.size()).ok()?;
    let mut bytes = Vec::with_capacity(size.min(tar.len()));
    entry.read_to_end(&mut bytes).ok()?;
    (bytes.len() == size).then(|| bytes.into())
}

/// A tar stream with one file, in three parts so that the file itself is not copied.
pub(super) fn tar_of(
    name: &UploadName,
    bytes: &Bytes,
    modified: i64,
) -> Result<[Bytes; 3], Denial> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(u64::try_from(modified).unwrap_or(0));
    header.set_entry_type(tar::EntryType::Regular);
    // A name that does not fit into a header gets an entry of its own before it.
    let mut head = tar::Builder::new(Vec::new());
    head.append_data(&mut header, name.as_str(), std::io::empty())
        .map_err(|error| {
            Denial::new(
                DenialCode::InvalidName,
                format!("the upload's name: {error}"),
            )
        })?;
    let head = head.get_ref().clone();
    let padding = bytes.len().next_multiple_of(512) - bytes.len() + 1024;
    Ok([head.into(), bytes.clone(), vec![0; padding].into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for size in [0, 1, 511, 512, 513, 5000] {
            let bytes = Bytes::from(vec![7; size]);
            let parts = tar_of(&"a.txt".parse().unwrap(), &bytes, 1).unwrap();
            let tar = parts.concat();
            assert_eq!(tar.len() % 512, 0);
            assert_eq!(first_file(&tar).unwrap(), bytes);
        }
    }

    #[test]
    fn a_long_name_and_extended_headers_come_before_the_entry_that_counts() {
        let bytes = Bytes::from(vec![7; 700]);
        let uploaded = tar_of(&"u".repeat(120).parse().unwrap(), &bytes, 1).unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        builder
            .append_pax_extensions([("comment", b"x".as_slice())])
            .unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(700);
        builder
            .append_data(&mut header, "n".repeat(150), &*bytes)
            .unwrap();
        for tar in [uploaded.concat(), builder.into_inner().unwrap()] {
            assert!(
                !tar::Header::from_byte_slice(tar.first_chunk::<512>().unwrap())
                    .entry_type()
                    .is_file()
            );
            assert_eq!(first_entry(&tar[..600]), First::Unknown);
            assert_eq!(first_entry(&tar), First::File { size: 700 });
            assert_eq!(first_file(&tar).unwrap(), bytes);
        }
        let mut endless = tar::Header::new_gnu();
        endless.set_entry_type(tar::EntryType::GNULongName);
        endless.set_size(u64::MAX >> 1);
        assert_eq!(first_entry(endless.as_bytes()), First::NoFile);
    }

    #[test]
    fn a_tar_that_is_cut_off_or_no_file_gives_nothing() {
        let parts = tar_of(&"a.txt".parse().unwrap(), &Bytes::from(vec![7; 5000]), 1).unwrap();
        assert_eq!(first_file(&parts.concat()[..3000]), None);
        assert_eq!(first_file(&[]), None);
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_cksum();
        assert_eq!(
            first_file(&[header.as_bytes().as_slice(), &[0; 1024]].concat()),
            None
        );
    }
}
