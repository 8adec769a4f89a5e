//! What the guest API does to the machine itself, behind a trait so that the routes can be tried on
//! a machine that is not a guest.

mod boot_id;
mod gitconfig;

use crate::sys;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lazaret_api::guest::{Adopt, Adopted, Clock, Health, Wake, net};
use lazaret_domain::{Denial, DenialCode};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::fs::{self, File};
use std::io;

/// The machine as the guest API sees it.
pub trait Machine: Send + Sync + 'static {
    /// Its state; whether it was adopted is known elsewhere. The kernel makes its boot id when it is
    /// first asked for, so it must not be asked before the guest has entropy of its own.
    ///
    /// # Errors
    /// The kernel does not say.
    fn health(&self) -> io::Result<Health>;

    /// Becomes the sandbox it is told to be.
    ///
    /// # Errors
    /// The settings are out of form, or the machine refuses one. It must not run work then.
    fn adopt(&self, adopt: &Adopt) -> Result<Adopted, Denial>;

    /// Becomes another sandbox than it was: a copy of it. Also its boot id is a new one then.
    ///
    /// # Errors
    /// As of [`Self::adopt`].
    fn adopt_again(&self, adopt: &Adopt) -> Result<Adopted, Denial>;

    /// Takes new entropy and then the time, and says what the wall clock shows then.
    ///
    /// # Errors
    /// The settings are out of form, or the machine refuses one. Its work must not go on then.
    fn wake(&self, wake: &Wake) -> Result<Clock, Denial>;

    /// Sets the wall clock, and says what it shows then.
    ///
    /// # Errors
    /// The time is out of form, or the machine refuses it.
    fn set_clock(&self, clock: Clock) -> Result<Clock, Denial>;

    /// What writes out all that file systems hold in memory.
    fn sync(&self) -> fn();
}

/// The machine this runs on.
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn health(&self) -> io::Result<Health> {
        let uptime = clock_gettime(ClockId::Boottime);
        Ok(Health {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: lazaret_api::PROTOCOL,
            kernel: kernel(),
            boot_id: None,
            uptime_ms: u64::try_from(uptime.tv_sec * 1000 + uptime.tv_nsec / 1_000_000)
                .unwrap_or(0),
            adopted: false,
            napping: false,
        })
    }

    fn adopt(&self, adopt: &Adopt) -> Result<Adopted, Denial> {
        let settings = Settings::check(adopt)?;
        settings.apply().map_err(|error| could_not("adopt", &error))
    }

    fn adopt_again(&self, adopt: &Adopt) -> Result<Adopted, Denial> {
        let settings = Settings::check(adopt)?;
        // Entropy first, also for the new boot id.
        settings
            .reseed()
            .and_then(|()| boot_id::renew())
            .and_then(|()| settings.apply())
            .map_err(|error| could_not("adopt", &error))
    }

    fn wake(&self, wake: &Wake) -> Result<Clock, Denial> {
        let entropy = entropy(&wake.entropy)?;
        let clock = timespec(wake.wall_clock_ns)?;
        File::open("/dev/random")
            .and_then(|random| sys::credit_entropy(&random, entropy))
            .and_then(|()| Ok(clock_settime(ClockId::Realtime, clock)?))
            .map_err(|error| could_not("wake", &error))?;
        Ok(Clock {
            wall_clock_ns: wall_clock(),
        })
    }

    fn set_clock(&self, clock: Clock) -> Result<Clock, Denial> {
        let time = timespec(clock.wall_clock_ns)?;
        clock_settime(ClockId::Realtime, time)
            .map_err(|error| could_not("set its clock", &error.into()))?;
        Ok(Clock {
            wall_clock_ns: wall_clock(),
        })
    }

    fn sync(&self) -> fn() {
        rustix::fs::sync
    }
}

fn could_not(what: &str, error: &io::Error) -> Denial {
    Denial::new(
        DenialCode::Internal,
        format!("the guest could not {what}: {error}"),
    )
}

/// Random bytes as they are sent.
fn entropy(text: &str) -> Result<[u8; sys::ENTROPY], Denial> {
    STANDARD
        .decode(text)
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| {
            let why = "the entropy is 64 bytes in base64";
            Denial::new(DenialCode::InvalidRequest, why).at("entropy")
        })
}

