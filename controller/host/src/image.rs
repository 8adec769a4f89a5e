//! Guest images on this host: found by digest, verified once per boot of the host.
//!
//! Hashing a root file system takes seconds, so the result is kept, bound to the host's boot and
//! to size, inode and change time of every file; whoever can forge the change time owns the host.

use crate::process::boot_id;
use crate::state::{State, internal, replace};
use lazaret_domain::{Denial, DenialCode};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files that a guest is booted from.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub root: PathBuf,
}

/// What was verified, and when it has to be verified again.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    boot_id: String,
    /// Device, inode, size and change time of each file.
    files: Vec<(u64, u64, u64, i64, i64)>,
}

const FILES: [&str; 4] = ["manifest.json", "vmlinuz", "initrd", "rootfs.erofs"];

impl Seen {
    fn now(dir: &Path) -> io::Result<Self> {
        let look = |name: &str| {
            let meta = std::fs::metadata(dir.join(name))?;
            Ok((
                meta.dev(),
                meta.ino(),
                meta.size(),
                meta.ctime(),
                meta.ctime_nsec(),
            ))
        };
        Ok(Self {
            boot_id: boot_id()?,
            files: FILES
                .iter()
                .map(|name| look(name))
                .collect::<io::Result<_>>()?,
        })
    }
}

/// The image of that digest, present and unaltered. Blocks the thread while it is hashed.
///
/// # Errors
/// `image_missing` or `image_altered`.
pub(crate) fn verified(state: &State, digest: &str) -> Result<Image, Denial> {
    if !is_digest(digest) {
        return Err(Denial::new(
            DenialCode::ImageMissing,
            "an image is named by its digest: 64 hexadecimal digits",
        ));
    }
    let dir = state.images().join(digest);
    let missing = |_| {
        Denial::new(
            DenialCode::ImageMissing,
            format!("this host has no complete image {digest}"),
        )
    };
    let now = Seen::now(&dir).map_err(missing)?;
    let note = state.disks().join(format!("verified-{digest}.json"));
    let known = std::fs::read(&note)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Seen>(&bytes).ok());
    if known.as_ref() != Some(&now) {
        lazaret_image::verify(&dir).map_err(|error| error.denial())?;
        let bytes =
            serde_json::to_vec(&now).map_err(|error| internal("note a verified image", &error))?;
        if let Err(error) = replace(&note, &bytes) {
            tracing::warn!(%error, "a verified image could not be noted and will be verified again");
        }
    }
    Ok(Image {
        kernel: dir.join("vmlinuz"),
        initrd: dir.join("initrd"),
        root: dir.join("rootfs.erofs"),
    })
}

/// The digest of the newest image here.
///
/// # Errors
/// `image_missing` if there is none.
pub(crate) fn newest(state: &State) -> Result<String, Denial> {
    let images = state.images();
    let newest = lazaret_image::list(&images)
        .map_err(|error| error.denial())?
        .into_iter()
        .next();
    newest.map(|manifest| manifest.digest).ok_or_else(|| {
        Denial::new(
            DenialCode::ImageMissing,
            format!("no guest image in {}", images.display()),
        )
    })
}

fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
