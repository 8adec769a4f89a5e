//! The root file system: `rootfs.erofs`, and `packages` with their versions.
//!
//! The archive is unpacked, what belongs to one machine is taken out, our files and the layers are
//! put in, everything is searched for credentials, and a compressed read-only file system is made of
//! it. All files belong to root: the two directories of the agent are made in the guest.

use super::packages::{ARCHIVE, DIGEST};
use super::tools::{MKFS_EROFS, TAR};
use super::{Entry, layers};
use crate::cache::Cache;
use crate::error::At;
use crate::manifest::{Package, ROOT};
use crate::recipe::{FILES, Layer, Recipe};
use crate::{ImageError, digest, scan};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The name of the list of packages.
pub(super) const PACKAGES: &str = "packages";

/// What belongs to one machine or one build. Directories stay, empty.
const OUT: [&str; 10] = [
    "etc/hostname",
    "etc/hosts",
    "etc/machine-id",
    "etc/resolv.conf",
    "boot",
    "var/cache",
    "var/lib/apt/lists",
    "var/log",
    "tmp",
    // Compiled while packages were being installed, a little differently each time.
    "usr/share/python3/debpython/__pycache__",
];

/// The user that runs work.
const USER: [(&str, &str); 3] = [
    (
        "etc/passwd",
        "agent:x:1000:1000:Lazaret agent:/home/agent:/bin/bash\n",
    ),
    ("etc/group", "agent:x:1000:\n"),
    ("etc/shadow", "agent:!:20000:0:99999:7:::\n"),
];

pub(super) fn step(
    cache: &Cache,
    recipe: &Recipe,
    packages: &Entry,
    layers: &[(String, Layer, Entry)],
    line: &mut dyn FnMut(&str),
) -> Result<Entry, ImageError> {
    let archive = fs::read_to_string(packages.dir.join(DIGEST)).at("reading", &packages.dir)?;
    let mut inputs = inputs(recipe, archive);
    for (_, layer, entry) in layers {
        inputs.push(layer.target.clone());
        inputs.push(digest::of_file(&entry.dir.join(layers::PROGRAM))?.0);
    }
    let inputs: Vec<&[u8]> = inputs.iter().map(String::as_bytes).collect();
    cache.step("root", &inputs, false, |out| {
        let tree = out.join("tree");
        line("unpacking");
        unpack(&packages.dir.join(ARCHIVE), &tree, line)?;
        clean(&tree, &sources(recipe))?;
        for (_, layer, entry) in layers {
            place(&entry.dir.join(layers::PROGRAM), &tree.join(&layer.target))?;
        }
        line("searching for credentials");
        let findings = scan::tree(&tree, &recipe.harmless)?;
        if !findings.is_empty() {
            return Err(ImageError::Credential(findings));
        }
        let list: String = installed(&tree)?
            .iter()
            .map(|p| format!("{} {}\n", p.name, p.version))
            .collect();
        let path = out.join(PACKAGES);
        fs::write(&path, list).at("writing", &path)?;
        line("compressing");
        compress(&tree, &out.join(ROOT), recipe.epoch, line)?;
        fs::remove_dir_all(&tree).at("removing", &tree)
    })
}

/// What a root depends on, without its layers: also how it is searched, so that a root from before a
/// new shape is searched for that too.
fn inputs(recipe: &Recipe, archive: String) -> Vec<String> {
    let mut inputs = vec![
        "2".to_owned(),
        archive,
        recipe.epoch.to_string(),
        OUT.join("\n"),
        sources(recipe),
        scan::rules(&recipe.harmless).join("\n"),
    ];
    inputs.extend(
        USER.iter()
            .chain(&FILES)
            .flat_map(|(path, text)| [(*path).to_owned(), (*text).to_owned()]),
    );
    inputs
}

fn unpack(archive: &Path, tree: &Path, line: &mut dyn FnMut(&str)) -> Result<(), ImageError> {
    fs::create_dir(tree).at("making", tree)?;
    let mut command = TAR.command();
    command.arg("-xf").arg(archive).arg("-C").arg(tree);
    command.args([
        "--no-same-owner",
        "--same-permissions",
        "--delay-directory-restore",
        "--exclude=./dev/*",
    ]);
    TAR.run(command, line)
}

