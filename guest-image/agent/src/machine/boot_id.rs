//! A boot id for a copy of a guest that has booted already: the kernel draws its own only once.

use std::fs;
use std::io::{self, Read};

/// Where programs read it.
const SHOWN: &str = "/proc/sys/kernel/random/boot_id";
/// Where the new one lies. A root of the guest can write it, as it could mount over the kernel's.
const RENEWED: &str = "/run/boot_id";

/// Draws a new boot id and lays it over the kernel's. The kernel's random pool must have entropy of
/// its own by then.
///
/// # Errors
/// It cannot be drawn, written or laid over.
pub(super) fn renew() -> io::Result<()> {
    let mut random = [0_u8; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    // A copy of a copy has one lying there already; it is replaced below the same mount.
    let covered = fs::exists(RENEWED)?;
    fs::write(RENEWED, format!("{}\n", uuid(random)))?;
    if !covered {
        rustix::mount::mount_bind(RENEWED, SHOWN)?;
    }
    Ok(())
}

/// A random UUID as text (RFC 9562, version 4), as the kernel writes its own.
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_form_of_the_kernel_s() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        let own = fs::read_to_string(SHOWN).unwrap();
        assert_eq!(uuid([0; 16]).len(), own.trim_end().len());
    }
}
