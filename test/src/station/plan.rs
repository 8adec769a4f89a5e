//! How a station is to be, and opening it.

use super::{Client, Controller, Ground, Station};
use crate::peers::GitServer;
use anyhow::Context;
use lazaret_api::public::{EnrollHost, Host, HostList};
use lazaret_domain::sandbox::Reach;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// See the module.
pub struct Plan {
    settings: Table,
    host: Table,
    host_enrolled: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let mut plan = Self {
            settings: Table::new(),
            host: Table::new(),
            host_enrolled: true,
        };
        // Software emulation, said out loud: the product never falls back to it by itself.
        for (section, key, value) in [
            ("host", "accel", Value::from("tcg")),
            ("sandbox", "memory", "512M".into()),
            ("sandbox", "disk", "2G".into()),
            ("sandbox", "max_duration", "20m".into()),
            ("log", "filter", "info".into()),
        ] {
            plan = plan.set(section, key, value);
        }
        // A template pays only where it is used more than once.
        plan.host_set("accel", "tcg")
            .host_set("templates", false)
            .host_set("spares", 0)
            .host_set("min_free_disk", "256M")
    }
}

impl Plan {
    /// Sets a key of the controller's settings.
    #[must_use]
    pub fn set(mut self, section: &str, key: &str, value: impl Into<Value>) -> Self {
        let section = self
            .settings
            .entry(section)
            .or_insert_with(|| Table::new().into());
        if let Value::Table(keys) = section {
            keys.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Sets a key of the host's settings.
    #[must_use]
    pub fn host_set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.host.insert(key.to_owned(), value.into());
        self
    }

    /// Repositories come from this server.
    #[must_use]
    pub fn git(self, server: &GitServer) -> Self {
        self.set("github", "git_url", server.base_url())
    }

    /// The operator names a host together with the address of a peer on this machine, which is the
    /// only way to a loopback address. Runs still have to ask for the host.
    #[must_use]
    pub fn pin(mut self, name: &str, peer: SocketAddr) -> Self {
        let mut entry = Table::new();
        entry.insert("host".into(), name.into());
        entry.insert("addresses".into(), vec![peer.ip().to_string()].into());
        let section = self
            .settings
            .entry("egress")
            .or_insert_with(|| Table::new().into());
        if let Value::Table(keys) = section
            && let Value::Array(pinned) = keys
                .entry("pinned")
                .or_insert_with(|| Value::Array(Vec::new()))
        {
            pinned.push(entry.into());
        }
        self
    }

    /// Opens the station without telling the controller of its host.
    #[must_use]
    pub fn without_host(mut self) -> Self {
        self.host_enrolled = false;
        self
    }

    /// Makes the host ready, starts the controller, makes a key, enrols the host and waits until
    /// the controller reaches it.
    ///
    /// # Errors
    /// What is missing or failed.
    pub async fn open(mut self) -> anyhow::Result<Station> {
        let program = program()?;
        let images = images()?;
        self.host.insert(
            "images_dir".into(),
            images.to_string_lossy().into_owned().into(),
        );
        let ground = Ground::prepare(&program, self.host.clone()).await?;
        // That emulation works here need not be proven anew by each test: the proof names QEMU, image
        // and boot, and one that does not fit is not used.
        if let Some(proof) = std::env::var_os("LAZARET_TEST_PROBE") {
            let kept = ground.state().join("probe-tcg.json");
            std::fs::copy(proof, &kept).context("take over the proof of LAZARET_TEST_PROBE")?;
            // The host's account reads it.
            std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o644))?;
        }
        let host_key = ground.host()?.host_key.clone();
        let user = ground.host()?.account.name.clone();
        let ssh_key = ground.host()?.client_key.to_string_lossy().into_owned();
        let dir = ground.dir().join("controller");
        std::fs::create_dir(&dir)?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))?;
        let plan = self.set("host", "ssh_key", ssh_key);
        let mut controller = Controller::prepare(&program, &dir, plan.settings)?;
        let token = controller.make_key("admin").await?;
        controller.start().await?;
        let client = Client::new(controller.url(), Some(token))?;
        let station = Station {
            controller,
            client,
            ground,
        };
        if plan.host_enrolled {
            let address = format!("{user}@127.0.0.1:{}", station.ground.port());
            let request = EnrollHost {
                name: Some("here".parse()?),
                address,
                host_key,
            };
            let _: Host = station.client.post("/api/v1/hosts", &request).await?.ok()?;
            super::until("the controller reaching its host", || async {
                let hosts: HostList = station.client.get("/api/v1/hosts").await.ok()?.ok().ok()?;
                hosts
                    .hosts
                    .iter()
                    .any(|host| host.reach == Reach::Reachable && host.accel.is_some())
                    .then_some(())
            })
            .await
            .with_context(|| station.controller.last_words())?;
        }
        Ok(station)
    }
}

/// The program under test.
///
/// # Errors
/// If it was not built.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let beside = || {
        Some(
            std::env::current_exe()
                .ok()?
                .ancestors()
                .nth(2)?
                .join("lazaret"),
        )
    };
    let program = std::env::var_os("LAZARET_BIN")
        .map(PathBuf::from)
        .or_else(beside);
    program.filter(|path| path.is_file()).context(
        "the program is missing: build it with `cargo build -p lazaret`, or name it in the variable LAZARET_BIN",
    )
}

/// The directory of guest images, which the host's account must be able to read.
fn images() -> anyhow::Result<PathBuf> {
    let dir = std::env::var_os("LAZARET_TEST_IMAGES")
        .map(PathBuf::from)
        .context(
            "LAZARET_TEST_IMAGES is not set: it names the directory that `make image` filled",
        )?;
    let found = std::fs::read_dir(&dir)
        .with_context(|| format!("read {}", dir.display()))?
        .flatten()
        .any(|entry| entry.path().join("manifest.json").is_file());
    anyhow::ensure!(
        found,
        "there is no guest image in {}: run `make image`",
        dir.display()
    );
    let dir = std::path::absolute(dir)?;
    for parent in dir.ancestors() {
        let mode = std::fs::metadata(parent)?.permissions().mode();
        anyhow::ensure!(
            mode & 0o001 != 0 || parent == Path::new("/"),
            "the host's account cannot pass through {} to the guest images",
            parent.display()
        );
    }
    Ok(dir)
}
