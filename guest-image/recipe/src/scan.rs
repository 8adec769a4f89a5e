//! No credential gets into an image.
//!
//! Every regular file of the root is searched for the shapes of well-known tokens and for private
//! keys with their content (a program may well hold the words that a key begins with), and for files
//! that exist to hold credentials. A finding fails the build.

use crate::ImageError;
use crate::error::At;
use crate::recipe::Harmless;
use regex::bytes::RegexSet;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The shapes, each with the name it is reported by.
const SHAPES: [(&str, &str); 10] = [
    (
        "private key",
        r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\r?\n[A-Za-z0-9+/=\r\n:, -]{100,}",
    ),
    (
        "GitHub token",
        r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{36,}",
    ),
    ("GitHub token", r"\bgithub_pat_[A-Za-z0-9_]{60,}"),
    ("model key", r"\bsk-(?:ant|proj)-[A-Za-z0-9_-]{32,}"),
    ("cloud key", r"\bAKIA[A-Z0-9]{16}\b"),
    ("npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("GitLab token", r"\bglpat-[A-Za-z0-9_-]{20}\b"),
    ("Slack token", r"\bxox[abps]-[0-9]{8,}-[A-Za-z0-9-]{16,}"),
    ("Lazaret key", r"\blzr_[a-z0-9]{16}_[A-Za-z0-9_-]{43}\b"),
    ("registry token", r"_authToken=[A-Za-z0-9_-]{16,}"),
];

/// Files that exist to hold credentials.
const NAMES: [&str; 7] = [
    ".netrc",
    ".git-credentials",
    ".pypirc",
    "id_rsa",
    "id_ed25519",
    "id_ecdsa",
    "ssh_host_ed25519_key",
];

/// What cloud vendors print in their manuals.
const EXAMPLES: [&[u8]; 1] = [b"AKIAIOSFODNN7EXAMPLE"];

/// How much of a file is looked at in one go. Pieces overlap, so that nothing hides at a seam.
const PIECE: usize = 4 << 20;
const OVERLAP: usize = 16 << 10;

/// Searches a tree. Findings are `path: what`, with paths relative to the tree, without those that
/// the recipe knows to be harmless.
///
/// # Errors
/// The tree cannot be read.
pub fn tree(root: &Path, harmless: &[Harmless]) -> Result<Vec<String>, ImageError> {
    let shapes = shapes()?;
    let mut findings = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(at) = directories.pop() {
        let directory = root.join(&at);
        for entry in fs::read_dir(&directory).at("reading", &directory)? {
            let entry = entry.at("reading", &directory)?;
            let path = at.join(entry.file_name());
            let kind = entry.file_type().at("reading", &entry.path())?;
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                if NAMES.iter().any(|name| entry.file_name() == *name) {
                    findings.push(format!("{}: a file for credentials", path.display()));
                }
                let file = File::open(entry.path()).at("opening", &entry.path())?;
                let found = content(&shapes, file).at("reading", &entry.path())?;
                let unknown = found.into_iter().filter(|what| {
                    !harmless.iter().any(|known| {
                        known.what == *what && path.to_string_lossy().starts_with(&known.path)
                    })
                });
                findings.extend(unknown.map(|what| format!("{}: {what}", path.display())));
            }
        }
    }
    findings.sort_unstable();
    Ok(findings)
}

/// All that a search depends on besides the tree. What was searched under other rules has to be
/// searched again.
pub(crate) fn rules(harmless: &[Harmless]) -> Vec<String> {
    let shapes = SHAPES
        .iter()
        .map(|(what, shape)| format!("{what}: {shape}"));
    let names = NAMES.iter().map(|name| format!("name {name}"));
    let examples = EXAMPLES
        .iter()
        .map(|text| format!("example {}", String::from_utf8_lossy(text)));
    let known = harmless
        .iter()
        .map(|known| format!("harmless {} in {}", known.what, known.path));
    shapes.chain(names).chain(examples).chain(known).collect()
}

fn shapes() -> Result<RegexSet, ImageError> {
    RegexSet::new(SHAPES.map(|(_, shape)| shape))
        .map_err(|error| ImageError::Recipe(error.to_string()))
}

