//! This machine as a host, over real SSH, for `lazaret up` and for tests.
//!
//! Nothing of the machine's own SSH is touched: not its sshd, not its keys, not `~/.ssh`. All that
//! is needed is made below one directory:
//!
//! ```text
//! BASE/bin/lazaret            a copy of this program that the host's account can run and not change
//!      ssh/host_ed25519       the host key, whose fingerprint is pinned
//!          authorized_keys    one key, one forced command, nothing else
//!          sshd_config        loopback only, keys only, no forwarding, no terminal
//!      keys/client_ed25519    the controller's key, readable by its owner alone
//!      state/                 the host's state directory, the account's own
//! ```
//!
//! As root the host runs as an unprivileged account that is in `kvm` and in nothing else, with
//! cgroups of its own. As anyone else it runs as that same account.

mod account;
mod cgroup;
mod error;
mod forerunner;
mod keys;
mod place;
mod port;
mod sshd;
mod tool;

pub use account::Account;
pub use error::LocalError;
pub use sshd::Sshd;

use std::path::PathBuf;

/// What to make.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// The directory below which everything is made. The account must be able to pass through its
    /// parents.
    pub base: PathBuf,
    /// The account to run as when started by root; made if it is missing.
    pub account: String,
    /// The program to install; usually the running one.
    pub program: PathBuf,
    /// The port of its sshd on loopback. None: the one used last time, which is then insisted on,
    /// else a free one.
    pub port: Option<u16>,
    /// The host's settings, written to `host.toml`; see [`crate::config::HostConfig`].
    pub host: toml::Table,
}

/// This machine, ready to be asked over SSH for as long as the value lives.
#[derive(Debug)]
pub struct LocalHost {
    /// Who it runs as.
    pub account: Account,
    /// The pinned host key, `SHA256:…`.
    pub host_key: String,
    /// The controller's private key.
    pub client_key: PathBuf,
    /// The host's state directory.
    pub state: PathBuf,
    /// The installed program.
    pub program: PathBuf,
    /// Its sshd.
    pub sshd: Sshd,
}

impl LocalHost {
    /// Ends its sshd and every connection to it. Sandboxes go on: they end by their deadlines or
    /// when they are torn down.
    pub async fn stop(mut self) {
        self.sshd.stop().await;
    }
}

/// Makes what is missing, starts the sshd, and returns once it answers. Can be repeated.
///
/// # Errors
/// [`LocalError`], which names the package of a missing program.
pub async fn enrol(
    settings: LocalSettings,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<LocalHost, LocalError> {
    place::check_base(&settings.base)?;
    progress("account of the host");
    let account = account::ensure(&settings.account).await?;
    progress("directories and program");
    let place = place::prepare(&settings, &account)?;
    progress("keys");
    let host_key = keys::ensure(&place.host_key()).await?;
    let client = keys::ensure(&place.client_key()).await?;
    place.authorize(&client)?;
    progress("cgroups");
    let cgroup = cgroup::delegate(&account);
    place.write_settings(settings.host, &cgroup, &account)?;
    progress("sshd on loopback");
    let sshd = Sshd::start(&place, &account, settings.port, &cgroup).await?;
    Ok(LocalHost {
        account,
        host_key: host_key.fingerprint,
        client_key: place.client_key(),
        state: place.state(),
        program: place.program(),
        sshd,
    })
}
