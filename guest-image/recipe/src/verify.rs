//! Whether an image is what its manifest says.

use crate::error::At;
use crate::manifest::{self, FORMAT, INITRD, KERNEL, Manifest, ROOT};
use crate::recipe::Recipe;
use crate::tools::FSCK_EROFS;
use crate::{ImageError, digest, scan};
use std::fs;
use std::io;
use std::path::Path;

/// Reads the manifest of the image in a directory and checks every file against it, and the
/// directory's name against the digest.
///
/// # Errors
/// [`ImageError::Missing`] and [`ImageError::Altered`].
pub fn verify(dir: &Path) -> Result<Manifest, ImageError> {
    let manifest = read(dir)?;
    let altered = |why: String| ImageError::Altered {
        path: dir.to_owned(),
        why,
    };
    for file in &manifest.files {
        let path = dir.join(&file.name);
        if !path.is_file() {
            return Err(altered(format!("{} is missing", file.name)));
        }
        let (sha256, size) = digest::of_file(&path)?;
        if sha256 != file.sha256 || size != file.size {
            return Err(altered(format!("{} has other content", file.name)));
        }
    }
    Ok(manifest)
}

/// Reads the manifest of an image and checks it against itself, without reading the files: quick
/// enough for every start of a sandbox.
///
/// # Errors
/// [`ImageError::Missing`] and [`ImageError::Altered`].
pub fn read(dir: &Path) -> Result<Manifest, ImageError> {
    let path = dir.join(manifest::FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ImageError::Missing(dir.to_owned()));
        }
        Err(error) => return Err(error).at("reading", &path),
    };
    let altered = |why: String| ImageError::Altered {
        path: dir.to_owned(),
        why,
    };
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| altered(format!("its manifest is broken: {error}")))?;
    if manifest.format != FORMAT {
        return Err(altered(format!(
            "it has format {}, and this program reads {FORMAT}",
            manifest.format
        )));
    }
    if manifest.content_digest() != manifest.digest
        || dir.file_name().and_then(|name| name.to_str()) != Some(&manifest.digest)
    {
        return Err(altered(
            "its manifest does not have the digest it is named by".into(),
        ));
    }
    let mut names: Vec<&str> = manifest
        .files
        .iter()
        .map(|file| file.name.as_str())
        .collect();
    names.sort_unstable();
    if names != [INITRD, ROOT, KERNEL] {
        return Err(altered(
            "its manifest does not list the three files of an image".into(),
        ));
    }
    Ok(manifest)
}

/// The images in a directory, newest first. Whatever is no image is left out.
///
/// # Errors
/// The directory cannot be read. One that does not exist holds no images.
pub fn list(images: &Path) -> Result<Vec<Manifest>, ImageError> {
    let entries = match fs::read_dir(images) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).at("reading", images),
    };
    let mut found: Vec<Manifest> = entries
        .flatten()
        .filter_map(|entry| read(&entry.path()).ok())
        .collect();
    found.sort_by(|a, b| (&b.created, &b.digest).cmp(&(&a.created, &a.digest)));
    Ok(found)
}

/// Unpacks the root of an image and searches it for credentials, as the build did.
///
/// # Errors
/// [`ImageError::Credential`] with what was found, or the root cannot be unpacked.
pub fn scan_image(dir: &Path, progress: &mut dyn FnMut(&str)) -> Result<(), ImageError> {
    let scratch = tempfile::tempdir().at("making a directory in", &std::env::temp_dir())?;
    let tree = scratch.path().join("root");
    let mut command = FSCK_EROFS.command();
    command
        .arg(format!("--extract={}", tree.display()))
        .args(["--no-preserve-owner", "--no-preserve-perms"])
        .arg(dir.join(ROOT));
    FSCK_EROFS.run(command, progress)?;
    let findings = scan::tree(&tree, &Recipe::embedded()?.harmless)?;
    if findings.is_empty() {
        Ok(())
    } else {
        Err(ImageError::Credential(findings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::FileRecord;
    use lazaret_domain::DenialCode;
    use std::path::PathBuf;

    fn image(images: &Path, created: &str) -> PathBuf {
        let partial = images.join("partial");
        fs::create_dir_all(&partial).unwrap();
        let files = [KERNEL, INITRD, ROOT].map(|name| {
            let content = format!("{name} of {created}");
            fs::write(partial.join(name), &content).unwrap();
            let (sha256, size) = digest::of_file(&partial.join(name)).unwrap();
            FileRecord {
                name: name.into(),
                sha256,
                size,
            }
        });
        let mut manifest = Manifest {
            format: FORMAT,
            digest: String::new(),
            kernel: "6.1".into(),
            files: files.to_vec(),
            packages: vec![],
            layers: vec![],
            created: created.into(),
        };
        manifest.digest = manifest.content_digest();
        fs::write(
            partial.join(manifest::FILE),
            serde_json::to_vec(&manifest).unwrap(),
        )
        .unwrap();
        let dir = images.join(&manifest.digest);
        fs::rename(&partial, &dir).unwrap();
        dir
    }

    #[test]
    fn an_image_that_is_whole_verifies() {
        let images = tempfile::tempdir().unwrap();
        let dir = image(images.path(), "2026-01-01T00:00:00Z");
        assert_eq!(verify(&dir).unwrap().kernel, "6.1");
    }

    #[test]
    fn a_changed_or_missing_file_is_found_and_has_a_code() {
        let images = tempfile::tempdir().unwrap();
        for name in [KERNEL, INITRD, ROOT, manifest::FILE] {
            let dir = image(images.path(), "2026-01-01T00:00:00Z");
            fs::write(dir.join(name), "other").unwrap();
            assert_eq!(
                verify(&dir).unwrap_err().denial().code,
                DenialCode::ImageAltered,
                "{name}"
            );
            fs::remove_file(dir.join(name)).unwrap();
            let code = if name == manifest::FILE {
                DenialCode::ImageMissing
            } else {
                DenialCode::ImageAltered
            };
            assert_eq!(verify(&dir).unwrap_err().denial().code, code, "{name}");
            fs::remove_dir_all(&dir).unwrap();
        }
        assert_eq!(
            verify(&images.path().join("none"))
                .unwrap_err()
                .denial()
                .code,
            DenialCode::ImageMissing
        );
    }

    #[test]
    fn an_image_cannot_pass_for_another() {
        let images = tempfile::tempdir().unwrap();
        let dir = image(images.path(), "2026-01-01T00:00:00Z");
        let other = images.path().join("0".repeat(64));
        fs::rename(dir, &other).unwrap();
        assert!(matches!(verify(&other), Err(ImageError::Altered { .. })));
    }

    #[test]
    fn images_are_listed_newest_first_and_rubbish_is_not() {
        let images = tempfile::tempdir().unwrap();
        assert!(list(&images.path().join("none")).unwrap().is_empty());
        image(images.path(), "2026-01-01T00:00:00Z");
        image(images.path(), "2026-02-01T00:00:00Z");
        fs::create_dir(images.path().join(".partial-x")).unwrap();
        let created: Vec<String> = list(images.path())
            .unwrap()
            .into_iter()
            .map(|image| image.created)
            .collect();
        assert_eq!(created, ["2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z"]);
    }
}
