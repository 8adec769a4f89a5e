//! The kernel and the modules that the initramfs loads: `vmlinuz`, `release`, `version`, and
//! `modules/` with the files and `order`.
//!
//! The package is unpacked and not installed, so no script of it runs. What a module depends on is
//! read from the module itself, as `depmod` does.

use super::packages::{finish, mmdebstrap};
use super::sources::Sources;
use crate::ImageError;
use crate::cache::{Cache, Entry};
use crate::error::At;
use crate::recipe::Recipe;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The names of what the step leaves.
pub(super) const VMLINUZ: &str = "vmlinuz";
pub(super) const RELEASE: &str = "release";
pub(super) const VERSION: &str = "version";
pub(super) const MODULES: &str = "modules";
pub(super) const ORDER: &str = "order";

pub(super) fn step(
    cache: &Cache,
    recipe: &Recipe,
    sources: &Sources,
    fresh: bool,
    line: &mut dyn FnMut(&str),
) -> Result<Entry, ImageError> {
    let modules = recipe.kernel.modules.join(",");
    let inputs = ["1", &recipe.suite, &recipe.kernel.package, &modules].map(str::as_bytes);
    cache.step("kernel", &inputs, fresh, |out| {
        let archive = out.join("kernel.tar");
        finish(
            mmdebstrap(recipe, "extract", &recipe.kernel.package),
            recipe,
            sources,
            &archive,
            line,
        )?;
        let found = unpack(&archive, out)?;
        fs::remove_file(&archive).at("removing", &archive)?;
        let order = order(&recipe.kernel.modules, &found.modules, &found.builtin)?;
        let dir = out.join(MODULES);
        fs::create_dir(&dir).at("making", &dir)?;
        for name in &order {
            let (from, to) = (&found.modules[name], dir.join(format!("{name}.ko")));
            fs::rename(from, &to).at("moving", from)?;
        }
        fs::remove_dir_all(out.join("all")).at("removing", &out.join("all"))?;
        let list: String = order.iter().map(|name| format!("{name}.ko\n")).collect();
        put(&dir.join(ORDER), &list)?;
        put(&out.join(RELEASE), &found.release)?;
        put(&out.join(VERSION), &version(&out.join(VMLINUZ))?)
    })
}

fn put(path: &Path, text: &str) -> Result<(), ImageError> {
    fs::write(path, text).at("writing", path)
}

/// What was in the package.
struct Found {
    release: String,
    /// Module files by module name.
    modules: BTreeMap<String, PathBuf>,
    /// Modules that are part of the kernel.
    builtin: BTreeSet<String>,
}

/// Takes kernel and modules out of the archive.
fn unpack(archive: &Path, out: &Path) -> Result<Found, ImageError> {
    let all = out.join("all");
    fs::create_dir(&all).at("making", &all)?;
    let mut found = Found {
        release: String::new(),
        modules: BTreeMap::new(),
        builtin: BTreeSet::new(),
    };
    let file = File::open(archive).at("opening", archive)?;
    for entry in tar::Archive::new(file).entries().at("reading", archive)? {
        let mut entry = entry.at("reading", archive)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().at("reading", archive)?.into_owned();
        let text = path.to_string_lossy();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        if let Some(release) = name
            .strip_prefix("vmlinuz-")
            .filter(|_| text.contains("boot/"))
        {
            release.clone_into(&mut found.release);
            let to = out.join(VMLINUZ);
            entry.unpack(&to).at("writing", &to)?;
        } else if let Some(module) = name
            .strip_suffix(".ko")
            .filter(|_| text.contains("lib/modules/"))
        {
            let to = all.join(name);
            entry.unpack(&to).at("writing", &to)?;
            found.modules.insert(plain(module), to);
        } else if name == "modules.builtin" {
            let text = std::io::read_to_string(&mut entry).at("reading", archive)?;
            found.builtin = text
                .lines()
                .filter_map(|line| Some(plain(line.rsplit('/').next()?.strip_suffix(".ko")?)))
                .collect();
        }
    }
    if found.release.is_empty() {
        return Err(ImageError::Kernel("it holds no boot/vmlinuz-*".into()));
    }
    Ok(found)
}

/// A module's name: dashes in its file name are underscores in it.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// The modules and all they depend on, each after what it depends on.
fn order(
    wanted: &[String],
    modules: &BTreeMap<String, PathBuf>,
    builtin: &BTreeSet<String>,
) -> Result<Vec<String>, ImageError> {
    let mut order = Vec::new();
    // Modules to visit; the second time one comes up, what it depends on is in the list.
    let mut stack: Vec<(String, bool)> = wanted
        .iter()
        .rev()
        .map(|name| (name.clone(), false))
        .collect();
    while let Some((name, expanded)) = stack.pop() {
        if builtin.contains(&name) || order.contains(&name) {
            continue;
        }
        if expanded {
            order.push(name);
            continue;
        }
        let path = modules
            .get(&name)
            .ok_or_else(|| ImageError::Kernel(format!("it has no module {name}")))?;
        let content = fs::read(path).at("reading", path)?;
        stack.push((name, true));
        stack.extend(depends(&content).into_iter().map(|needed| (needed, false)));
    }
    Ok(order)
}

/// The names in a module's `depends=` field.
fn depends(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(start) = module
        .windows(FIELD.len())
        .position(|window| window == FIELD)
    else {
        return Vec::new();
    };
    let value = &module[start + FIELD.len()..];
    let end = value
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(plain)
        .collect()
}

/// The version of the Debian package, which the kernel's image says of itself.
fn version(vmlinuz: &Path) -> Result<String, ImageError> {
    let image = fs::read(vmlinuz).at("reading", vmlinuz)?;
    // The boot protocol keeps the offset of the version text, from 0x200, at 0x20e.
    let text = image
        .get(0x20e..0x210)
        .map(|bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) + 0x200)
        .and_then(|start| image.get(start..start + 256))
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .unwrap_or_default();
    let version = text
        .split_once("Debian ")
        .and_then(|(_, rest)| rest.split([' ', '\0']).next());
    version
        .map(str::to_owned)
        .ok_or_else(|| ImageError::Kernel("its image does not say its version".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut modules = BTreeMap::new();
        for (name, needs) in [
            ("virtio_net", "net_failover,virtio,crc"),
            ("net_failover", "failover"),
            ("failover", ""),
            ("virtio", "virtio-ring"),
            ("virtio_ring", ""),
        ] {
            let path = dir.path().join(name);
            fs::write(
                &path,
                format!("ELF\0license=GPL\0depends={needs}\0name={name}\0"),
            )
            .unwrap();
            modules.insert(name.to_owned(), path);
        }
        let builtin = BTreeSet::from(["crc".to_owned()]);
        let order = order(&["virtio_net".into(), "virtio".into()], &modules, &builtin).unwrap();
        let place = |name: &str| order.iter().position(|other| other == name).unwrap();
        assert_eq!(order.len(), 5);
        assert!(place("virtio_ring") < place("virtio") && place("virtio") < place("virtio_net"));
        assert!(
            place("failover") < place("net_failover")
                && place("net_failover") < place("virtio_net")
        );
        assert!(super::order(&["nothing".into()], &modules, &builtin).is_err());
    }
}
