//! An optional layer: one program out of one npm package, at a pinned version.

use super::tools::{NPM, TAR};
use crate::ImageError;
use crate::cache::{Cache, Entry};
use crate::error::At;
use crate::recipe::Layer;
use std::fs;

/// The program's name in the result of the step.
pub(super) const PROGRAM: &str = "program";

/// npm checks what it downloads against the digest that the registry has for that version.
pub(super) fn step(
    cache: &Cache,
    name: &str,
    layer: &Layer,
    line: &mut dyn FnMut(&str),
) -> Result<Entry, ImageError> {
    let inputs = ["1", &layer.npm, &layer.version, &layer.file].map(str::as_bytes);
    cache.step(&format!("layer_{name}"), &inputs, false, |out| {
        let mut command = NPM.command();
        command
            .args(["pack", "--silent", "--pack-destination"])
            .arg(out)
            .arg(format!("{}@{}", layer.npm, layer.version));
        NPM.run(command, line)?;
        let packed = fs::read_dir(out)
            .at("reading", out)?
            .flatten()
            .map(|entry| entry.path())
            .next();
        let Some(packed) = packed else {
            return Err(ImageError::Recipe(format!(
                "npm packed nothing for {}",
                layer.npm
            )));
        };
        let mut command = TAR.command();
        command
            .args(["-xzf"])
            .arg(&packed)
            .arg("-C")
            .arg(out)
            .arg(&layer.file);
        TAR.run(command, line)?;
        let (from, to) = (out.join(&layer.file), out.join(PROGRAM));
        fs::rename(&from, &to).at("moving", &from)?;
        fs::remove_file(&packed).at("removing", &packed)
    })
}
