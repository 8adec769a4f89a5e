//! The directory that everything of this host lies in.

use super::account::Account;
use super::cgroup::Cgroup;
use super::keys::PublicKey;
use super::{LocalError, LocalSettings};
use crate::state::replace_as;
use std::fs::{DirBuilder, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The places in it.
pub(super) struct Place {
    base: PathBuf,
    /// Whether a parent is a shared directory such as `/tmp`.
    pub(super) shared_parent: bool,
}

/// Refuses a base whose path could mean something in sshd's configuration or in the shell that
/// starts the forced command. Nothing is ever quoted: there is nothing to quote.
pub(super) fn check_base(base: &Path) -> Result<(), LocalError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+".contains(&b);
    let text = base.as_os_str().as_encoded_bytes();
    if !base.is_absolute() || !text.iter().copied().all(plain) {
        return Err(LocalError::path(
            base,
            "an absolute path of A-Z a-z 0-9 / . _ - + is needed",
        ));
    }
    Ok(())
}

/// Makes the directories and installs the program.
pub(super) fn prepare(settings: &LocalSettings, account: &Account) -> Result<Place, LocalError> {
    let base = settings.base.clone();
    directory(&base, 0o755)?;
    let shared_parent = check_parents(&base, account)?;
    let place = Place {
        base,
        shared_parent,
    };
    directory(&place.base.join("bin"), 0o755)?;
    // The account reads its authorized_keys itself and must not be able to change it.
    directory(&place.base.join("ssh"), 0o711)?;
    directory(&place.base.join("keys"), 0o700)?;
    directory(&place.state(), 0o700)?;
    chown(place.state(), Some(account.uid), Some(account.gid)).map_err(LocalError::io(
        "give the state directory to the host's account",
    ))?;
    install(&settings.program, &place.program())?;
    Ok(place)
}

impl Place {
    pub(super) fn program(&self) -> PathBuf {
        self.base.join("bin/lazaret")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.base.join("state")
    }

    pub(super) fn host_key(&self) -> PathBuf {
        self.base.join("ssh/host_ed25519")
    }

    pub(super) fn client_key(&self) -> PathBuf {
        self.base.join("keys/client_ed25519")
    }

    pub(super) fn authorized_keys(&self) -> PathBuf {
        self.base.join("ssh/authorized_keys")
    }

    /// A file of the sshd.
    pub(super) fn ssh(&self, name: &str) -> PathBuf {
        self.base.join("ssh").join(name)
    }

    /// Lets one key in, to one command. Both paths are plain ([`check_base`]).
    pub(super) fn authorize(&self, client: &PublicKey) -> Result<(), LocalError> {
        let line = format!(
            "restrict,command=\"{} host gate --state {}\" {} lazaret-controller\n",
            self.program().display(),
            self.state().display(),
            client.line
        );
        write_file(&self.authorized_keys(), line.as_bytes(), 0o644)
    }

    /// Writes the host's settings.
    pub(super) fn write_settings(
        &self,
        mut settings: toml::Table,
        cgroup: &Cgroup,
        account: &Account,
    ) -> Result<(), LocalError> {
        settings
            .entry("cgroup")
            .or_insert_with(|| cgroup.name().into());
        let path = self.state().join(crate::config::FILE);
        let owner = Some((account.uid, account.gid));
        replace_as(&path, settings.to_string().as_bytes(), 0o600, owner)
            .map_err(LocalError::io("write the host's settings"))
    }
}

