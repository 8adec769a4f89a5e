//! Where the system's programs are, also those that only root's PATH leads to.

use std::path::{Path, PathBuf};

/// Where programs are looked for after the directories of `PATH`.
const USUAL: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
];

/// The full path of a program: a name is looked for, a path must be there.
pub(crate) fn find(program: &Path) -> Option<PathBuf> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    find_in(program, std::env::split_paths(&searched))
}

/// A relative directory is left out: what is found must not depend on where we are.
fn find_in(program: &Path, searched: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    searched
        .chain(USUAL.map(PathBuf::from))
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_whatever_path_says_and_never_in_a_relative_directory() {
        let none = || std::iter::empty();
        assert!(find_in(Path::new("sh"), none()).is_some_and(|path| path.is_absolute()));
        assert_eq!(find_in(Path::new("program-of-nobody"), none()), None);
        assert_eq!(find_in(Path::new("/nowhere/sh"), none()), None);
        let relative = std::iter::once(PathBuf::from("src"));
        assert_eq!(find_in(Path::new("lib.rs"), relative), None);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("sh"), "").unwrap();
        let first = std::iter::once(dir.path().to_owned());
        assert_eq!(find_in(Path::new("sh"), first), Some(dir.path().join("sh")));
    }
}
