//! Kernel settings that are not the default but should be.

use super::{BootError, Step};
use std::fs;

/// Path below `/proc/sys` and value. The first four keep one user from being tricked through links
/// and files that another put into a shared directory.
const SETTINGS: [(&str, &str); 7] = [
    ("fs/protected_hardlinks", "1"),
    ("fs/protected_symlinks", "1"),
    ("fs/protected_fifos", "2"),
    ("fs/protected_regular", "2"),
    ("kernel/dmesg_restrict", "1"),
    ("kernel/kptr_restrict", "2"),
    // Many tools watch whole source trees.
    ("fs/inotify/max_user_watches", "524288"),
];

/// Applies them all.
pub(super) fn apply() -> Result<(), BootError> {
    for (name, value) in SETTINGS {
        fs::write(format!("/proc/sys/{name}"), value).step(format!("setting {name}"))?;
    }
    Ok(())
}
