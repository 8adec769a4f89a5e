//! The Debian root, as a tar archive: `root.tar`, and its digest in `sha256`.

use super::sources::Sources;
use super::tools::{MMDEBSTRAP, NEWUIDMAP};
use crate::cache::{Cache, Entry};
use crate::error::At;
use crate::recipe::Recipe;
use crate::{ImageError, digest};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The archive's name.
pub(super) const ARCHIVE: &str = "root.tar";
/// The name of the file that holds the archive's digest.
pub(super) const DIGEST: &str = "sha256";

/// What dpkg leaves out of every package.
const LEFT_OUT: [&str; 6] = [
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
];

/// Python's compiled files say of which source they are by its time, which an image does not keep.
/// These are told to be trusted, so that no start of Python compiles its library again.
const COMPILE: &str = "chroot \"$1\" python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.11";

pub(super) fn step(
    cache: &Cache,
    recipe: &Recipe,
    sources: &Sources,
    fresh: bool,
    line: &mut dyn FnMut(&str),
) -> Result<Entry, ImageError> {
    let packages = recipe.packages.join(",");
    let left_out = LEFT_OUT.join("\n");
    let epoch = recipe.epoch.to_string();
    let inputs = ["1", &recipe.suite, &packages, &left_out, &epoch, COMPILE].map(str::as_bytes);
    cache.step("packages", &inputs, fresh, |out| {
        let archive = out.join(ARCHIVE);
        let mut command = mmdebstrap(recipe, "apt", &packages);
        for option in LEFT_OUT {
            command.arg(format!("--dpkgopt={option}"));
        }
        command.arg(format!("--customize-hook={COMPILE}"));
        finish(command, recipe, sources, &archive, line)?;
        let (sha256, _) = digest::of_file(&archive)?;
        let path = out.join(DIGEST);
        fs::write(&path, sha256).at("writing", &path)
    })
}

/// The beginning of every call of mmdebstrap.
pub(super) fn mmdebstrap(recipe: &Recipe, variant: &str, packages: &str) -> Command {
    let mut command = MMDEBSTRAP.command();
    command.env("SOURCE_DATE_EPOCH", recipe.epoch.to_string());
    command
        .args(["--mode=auto", "--format=tar"])
        .arg(format!("--variant={variant}"));
    command.arg(format!("--include={packages}"));
    command
}

/// The end of every call of mmdebstrap: what, where to, and from where.
pub(super) fn finish(
    mut command: Command,
    recipe: &Recipe,
    sources: &Sources,
    archive: &Path,
    line: &mut dyn FnMut(&str),
) -> Result<(), ImageError> {
    if !rustix::process::geteuid().is_root() {
        NEWUIDMAP.is_there()?;
    }
    if let Some(proxy) = &sources.proxy {
        command.env("http_proxy", proxy);
    }
    command.arg(&recipe.suite).arg(archive).args(&sources.lines);
    MMDEBSTRAP.run(command, line)
}
