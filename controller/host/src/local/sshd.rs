//! The host's own sshd: on loopback, for one account, with one key.

use super::LocalError;
use super::account::Account;
use super::cgroup::Cgroup;
use super::place::{Place, write_file};
use super::tool::SSHD;
use super::{forerunner, port};
use crate::process::Identity;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

/// How long the sshd may take to answer.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// How long it may take to end before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A running sshd. Dropping it ends it and the connections it serves.
#[derive(Debug)]
pub struct Sshd {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Sshd {
    /// Writes its configuration, starts it, and returns once it answers.
    pub(super) async fn start(
        place: &Place,
        account: &Account,
        port: Option<u16>,
        cgroup: &Cgroup,
    ) -> Result<Self, LocalError> {
        let program = SSHD.find()?;
        if rustix::process::geteuid().is_root() {
            // Where sshd confines its unprivileged half; the distribution's own service makes it.
            std::fs::create_dir_all("/run/sshd").map_err(LocalError::io("make /run/sshd"))?;
        }
        let config = place.ssh("sshd_config");
        forerunner::end(&place.ssh("sshd.pid"), &config).await?;
        let remembered = place.ssh("port");
        let port = port::choose(port, &remembered).await?;
        write_file(
            &config,
            configuration(place, account, port).as_bytes(),
            0o600,
        )?;
        let log = place.ssh("sshd.log");
        write_file(&log, b"", 0o600)?;
        let child = Command::new(program)
            .args([
                "-D".as_ref(),
                "-f".as_ref(),
                config.as_os_str(),
                "-E".as_ref(),
                log.as_os_str(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(LocalError::io("start sshd"))?;
        let mut sshd = Self { child, port, log };
        if let Some(pid) = sshd.child.id() {
            cgroup.take_in(pid);
        }
        match tokio::time::timeout(START_DEADLINE, sshd.answers()).await {
            Ok(Ok(())) => {
                // Only now: a port that was never in use must not be insisted on.
                port::remember(&remembered, port)?;
                Ok(sshd)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(LocalError::Sshd {
                said: format!("no answer; its log: {}", sshd.last_words()),
            }),
        }
    }

    /// The port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Ends it and the connections it serves, and waits for that.
    pub async fn stop(&mut self) {
        self.terminate();
        if tokio::time::timeout(STOP_DEADLINE, self.child.wait())
            .await
            .is_err()
        {
            tracing::warn!("sshd did not end when asked to and is killed");
            if let Err(error) = self.child.kill().await {
                tracing::warn!(%error, "sshd could not be killed");
            }
        }
    }

    /// Cuts every connection; the sshd goes on taking new ones.
    pub fn cut_connections(&self) {
        for connection in self
            .pid_now()
            .map(Identity::children_of)
            .unwrap_or_default()
        {
            connection.ask_to_end();
        }
    }

    fn terminate(&self) {
        // The connections' processes are found by their parent, so they go first.
        self.cut_connections();
        if let Some(sshd) = self.pid_now().and_then(|pid| Identity::of(pid).ok()) {
            sshd.ask_to_end();
        }
    }

    /// The pid while it is not reaped, and so surely still its own.
    fn pid_now(&self) -> Option<i32> {
        self.child.id().and_then(|pid| pid.try_into().ok())
    }

    async fn answers(&mut self) -> Result<(), LocalError> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(LocalError::Sshd {
                    said: format!("{status}; its log: {}", self.last_words()),
                });
            }
            if let Ok(mut stream) =
                tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await
            {
                let mut greeting = [0; 4];
                if stream.read_exact(&mut greeting).await.is_ok() && &greeting == b"SSH-" {
                    return Ok(());
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// `StrictModes` would refuse a parent such as `/tmp`; [`super::place`] has looked at the parents
/// more closely than it does.
fn configuration(place: &Place, account: &Account, port: u16) -> String {
    format!(
        "# Written anew at every start.\n\
         ListenAddress 127.0.0.1\n\
         Port {port}\n\
         HostKey {host_key}\n\
         PidFile {pid}\n\
         AuthorizedKeysFile {authorized}\n\
         AllowUsers {user}\n\
         AuthenticationMethods publickey\n\
         PubkeyAuthentication yes\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         PermitEmptyPasswords no\n\
         PermitRootLogin no\n\
         PermitTTY no\n\
         PermitUserRC no\n\
         PermitUserEnvironment no\n\
         DisableForwarding yes\n\
         PermitTunnel no\n\
         UsePAM no\n\
         UseDNS no\n\
         PrintMotd no\n\
         PrintLastLog no\n\
         StrictModes {strict}\n\
         LoginGraceTime 20\n\
         MaxAuthTries 3\n\
         MaxSessions 4\n\
         MaxStartups 32:30:64\n\
         ClientAliveInterval 5\n\
         ClientAliveCountMax 3\n\
         LogLevel VERBOSE\n",
        host_key = place.host_key().display(),
        pid = place.ssh("sshd.pid").display(),
        authorized = place.authorized_keys().display(),
        user = account.name,
        strict = if place.shared_parent { "no" } else { "yes" },
    )
}