/// All shapes that are found in a stream, by their names: one that is known to be harmless must not
/// hide another.
fn content(shapes: &RegexSet, mut from: impl Read) -> std::io::Result<BTreeSet<&'static str>> {
    let mut buffer: Vec<u8> = Vec::new();
    let mut found = BTreeSet::new();
    loop {
        let keep = buffer.len().min(OVERLAP);
        buffer.drain(..buffer.len() - keep);
        let read = from.by_ref().take(PIECE as u64).read_to_end(&mut buffer)?;
        if read == 0 {
            return Ok(found);
        }
        if shapes.is_match(&buffer) {
            for example in EXAMPLES {
                blank(&mut buffer, example);
            }
            found.extend(shapes.matches(&buffer).iter().map(|index| SHAPES[index].0));
        }
    }
}

fn blank(buffer: &mut [u8], example: &[u8]) {
    let mut at = 0;
    while let Some(found) = buffer[at..]
        .windows(example.len())
        .position(|window| window == example)
    {
        buffer[at + found..at + found + example.len()].fill(b' ');
        at += found + example.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content: &[u8]) -> Vec<&'static str> {
        let found = super::content(&shapes().unwrap(), content).unwrap();
        found.into_iter().collect()
    }

    /// Put together here, so that this source holds none.
    fn token(prefix: &str, length: usize) -> String {
        format!(
            "x={prefix}{}\n",
            "a1B2"
                .repeat(length)
                .chars()
                .take(length)
                .collect::<String>()
        )
    }

    #[test]
    fn tokens_and_keys_are_found() {
        assert_eq!(found(token("ghp_", 36).as_bytes()), ["GitHub token"]);
        assert_eq!(found(token("sk-ant-", 60).as_bytes()), ["model key"]);
        assert_eq!(found(token("npm_", 36).as_bytes()), ["npm token"]);
        let key = format!(
            "-----BEGIN {} KEY-----\n{}\n",
            "OPENSSH PRIVATE",
            "QUJD".repeat(40)
        );
        assert_eq!(found(key.as_bytes()), ["private key"]);
    }

    #[test]
    fn words_that_a_key_begins_with_are_no_key() {
        let none: [&str; 0] = [];
        assert_eq!(found(b"-----BEGIN RSA PRIVATE KEY-----\0-----END"), none);
        assert_eq!(found(b"key = AKIAIOSFODNN7EXAMPLE"), none);
        assert_eq!(found(b""), none);
    }

    #[test]
    fn a_token_across_two_pieces_is_found() {
        let mut content = vec![b' '; PIECE - 10];
        content.extend(token("ghp_", 36).bytes());
        assert_eq!(found(&content), ["GitHub token"]);
    }

    #[test]
    fn one_that_may_stay_does_not_hide_another_in_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        // The second one lies in another piece than the first.
        let both = [
            token("glpat-", 20),
            " ".repeat(2 * PIECE),
            token("npm_", 36),
        ]
        .concat();
        fs::write(dir.path().join("library"), both).unwrap();
        let known = Harmless {
            path: "library".into(),
            what: "GitLab token".into(),
            why: "a test".into(),
        };
        assert_eq!(tree(dir.path(), &[known]).unwrap(), ["library: npm token"]);
        assert_eq!(tree(dir.path(), &[]).unwrap().len(), 2);
    }

    #[test]
    fn findings_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("root/.netrc"), "").unwrap();
        fs::write(dir.path().join("root/note"), token("glpat-", 20)).unwrap();
        std::os::unix::fs::symlink("/etc/shadow", dir.path().join("link")).unwrap();
        assert_eq!(
            tree(dir.path(), &[]).unwrap(),
            [
                "root/.netrc: a file for credentials",
                "root/note: GitLab token"
            ]
        );
        let known = |what: &str| Harmless {
            path: "root/no".into(),
            what: what.into(),
            why: "a test".into(),
        };
        assert_eq!(tree(dir.path(), &[known("GitLab token")]).unwrap().len(), 1);
        assert_eq!(
            tree(dir.path(), &[known("private key")]).unwrap().len(),
            2,
            "only what is known is let pass"
        );
    }
}
