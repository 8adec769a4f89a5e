//! The controller as a process of its own.

use super::{Client, until};
use anyhow::Context;
use lazaret_api::public::NewKey;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::{Child, Command};

/// See the module. Dropping it kills the process.
pub struct Controller {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    url: String,
    child: Option<Child>,
}

impl Controller {
    /// Writes the settings, with a free port of loopback and a store of its own.
    pub(super) fn prepare(
        program: &Path,
        dir: &Path,
        mut settings: toml::Table,
    ) -> anyhow::Result<Self> {
        let listen = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut section = |name: &str, key: &str, value: String| {
            let section = settings
                .entry(name)
                .or_insert_with(|| toml::Table::new().into());
            if let toml::Value::Table(keys) = section {
                keys.entry(key).or_insert_with(|| value.into());
            }
        };
        section("server", "listen", listen.to_string());
        section(
            "store",
            "url",
            format!("sqlite:{}", dir.join("lazaret.db").display()),
        );
        let config = dir.join("lazaret.toml");
        std::fs::write(&config, settings.to_string())?;
        let url = format!("http://{listen}");
        Ok(Self {
            program: program.to_owned(),
            config,
            log: dir.join("log"),
            url,
            child: None,
        })
    }

    /// The base URL, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The settings file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// The program with an environment of nothing but a path.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", self.config.parent().unwrap_or(Path::new("/")))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Makes a key in the store and returns its token. The controller need not run.
    ///
    /// # Errors
    /// If the program fails.
    pub async fn make_key(&self, scope: &str) -> anyhow::Result<String> {
        let output = self
            .command()
            .args([
                "key", "create", "--scope", scope, "--name", "test", "--json", "--config",
            ])
            .arg(&self.config)
            .output()
            .await?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.success(),
            "`lazaret key create` failed ({}): {said}",
            output.status
        );
        let key: NewKey = serde_json::from_slice(&output.stdout).context("read the new key")?;
        Ok(key.token)
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// If it ends or does not answer; its last log lines are in the error.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let child = self
            .command()
            .args(["serve", "--config"])
            .arg(&self.config)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start the controller")?;
        self.child = Some(child);
        let client = Client::new(&self.url, None)?;
        let child = &mut self.child;
        let mut ended = || {
            child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten())
        };
        let answered = until("the controller answering", || {
            let over = ended();
            let client = &client;
            async move {
                match over {
                    Some(status) => Some(Err(anyhow::anyhow!("the controller ended: {status}"))),
                    None => client
                        .get("/healthz")
                        .await
                        .ok()
                        .filter(|answer| answer.status == 200)
                        .map(|_| Ok(())),
                }
            }
        })
        .await;
        answered
            .and_then(|answer| answer)
            .with_context(|| self.last_words())
    }

    /// Kills it at once, as a crash would.
    ///
    /// # Errors
    /// If there is nothing to kill.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("the controller does not run")?;
        child.kill().await.context("kill the controller")
    }

    /// Ends it as the system's service manager would, and waits for that.
    ///
    /// # Errors
    /// If it does not run, or does not end well.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("the controller does not run")?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.context("it has ended")?, rustix::process::Signal::TERM)?;
        let status = tokio::time::timeout(super::PATIENCE, child.wait())
            .await
            .context("the controller did not end")??;
        anyhow::ensure!(
            status.success(),
            "the controller ended with {status}: {}",
            self.last_words()
        );
        Ok(())
    }

    /// The end of its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!(
            "the controller's log ends with:\n{}",
            lines[lines.len().saturating_sub(40)..].join("\n")
        )
    }
}
