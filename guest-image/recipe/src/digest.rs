//! SHA-256 of texts and files, in hexadecimal.

use crate::ImageError;
use crate::error::At;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The digest of some parts; each is counted in with its length, so that no two lists of parts
/// are alike by accident.
pub(crate) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// The digest and size of a file.
pub(crate) fn of_file(path: &Path) -> Result<(String, u64), ImageError> {
    let mut file = File::open(path).at("opening", path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0_u8; 1 << 20];
    let mut size = 0;
    loop {
        match file.read(&mut buffer).at("reading", path)? {
            0 => return Ok((hex(&hasher.finalize()), size)),
            count => {
                hasher.update(&buffer[..count]);
                size += count as u64;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
