//! `lazaret image verify`: each file of each image against its manifest, and no credential in it.

use super::{chain, verify_one};
use crate::failure::{Exit, Failure};
use crate::output::progress::Progress;
use crate::output::{Output, Paint};
use lazaret_image::ImageError;
use serde_json::json;
use std::path::Path;

/// What is wrong with an image.
struct Problem {
    /// In one word, for the eye.
    word: &'static str,
    /// What was found.
    what: String,
}

/// Checks every image in a directory. One that is not well is exit 1.
///
/// # Errors
/// Where there is no image, or the directory cannot be read.
pub(super) async fn verify(images: &Path, out: &mut Output) -> Result<Exit, Failure> {
    // The exit status is that of the check, however much of it is read.
    out.outlive_readers();
    let list = digests(images)?;
    if list.is_empty() {
        return Err(lazaret_domain::Denial::new(
            lazaret_domain::DenialCode::ImageMissing,
            format!(
                "there is no image in {}; build one with: lazaret image build",
                images.display()
            ),
        )
        .into());
    }
    let shown = Progress::start("Checking images");
    let mut found = Vec::new();
    for digest in list {
        let dir = images.to_owned();
        let name = digest.clone();
        shown.step(&format!("Checking {name}"));
        let problem = tokio::task::spawn_blocking(move || examine(&dir, &name))
            .await
            .map_err(|error| Failure::doing("the check ended", error))?;
        found.push((digest, problem));
    }
    drop(shown);
    let all_well = found.iter().all(|(_, problem)| problem.is_none());
    if out.json {
        let all: Vec<_> = found
            .iter()
            .map(|(digest, problem)| match problem {
                None => json!({ "digest": digest, "ok": true }),
                Some(problem) => json!({ "digest": digest, "ok": false, "problem": problem.what }),
            })
            .collect();
        out.document(&json!({ "ok": all_well, "images": all }))?;
    } else {
        for (digest, problem) in &found {
            match problem {
                None => out.line(format!("{digest}  ok"))?,
                Some(Problem { word, what }) => {
                    let word = out.paint(Paint::Bad, word);
                    out.line(format!("{digest}  {word}: {what}"))?;
                }
            }
        }
    }
    Ok(if all_well { Exit::Done } else { Exit::Failed })
}

/// Checks one image. Its root is searched only where it is the one that the manifest names. What
/// cannot be checked is not well.
fn examine(images: &Path, digest: &str) -> Option<Problem> {
    let searched = verify_one(images, digest)
        .and_then(|_| lazaret_image::scan_image(&images.join(digest), &mut |_| {}));
    let error = searched.err()?;
    let word = match &error {
        ImageError::Credential(_) => "CREDENTIAL",
        ImageError::Altered { .. } | ImageError::Missing(_) => "ALTERED",
        _ => "NOT CHECKED",
    };
    Some(Problem {
        word,
        what: chain(&error),
    })
}

/// Everything in the directory that is named as an image is, whole or not.
fn digests(images: &Path) -> Result<Vec<String>, Failure> {
    let entries = match std::fs::read_dir(images) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Failure::doing(
                format!("cannot read {}", images.display()),
                error,
            ));
        }
    };
    let mut found: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()))
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_image::Manifest;
    use lazaret_image::manifest::{FILE, FORMAT, FileRecord, INITRD, KERNEL, ROOT};
    use std::path::PathBuf;
    use std::process::Command;

    /// An image whose root holds one file.
    fn image(images: &Path, file: &str, content: &str) -> PathBuf {
        let partial = images.join("partial");
        let tree = images.join("tree");
        std::fs::create_dir_all(&partial).unwrap();
        std::fs::create_dir_all(tree.join(file).parent().unwrap()).unwrap();
        std::fs::write(tree.join(file), content).unwrap();
        let made = Command::new("mkfs.erofs")
            .arg(partial.join(ROOT))
            .arg(&tree)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        std::fs::remove_dir_all(&tree).unwrap();
        let files = [KERNEL, INITRD, ROOT].map(|name| {
            let path = partial.join(name);
            if name != ROOT {
                std::fs::write(&path, name).unwrap();
            }
            let content = std::fs::read(&path).unwrap();
            FileRecord {
                name: name.into(),
                sha256: sha256(&content),
                size: u64::try_from(content.len()).unwrap(),
            }
        });
        let mut manifest = Manifest {
            format: FORMAT,
            digest: String::new(),
            kernel: "6.1".into(),
            files: files.to_vec(),
            packages: vec![],
            layers: vec![],
            created: "2026-01-01T00:00:00Z".into(),
        };
        manifest.digest = manifest.content_digest();
        let text = serde_json::to_vec(&manifest).unwrap();
        std::fs::write(partial.join(FILE), text).unwrap();
        let dir = images.join(&manifest.digest);
        std::fs::rename(&partial, &dir).unwrap();
        dir
    }

    fn sha256(content: &[u8]) -> String {
        use sha2::{Digest, Sha256};
        Sha256::digest(content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn digest(dir: &Path) -> &str {
        dir.file_name().unwrap().to_str().unwrap()
    }

    #[tokio::test]
    async fn a_credential_in_an_image_is_a_failed_check() {
        let images = tempfile::tempdir().unwrap();
        let well = image(images.path(), "etc/hostname", "guest\n");
        assert!(examine(images.path(), digest(&well)).is_none());
        let mut out = Output::to(Box::new(std::io::sink()), Box::new(std::io::sink()), false);
        assert_eq!(verify(images.path(), &mut out).await.unwrap(), Exit::Done);

        let leaky = image(images.path(), "root/.ssh/id_ed25519", "not really\n");
        let problem = examine(images.path(), digest(&leaky)).unwrap();
        assert_eq!(problem.word, "CREDENTIAL");
        assert!(problem.what.contains("id_ed25519"), "{}", problem.what);
        assert_eq!(verify(images.path(), &mut out).await.unwrap(), Exit::Failed);
    }

    #[test]
    fn an_altered_image_is_called_so() {
        let images = tempfile::tempdir().unwrap();
        let dir = image(images.path(), "etc/hostname", "guest\n");
        std::fs::write(dir.join(INITRD), "other").unwrap();
        let problem = examine(images.path(), digest(&dir)).unwrap();
        assert_eq!(problem.word, "ALTERED");
    }
}