/// Whether the account can reach the base, and nobody else can put another directory in its place.
/// A sticky parent such as `/tmp` is fine: what we own there nobody else can rename.
fn check_parents(base: &Path, account: &Account) -> Result<bool, LocalError> {
    let us = rustix::process::geteuid().as_raw();
    let mut shared = false;
    for parent in base.ancestors().skip(1) {
        let metadata = std::fs::metadata(parent)
            .map_err(LocalError::io(format!("look at {}", parent.display())))?;
        let mode = metadata.mode();
        if metadata.uid() != 0 && metadata.uid() != us {
            return Err(LocalError::path(
                base,
                format!("{} belongs to another account", parent.display()),
            ));
        }
        if mode & 0o022 != 0 {
            if mode & 0o1000 == 0 {
                return Err(LocalError::path(
                    base,
                    format!("others can write to {}", parent.display()),
                ));
            }
            shared = true;
        }
        if !account.is_ours() && mode & 0o001 == 0 {
            return Err(LocalError::path(
                base,
                format!(
                    "the account {} cannot pass through {}; choose another directory",
                    account.name,
                    parent.display()
                ),
            ));
        }
    }
    Ok(shared)
}

fn directory(path: &Path, mode: u32) -> Result<(), LocalError> {
    let doing = || format!("make {}", path.display());
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(LocalError::io(doing()))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(LocalError::io(doing()))
}

/// Writes a file anew and puts it in its place at once.
pub(super) fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), LocalError> {
    replace_as(path, bytes, mode, None).map_err(LocalError::io(format!("write {}", path.display())))
}

/// Copies the program where the account can run it, unless the same bytes are there.
fn install(program: &Path, to: &Path) -> Result<(), LocalError> {
    let doing = format!("install {} as {}", program.display(), to.display());
    let put = || {
        if same(program, to)? {
            return Ok(());
        }
        let fresh = to.with_extension("new");
        std::fs::copy(program, &fresh)?;
        std::fs::set_permissions(&fresh, Permissions::from_mode(0o755))?;
        // A rename, because shims of this program may be running.
        std::fs::rename(&fresh, to)
    };
    put().map_err(LocalError::io(doing))
}

fn same(one: &Path, other: &Path) -> std::io::Result<bool> {
    let Ok(mut there) = File::open(other) else {
        return Ok(false);
    };
    let mut here = File::open(one)?;
    if here.metadata()?.len() != there.metadata()?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = here.read(&mut a)?;
        if read == 0 {
            return Ok(true);
        }
        if there.read_exact(&mut b[..read]).is_err() || a[..read] != b[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_could_mean_something_to_a_shell_is_refused() {
        for base in [
            "relative", "/a b", "/a;id", "/a$(id)", "/a\"b", "/a'b", "/a%h", "/a\nb", "/ä", "/a`b",
            "/a\\b",
        ] {
            assert!(check_base(Path::new(base)).is_err(), "{base:?}");
        }
        assert!(check_base(Path::new("/var/lib/lazaret-0.1+x_y")).is_ok());
    }

    #[test]
    fn a_program_is_installed_once_and_replaced_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, "one").unwrap();
        install(&from, &to).unwrap();
        let first = std::fs::metadata(&to).unwrap().ino();
        install(&from, &to).unwrap();
        assert_eq!(std::fs::metadata(&to).unwrap().ino(), first);
        std::fs::write(&from, "two").unwrap();
        install(&from, &to).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&to).unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_no_parent() {
        let dir = tempfile::tempdir().unwrap();
        let loose = dir.path().join("loose");
        directory(&loose, 0o777).unwrap();
        let us = rustix::process::geteuid().as_raw();
        let account = Account {
            name: "us".into(),
            uid: us,
            gid: us,
        };
        assert!(check_parents(&loose.join("base"), &account).is_err());
        directory(&loose, 0o1777).unwrap();
        assert!(check_parents(&loose.join("base"), &account).unwrap());
    }

    #[test]
    fn a_parent_the_account_cannot_pass_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let closed = dir.path().join("closed");
        directory(&closed, 0o700).unwrap();
        let other = Account {
            name: "other".into(),
            uid: 64_000,
            gid: 64_000,
        };
        let error = check_parents(&closed.join("base"), &other)
            .unwrap_err()
            .to_string();
        assert!(error.contains("closed"), "{error}");
    }
}
