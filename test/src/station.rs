//! The product on this machine, for one test.
//!
//! A [`Ground`] is this machine as a host, made ready as `lazaret up` does it, with an account, an
//! sshd, keys and a directory that no other test shares. A [`Station`] adds a controller: the real
//! program as a process of its own, which a test can kill and start again.
//!
//! ```no_run
//! # use lazaret_test::peers::GitServer;
//! # use lazaret_test::station::Station;
//! # async fn example() -> anyhow::Result<()> {
//! let git = GitServer::start().await?;
//! git.commit("acme/demo", &[("Makefile", "test:\n\techo fine\n")]).await?;
//! let station = Station::plan().git(&git).open().await?;
//! let run = station.delegate(&["make", "test"], Some("acme/demo")).await?;
//! let run = station.wait_done(&run.run).await?;
//! assert_eq!(run.exit_code, Some(0));
//! station.teardown(&run.run).await?;
//! station.leftovers().await?.assert_none();
//! # Ok(())
//! # }
//! ```
//!
//! Guests boot from the images in the directory that `LAZARET_TEST_IMAGES` names; the program is
//! the one `LAZARET_BIN` names, else the one built beside the test.

mod client;
mod controller;
mod ground;
mod leftovers;
mod plan;
mod verbs;

pub use client::{Answer, Client};
pub use controller::Controller;
pub use ground::Ground;
pub use leftovers::Leftovers;
pub use plan::Plan;

use std::time::Duration;

/// What a test waits for at most. Under software emulation on a busy machine a boot takes a while;
/// only a defect takes so long.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// How often another process is asked whether it has come so far.
const ASK_EVERY: Duration = Duration::from_millis(25);

/// A controller and its host. Dropping it ends and removes all of it.
pub struct Station {
    // Fields are dropped in this order: the controller before the host it talks to.
    controller: Controller,
    client: Client,
    ground: Ground,
}

impl Station {
    /// A station whose settings can be changed before it is opened.
    #[must_use]
    pub fn plan() -> Plan {
        Plan::default()
    }

    /// The controller's process.
    #[must_use]
    pub fn controller(&mut self) -> &mut Controller {
        &mut self.controller
    }

    /// The host.
    #[must_use]
    pub fn ground(&mut self) -> &mut Ground {
        &mut self.ground
    }

    /// A client with the key of the station, whose scope is `admin`.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What is left on the host, once that no longer changes for the better or is nothing.
    ///
    /// # Errors
    /// If the host's directories cannot be read.
    pub async fn leftovers(&self) -> anyhow::Result<Leftovers> {
        Leftovers::settle(&self.ground).await
    }
}

/// Asks again and again until there is an answer.
///
/// # Errors
/// After [`PATIENCE`], naming what was waited for.
pub async fn until<T, F>(what: &str, mut ask: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Option<T>>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "{what} did not happen within {PATIENCE:?}"
        );
        tokio::time::sleep(ASK_EVERY).await;
    }
}
