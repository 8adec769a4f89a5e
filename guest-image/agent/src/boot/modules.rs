//! Loads the kernel modules that the recipe put into the initramfs, in the order it wrote down.

use super::{BootError, Step};
use rustix::io::Errno;
use std::fs::{self, File};

/// Where the recipe lays the modules: `order` lists their file names, one a line.
const MODULES: &str = "/modules";

/// Loads them all. One that the kernel has already is no fault.
pub(super) fn load() -> Result<(), BootError> {
    let order =
        fs::read_to_string(format!("{MODULES}/order")).step("reading the list of modules")?;
    for name in order.lines() {
        let file =
            File::open(format!("{MODULES}/{name}")).step(format!("opening module {name}"))?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).step(format!("loading module {name}")),
        }
    }
    // The files live in memory; the modules do not need them any more.
    fs::remove_dir_all(MODULES).step("freeing the modules' files")
}
