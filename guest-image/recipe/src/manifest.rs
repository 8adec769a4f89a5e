//! What an image says about itself: `manifest.json`.

use crate::digest;
use serde::{Deserialize, Serialize};

/// The generation of the layout of an image.
pub const FORMAT: u32 = 1;
/// The manifest's name in the directory of an image.
pub const FILE: &str = "manifest.json";
/// The kernel's name there.
pub const KERNEL: &str = "vmlinuz";
/// The initramfs's name there.
pub const INITRD: &str = "initrd";
/// The root's name there.
pub const ROOT: &str = "rootfs.erofs";

/// What is in an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The generation of the layout.
    pub format: u32,
    /// The digest of the content: [`Manifest::content_digest`]. Also the name of its directory.
    pub digest: String,
    /// The kernel's release, as `uname -r` says it.
    pub kernel: String,
    /// The files.
    pub files: Vec<FileRecord>,
    /// The Debian packages, by name.
    pub packages: Vec<Package>,
    /// The optional layers, as `name package@version`.
    pub layers: Vec<String>,
    /// When it was built, in RFC 3339. Not part of the digest.
    pub created: String,
}

/// One file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name.
    pub name: String,
    /// Its digest, in hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

/// One package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Manifest {
    /// The digest of everything but the time and the digest itself.
    #[must_use]
    pub fn content_digest(&self) -> String {
        let mut lines = vec![
            format!("lazaret image {}", self.format),
            format!("kernel {}", self.kernel),
        ];
        lines.extend(
            self.files
                .iter()
                .map(|file| format!("file {} {} {}", file.name, file.sha256, file.size)),
        );
        lines.extend(
            self.packages
                .iter()
                .map(|package| format!("package {} {}", package.name, package.version)),
        );
        lines.extend(self.layers.iter().map(|layer| format!("layer {layer}")));
        digest::of_parts(lines.iter().map(String::as_bytes))
    }

    /// The packages as the text of a lock file.
    #[must_use]
    pub fn lock(&self) -> String {
        self.packages
            .iter()
            .map(|package| format!("{} {}\n", package.name, package.version))
            .collect()
    }

    /// The size of all files in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// How packages differ from a lock: `name: locked → found`.
pub(crate) fn drift(lock: &str, packages: &[Package]) -> Vec<String> {
    let locked: std::collections::BTreeMap<&str, &str> = lock
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let found: std::collections::BTreeMap<&str, &str> = packages
        .iter()
        .map(|package| (package.name.as_str(), package.version.as_str()))
        .collect();
    let names: std::collections::BTreeSet<&&str> = locked.keys().chain(found.keys()).collect();
    let show = |version: Option<&&str>| {
        version.map_or_else(|| "none".to_owned(), |version| (*version).to_owned())
    };
    names
        .into_iter()
        .filter(|name| locked.get(**name) != found.get(**name))
        .map(|name| {
            format!(
                "{name}: {} → {}",
                show(locked.get(*name)),
                show(found.get(*name))
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            digest: String::new(),
            kernel: "6.1.0-1-cloud-amd64".into(),
            files: vec![FileRecord {
                name: KERNEL.into(),
                sha256: "00".into(),
                size: 1,
            }],
            packages: vec![Package {
                name: "git".into(),
                version: "1".into(),
            }],
            layers: vec![],
            created: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn the_digest_is_one_of_the_content_and_not_of_the_time() {
        let one = manifest();
        assert_eq!(
            one.content_digest(),
            Manifest {
                created: "2027".into(),
                digest: "x".into(),
                ..one.clone()
            }
            .content_digest()
        );
        let mut other = one.clone();
        other.files[0].size = 2;
        assert_ne!(one.content_digest(), other.content_digest());
        assert_ne!(
            one.content_digest(),
            Manifest {
                layers: vec!["claude".into()],
                ..one
            }
            .content_digest()
        );
    }

    #[test]
    fn drift_names_what_was_added_removed_and_changed() {
        let packages = ["a 1", "b 2", "d 4"].map(|line| {
            let (name, version) = line.split_once(' ').unwrap();
            Package {
                name: name.into(),
                version: version.into(),
            }
        });
        assert_eq!(
            drift("a 1\nb 1\nc 3\n", &packages),
            ["b: 1 → 2", "c: 3 → none", "d: none → 4"]
        );
        assert!(drift("a 1\nb 2\nd 4\n", &packages).is_empty());
    }
}