/// A time as the kernel takes it.
fn timespec(wall_clock_ns: i64) -> Result<Timespec, Denial> {
    if wall_clock_ns <= 0 {
        let why = "the wall clock is after 1970";
        return Err(Denial::new(DenialCode::InvalidRequest, why).at("wall_clock_ns"));
    }
    Ok(Timespec {
        tv_sec: wall_clock_ns / 1_000_000_000,
        tv_nsec: wall_clock_ns % 1_000_000_000,
    })
}

/// Nanoseconds since 1970.
fn wall_clock() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

/// What a guest is told, checked before any of it takes effect.
struct Settings<'a> {
    name: &'a str,
    machine_id: &'a str,
    entropy: [u8; sys::ENTROPY],
    clock: Timespec,
    git: String,
}

impl<'a> Settings<'a> {
    fn check(adopt: &'a Adopt) -> Result<Self, Denial> {
        let refuse =
            |field: &str, why: &str| Denial::new(DenialCode::InvalidRequest, why).at(field);
        let entropy = entropy(&adopt.entropy)?;
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if adopt.machine_id.len() != 32 || !adopt.machine_id.bytes().all(hex) {
            return Err(refuse(
                "machine_id",
                "a machine id is 32 lower-case hexadecimal digits",
            ));
        }
        Ok(Self {
            name: adopt.sandbox.as_str(),
            machine_id: &adopt.machine_id,
            entropy,
            clock: timespec(adopt.wall_clock_ns)?,
            git: gitconfig::text(&adopt.git_base_url)?,
        })
    }

    fn reseed(&self) -> io::Result<()> {
        sys::credit_entropy(&File::open("/dev/random")?, self.entropy)
    }

    /// Entropy first: nothing that follows may be drawn from a pool that other guests share.
    fn apply(&self) -> io::Result<Adopted> {
        self.reseed()?;
        clock_settime(ClockId::Realtime, self.clock)?;
        rustix::system::sethostname(self.name.as_bytes())?;
        fs::write("/etc/hostname", format!("{}\n", self.name))?;
        fs::write(
            "/etc/hosts",
            format!(
                "127.0.0.1 localhost {}\n{} {}\n",
                self.name,
                net::GATEWAY,
                net::GATEWAY_NAME
            ),
        )?;
        fs::write("/etc/machine-id", format!("{}\n", self.machine_id))?;
        fs::write("/etc/gitconfig", &self.git)?;
        Ok(Adopted {
            boot_id: boot_id()?,
            kernel: kernel(),
            wall_clock_ns: wall_clock(),
        })
    }
}

fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// The kernel's boot id, of a guest that was adopted.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim_end()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adopt() -> Adopt {
        Adopt {
            sandbox: "s0123456789abcdef".parse().unwrap(),
            wall_clock_ns: 1_700_000_000_000_000_001,
            entropy: STANDARD.encode([7_u8; 64]),
            machine_id: "0123456789abcdef0123456789abcdef".into(),
            git_base_url: "https://github.com/".into(),
        }
    }

    #[test]
    fn settings_out_of_form_are_refused_before_anything_is_set() {
        assert!(Settings::check(&adopt()).is_ok());
        let bad: [(&str, Adopt); 5] = [
            (
                "entropy",
                Adopt {
                    entropy: STANDARD.encode([7_u8; 63]),
                    ..adopt()
                },
            ),
            (
                "entropy",
                Adopt {
                    entropy: "?".into(),
                    ..adopt()
                },
            ),
            (
                "machine_id",
                Adopt {
                    machine_id: "XYZ".into(),
                    ..adopt()
                },
            ),
            (
                "wall_clock_ns",
                Adopt {
                    wall_clock_ns: -1,
                    ..adopt()
                },
            ),
            (
                "git_base_url",
                Adopt {
                    git_base_url: "https://x/\n[core]\n".into(),
                    ..adopt()
                },
            ),
        ];
        for (field, adopt) in bad {
            let denial = Settings::check(&adopt).map(|_| ()).unwrap_err();
            assert_eq!(denial.field.as_deref(), Some(field));
        }
    }
}
