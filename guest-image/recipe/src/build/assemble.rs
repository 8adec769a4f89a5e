//! Puts the files of an image into a directory of their own, describes them, and lets the whole
//! appear under its digest by one rename.

use super::{Entry, Options, kernel, root};
use crate::error::At;
use crate::manifest::{self, FileRecord, INITRD, KERNEL, Manifest, Package, ROOT};
use crate::recipe::{LOCK, Layer};
use crate::{ImageError, digest, verify};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The results of the steps before.
pub(super) struct Parts<'a> {
    pub(super) kernel: &'a Entry,
    pub(super) root: &'a Entry,
    pub(super) initrd: &'a Entry,
    pub(super) layers: &'a BTreeMap<String, Layer>,
}

pub(super) fn assemble(
    options: &Options,
    parts: &Parts<'_>,
) -> Result<(Manifest, Entry), ImageError> {
    let images = &options.images;
    fs::create_dir_all(images).at("making", images)?;
    let mut manifest = describe(parts)?;
    if options.locked {
        let drift = manifest::drift(LOCK, &manifest.packages);
        if !drift.is_empty() {
            return Err(ImageError::Drift(drift));
        }
    }
    let dir = images.join(&manifest.digest);
    if let Ok(there) = verify(&dir) {
        return Ok((there, Entry { dir, cached: true }));
    }
    let partial = tempfile::Builder::new()
        .prefix(".partial-")
        .tempdir_in(images)
        .at("making a directory in", images)?;
    for (from, name) in sources(parts) {
        let to = partial.path().join(name);
        fs::copy(from.join(name), &to).at("writing", &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o644))
            .at("setting the mode of", &to)?;
    }
    manifest.created = jiff::Timestamp::now()
        .round(jiff::Unit::Second)
        .unwrap_or_default()
        .to_string();
    let path = partial.path().join(manifest::FILE);
    let text = serde_json::to_vec_pretty(&manifest).at("writing", &path)?;
    fs::write(&path, text).at("writing", &path)?;
    fs::set_permissions(partial.path(), fs::Permissions::from_mode(0o755))
        .at("opening", partial.path())?;
    // What is there does not match its manifest, or there is nothing.
    if dir.exists() {
        fs::remove_dir_all(&dir).at("removing", &dir)?;
    }
    let partial = partial.keep();
    fs::rename(&partial, &dir).at("moving the image to", &dir)?;
    Ok((manifest, Entry { dir, cached: false }))
}

fn sources<'a>(parts: &'a Parts<'_>) -> [(&'a Path, &'static str); 3] {
    [
        (&parts.kernel.dir, KERNEL),
        (&parts.initrd.dir, INITRD),
        (&parts.root.dir, ROOT),
    ]
}

fn describe(parts: &Parts<'_>) -> Result<Manifest, ImageError> {
    let read = |path: &Path| fs::read_to_string(path).at("reading", path);
    let mut files = Vec::new();
    for (from, name) in sources(parts) {
        let (sha256, size) = digest::of_file(&from.join(name))?;
        files.push(FileRecord {
            name: name.to_owned(),
            sha256,
            size,
        });
    }
    let release = read(&parts.kernel.dir.join(kernel::RELEASE))?;
    let mut packages: Vec<Package> = read(&parts.root.dir.join(root::PACKAGES))?
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| Package {
            name: name.to_owned(),
            version: version.to_owned(),
        })
        .collect();
    packages.push(Package {
        name: format!("linux-image-{release}"),
        version: read(&parts.kernel.dir.join(kernel::VERSION))?,
    });
    packages.sort();
    let layers = parts
        .layers
        .iter()
        .map(|(name, layer)| format!("{name} {}@{}", layer.npm, layer.version))
        .collect();
    let mut manifest = Manifest {
        format: manifest::FORMAT,
        digest: String::new(),
        kernel: release,
        files,
        packages,
        layers,
        created: String::new(),
    };
    manifest.digest = manifest.content_digest();
    Ok(manifest)
}
