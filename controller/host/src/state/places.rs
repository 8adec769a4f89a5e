//! The places of a host: it holds so many awake sandboxes at once, and any number that sleep, which
//! take only disk.

use super::{State, StateLock, internal};
use crate::process::Identity;
use crate::shim::{SHIM, STATUS};
use crate::state::SandboxDir;
use lazaret_api::host::Sandbox;
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, SandboxId};

/// In the directory of one that sleeps and is being woken: it has its place already.
pub(crate) const WAKING: &str = "waking";

impl State {
    /// The directories of all sandboxes whose shim lives. One whose shim is dead holds nothing.
    pub(crate) fn living(&self) -> Result<Vec<SandboxDir>, Denial> {
        let ids = self
            .ids()
            .map_err(|error| internal("count the sandboxes", &error))?;
        let alive = |dir: &SandboxDir| dir.read::<Identity>(SHIM).is_some_and(|s| s.is_alive());
        Ok(ids
            .iter()
            .map(|id| self.sandbox(id))
            .filter(alive)
            .collect())
    }

    /// Refuses so many more sandboxes where they have no places. The lock keeps two from the last place.
    ///
    /// # Errors
    /// `sandbox_cap`, to be asked again later.
    pub(crate) fn has_places(&self, more: usize, _lock: &StateLock) -> Result<(), Denial> {
        let most = self.config().max_sandboxes;
        let taken = self.living()?.iter().filter(|dir| is_awake(dir)).count();
        if taken.saturating_add(more) <= usize::try_from(most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        let text = format!("this host runs at most {most} sandboxes at once");
        Err(Denial::new(DenialCode::SandboxCap, text).retry_after(30))
    }

    /// Takes a place for one that is to be woken; it is given back when this is dropped, and by then
    /// the sandbox is awake or sleeps on.
    ///
    /// # Errors
    /// `sandbox_cap` if there is none.
    pub(crate) async fn place_for_waking(&self, id: &SandboxId) -> Result<Waking, Denial> {
        let lock = self.lock().await?;
        self.has_places(1, &lock)?;
        let dir = self.sandbox(id);
        dir.write(WAKING, &())
            .map_err(|error| internal("take a place for the sandbox", &error))?;
        Ok(Waking(dir))
    }
}

/// A place that is taken for one that is being woken.
pub(crate) struct Waking(SandboxDir);

impl Drop for Waking {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0.join(WAKING));
    }
}

fn is_awake(dir: &SandboxDir) -> bool {
    let asleep = |sandbox: &Sandbox| sandbox.state == SandboxState::Asleep;
    !dir.read(STATUS).is_some_and(|sandbox| asleep(&sandbox)) || dir.join(WAKING).exists()
}