/// The sources of the recipe, and not the mirror that this machine happened to use.
fn sources(recipe: &Recipe) -> String {
    let Recipe {
        suite,
        mirror,
        security_mirror,
        ..
    } = recipe;
    format!(
        "deb {mirror} {suite} main\ndeb {mirror} {suite}-updates main\ndeb {security_mirror} {suite}-security main\n"
    )
}

fn clean(tree: &Path, sources: &str) -> Result<(), ImageError> {
    for name in OUT {
        let path = tree.join(name);
        if path.is_dir() {
            fs::remove_dir_all(&path).at("emptying", &path)?;
            fs::create_dir(&path).at("emptying", &path)?;
        } else if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).at("removing", &path)?;
        }
    }
    for (name, text) in FILES.iter().chain(&[("etc/apt/sources.list", sources)]) {
        let path = tree.join(name);
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).at("removing", &path)?;
        }
        fs::write(&path, text).at("writing", &path)?;
    }
    for (name, text) in USER {
        let path = tree.join(name);
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .at("opening", &path)?;
        file.write_all(text.as_bytes()).at("writing", &path)?;
    }
    Ok(())
}

fn place(program: &Path, target: &Path) -> Result<(), ImageError> {
    fs::copy(program, target).at("writing", target)?;
    fs::set_permissions(target, fs::Permissions::from_mode(0o755)).at("setting the mode of", target)
}

/// Equal trees give equal bytes: no times, no attributes, no owners, a fixed id.
fn compress(
    tree: &Path,
    to: &Path,
    epoch: u64,
    line: &mut dyn FnMut(&str),
) -> Result<(), ImageError> {
    let mut command = MKFS_EROFS.command();
    command.args([
        "-zlz4",
        "-x-1",
        "--all-root",
        "--quiet",
        "-U00000000-0000-4000-8000-000000000000",
    ]);
    command.arg(format!("-T{epoch}")).arg(to).arg(tree);
    MKFS_EROFS.run(command, line)
}

/// The packages that dpkg has noted as installed.
fn installed(tree: &Path) -> Result<Vec<Package>, ImageError> {
    let path = tree.join("var/lib/dpkg/status");
    let status = fs::read_to_string(&path).at("reading", &path)?;
    let mut packages: Vec<Package> = status.split("\n\n").filter_map(package).collect();
    packages.sort();
    Ok(packages)
}

fn package(paragraph: &str) -> Option<Package> {
    let field = |name: &str| {
        paragraph
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    if field("Status")? != "install ok installed" {
        return None;
    }
    Some(Package {
        name: field("Package")?.to_owned(),
        version: field("Version")?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_made_again_when_it_is_to_be_searched_for_something_else() {
        let recipe = Recipe::embedded().unwrap();
        let now = inputs(&recipe, "digest".into());
        let mut changed = recipe;
        changed.harmless.clear();
        assert_ne!(inputs(&changed, "digest".into()), now);
        for part in [
            "glpat-",
            "name .netrc",
            "example AKIA",
            "harmless private key",
        ] {
            assert!(now.iter().any(|input| input.contains(part)), "{part}");
        }
    }

    #[test]
    fn only_installed_packages_count() {
        let text = "Package: git\nStatus: install ok installed\nVersion: 1:2.39.5-0\nDepends: x\n Version: no\n";
        assert_eq!(
            package(text),
            Some(Package {
                name: "git".into(),
                version: "1:2.39.5-0".into()
            })
        );
        assert_eq!(
            package("Package: git\nStatus: deinstall ok config-files\nVersion: 1\n"),
            None
        );
    }

    #[test]
    fn equal_trees_give_equal_file_systems() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            let tree = dir.path().join(name);
            fs::create_dir_all(tree.join("usr/bin")).unwrap();
            let files = if name == "a" {
                ["usr/bin/x", "usr/bin/y"]
            } else {
                ["usr/bin/y", "usr/bin/x"]
            };
            for file in files {
                fs::write(tree.join(file), file.repeat(5000)).unwrap();
            }
            compress(
                &tree,
                &dir.path().join(format!("{name}.erofs")),
                1_700_000_000,
                &mut |_| {},
            )
            .unwrap();
        }
        assert_eq!(
            fs::read(dir.path().join("a.erofs")).unwrap(),
            fs::read(dir.path().join("b.erofs")).unwrap()
        );
    }
}
