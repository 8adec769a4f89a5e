//! The initramfs: the guest agent as `init`, and the modules it loads first.
//!
//! It is not compressed. It is three megabytes; unpacking them under software emulation takes
//! longer than copying them.

use super::kernel::{MODULES, ORDER};
use crate::cache::{Cache, Entry};
use crate::cpio::Cpio;
use crate::error::At;
use crate::manifest::INITRD;
use crate::recipe::Recipe;
use crate::{ImageError, digest};
use std::fs;
use std::io;
use std::path::Path;

/// Whether this is a program that can be `init`: an ELF file for x86-64 that asks for no loader.
pub(super) fn check_agent(path: &Path) -> Result<(), ImageError> {
    let refuse = || ImageError::NotTheAgent(path.to_owned());
    let content = fs::read(path).map_err(|_| refuse())?;
    let is_elf64 = content.starts_with(b"\x7fELF\x02\x01") && content.get(18..20) == Some(&[62, 0]);
    let asks_for_loader = content.windows(LOADER.len()).any(|window| window == LOADER);
    if is_elf64 && !asks_for_loader {
        Ok(())
    } else {
        Err(refuse())
    }
}

/// The loader's path, as every dynamic program names it in its first page.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

pub(super) fn step(
    cache: &Cache,
    recipe: &Recipe,
    kernel: &Entry,
    agent: &Path,
) -> Result<Entry, ImageError> {
    let modules = kernel.dir.join(MODULES);
    let order = fs::read_to_string(modules.join(ORDER)).at("reading", &modules)?;
    let (agent_digest, _) = digest::of_file(agent)?;
    let mut inputs = vec!["1".to_owned(), recipe.suite.clone(), agent_digest];
    for name in order.lines() {
        inputs.push(digest::of_file(&modules.join(name))?.0);
    }
    let inputs: Vec<&[u8]> = inputs.iter().map(String::as_bytes).collect();
    cache.step("initrd", &inputs, false, |out| {
        let path = out.join(INITRD);
        let archive = archive(agent, &modules, &order).at("putting together", &path)?;
        fs::write(&path, archive).at("writing", &path)
    })
}

fn archive(agent: &Path, modules: &Path, order: &str) -> io::Result<Vec<u8>> {
    let mut cpio = Cpio::new(Vec::new());
    cpio.directory("dev")?;
    cpio.device("dev/console", 5, 1)?;
    cpio.directory("modules")?;
    cpio.file("modules/order", order.as_bytes())?;
    for name in order.lines() {
        cpio.file(&format!("modules/{name}"), &fs::read(modules.join(name))?)?;
    }
    cpio.program("init", &fs::read(agent)?)?;
    cpio.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_or_none_is_not_taken_for_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        assert!(matches!(
            check_agent(&path),
            Err(ImageError::NotTheAgent(_))
        ));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(check_agent(&path).is_err());
        // This test is a dynamic program.
        assert!(check_agent(Path::new("/proc/self/exe")).is_err());
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(18, 0);
        elf.extend([62, 0]);
        fs::write(&path, &elf).unwrap();
        assert!(check_agent(&path).is_ok());
    }

    #[test]
    fn the_same_inputs_give_the_same_initramfs() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["agent", "a.ko", "b.ko"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let make = || archive(&dir.path().join("agent"), dir.path(), "a.ko\nb.ko\n").unwrap();
        let first = make();
        // Another time of change makes no difference.
        fs::write(dir.path().join("a.ko"), "a.ko").unwrap();
        assert_eq!(first, make());
    }
}
