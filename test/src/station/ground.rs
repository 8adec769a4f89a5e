//! This machine as a host that belongs to one test.

use anyhow::Context;
use lazaret_host::local::{self, LocalHost, LocalSettings};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Numbers the grounds of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// See the module. Dropping it ends the sshd and whatever still runs as its account, and removes
/// account, cgroups and directory.
pub struct Ground {
    settings: LocalSettings,
    host: Option<LocalHost>,
    port: u16,
    dir: TempDir,
}

impl Ground {
    /// Makes this machine a host that runs `program` as its host side.
    ///
    /// # Errors
    /// As [`local::enrol`].
    pub async fn prepare(program: &Path, host: toml::Table) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("lz")
            .tempdir()
            .context("make a directory for the test")?;
        // The account passes through it to its state directory.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let settings = LocalSettings {
            base: dir.path().join("host"),
            account: format!("lzt{}-{number}", std::process::id()),
            program: program.to_owned(),
            port: None,
            host,
        };
        let mut ground = Self {
            settings,
            host: None,
            port: 0,
            dir,
        };
        ground.start_sshd().await?;
        ground.port = ground.host()?.sshd.port();
        Ok(ground)
    }

    /// The test's directory, removed with the ground.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The host, while its sshd runs.
    ///
    /// # Errors
    /// If its sshd was stopped.
    pub fn host(&self) -> anyhow::Result<&LocalHost> {
        self.host
            .as_ref()
            .context("the sshd of this test was stopped")
    }

    /// The account the host runs as.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.settings.account
    }

    /// The host's state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.settings.base.join("state")
    }

    /// The port of its sshd, also while that is stopped.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the sshd and its connections.
    pub async fn stop_sshd(&mut self) {
        if let Some(host) = self.host.take() {
            host.stop().await;
        }
    }

    /// Starts the sshd again, on the same port with the same keys.
    ///
    /// # Errors
    /// As [`local::enrol`].
    pub async fn start_sshd(&mut self) -> anyhow::Result<()> {
        let settings = self.settings.clone();
        self.host = Some(
            local::enrol(settings, &mut |step| {
                tracing::debug!(step, "making the host ready");
            })
            .await?,
        );
        Ok(())
    }

    /// The processes that run as the host's account, with their command lines. Empty where the
    /// account is not the test's own.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, String)> {
        self.own_uid().map(processes_of).unwrap_or_default()
    }

    /// The uid of the account, if it was made for this test.
    fn own_uid(&self) -> Option<u32> {
        let uid = std::fs::metadata(self.state()).ok()?.uid();
        (uid != 0 && uid != rustix::process::geteuid().as_raw()).then_some(uid)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.host = None;
        if let Some(uid) = self.own_uid() {
            // A process can start another between the look and the kill.
            for _ in 0..20 {
                let left = processes_of(uid);
                if left.is_empty() {
                    break;
                }
                for (pid, _) in left {
                    if let Some(pid) = i32::try_from(pid)
                        .ok()
                        .and_then(rustix::process::Pid::from_raw)
                    {
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                        let _ = rustix::process::waitpid(
                            Some(pid),
                            rustix::process::WaitOptions::NOHANG,
                        );
                    }
                }
            }
            remove_account(&self.settings.account);
        }
    }
}

fn processes_of(uid: u32) -> Vec<(u32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let ours = entry.metadata().ok()?.uid() == uid;
            // A zombie has no command line and holds nothing any more.
            let command = std::fs::read(entry.path().join("cmdline"))
                .ok()
                .filter(|text| !text.is_empty())?;
            ours.then(|| {
                (
                    pid,
                    String::from_utf8_lossy(&command)
                        .replace('\0', " ")
                        .trim()
                        .to_owned(),
                )
            })
        })
        .collect()
}

/// Best effort: what cannot be removed is said, and the next test has another name anyway.
fn remove_account(name: &str) {
    for controller in ["memory", "pids", "cpu", ""] {
        remove_cgroups(&Path::new("/sys/fs/cgroup").join(controller).join(name));
    }
    for _ in 0..20 {
        let removed = Command::new("userdel")
            .arg("--force")
            .arg(name)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output();
        match removed {
            Ok(output) if String::from_utf8_lossy(&output.stderr).contains("cannot lock") => {}
            _ => break,
        }
    }
}

/// Cgroups are removed from the leaves up; their files cannot be removed.
fn remove_cgroups(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
}
