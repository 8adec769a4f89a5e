//! Putting a run's sandbox to sleep, waking it, and keeping it.
//!
//! Reading never wakes a sandbox; acting in it does ([`Runs::once_more`]). The host decides; what it then
//! says of the sandbox is written down before the answer goes out.

use super::places::Place;
use super::{Runs, view};
use crate::Principal;
use crate::driver::session::Session;
use crate::driver::{self, Want};
use crate::ports::host_link::HostLink;
use crate::ports::store::RunRecord;
use lazaret_api::host::{Sandbox, WakeFrom};
use lazaret_api::public::{Run, Scope};
use lazaret_domain::{Denial, DenialCode, Fence, RunId};
use std::future::Future;
use std::sync::Arc;

impl Runs {
    /// Puts the run's sandbox to sleep: its memory is saved, and it gives its place back. Idempotent.
    /// Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `sandbox_busy` while anything runs in it,
    /// `disk_full`, and why the host cannot be asked.
    pub async fn sleep(&self, by: &Principal, run: &RunId) -> Result<Run, Denial> {
        let record = self.acting(by, run).await?;
        let id = record.plan.sandbox.clone();
        let put = |link: Arc<dyn HostLink>, fence| {
            let id = id.clone();
            async move { link.sleep(fence, &id).await }
        };
        self.rest(by, record, put).await
    }

    /// Wakes the run's sandbox. Idempotent. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `sandbox_cap`, `wake_failed` and
    /// `saved_state_unfit`, after which it still sleeps, and why the host cannot be asked.
    pub async fn wake(&self, by: &Principal, run: &RunId, from: WakeFrom) -> Result<Run, Denial> {
        let record = self.acting(by, run).await?;
        let _place = match record.facts.sleeps() {
            true => Some(self.place(&record.id).await?),
            false => None,
        };
        let id = record.plan.sandbox.clone();
        let put = |link: Arc<dyn HostLink>, fence| {
            let id = id.clone();
            async move { link.wake(fence, &id, from).await }
        };
        self.rest(by, record, put).await
    }

    /// Exempts the run's sandbox from its sleep TTL, or no longer. Idempotent. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, and why the host cannot be asked.
    pub async fn keep(&self, by: &Principal, run: &RunId, keep: bool) -> Result<Run, Denial> {
        let record = self.acting(by, run).await?;
        let id = record.plan.sandbox.clone();
        let put = |link: Arc<dyn HostLink>, fence| {
            let id = id.clone();
            async move { link.keep(fence, &id, keep).await }
        };
        self.rest(by, record, put).await
    }

    /// The run as it is now, for trying once more what its host refused: with a newer fence, or with its
    /// sandbox awake. What is known of a sandbox that fell asleep by itself may be old, so the host is
    /// asked first.
    ///
    /// # Errors
    /// The refusal, if trying again cannot help; why the sandbox does not wake.
    pub(super) async fn once_more(
        &self,
        by: &Principal,
        run: &RunId,
        refused: Denial,
    ) -> Result<RunRecord, Denial> {
        match refused.code {
            // The run's driver was renewed in between.
            DenialCode::StaleFence => {}
            DenialCode::SandboxAsleep => {
                Box::pin(self.wake(by, run, WakeFrom::Memory)).await?;
            }
            _ => return Err(refused),
        }
        self.record(by, run).await
    }

    async fn acting(&self, by: &Principal, run: &RunId) -> Result<RunRecord, Denial> {
        by.require(Scope::Run)?;
        self.record(by, run).await
    }

    /// The cap counts sandboxes that are awake, over all hosts; each host has its own besides.
    async fn place(&self, run: &RunId) -> Result<Place<'_>, Denial> {
        let places = &self.core.places;
        let _turn = places.turn().await;
        let place = places.give(run);
        let awake = self
            .core
            .ports
            .store
            .counts(&places.waking())
            .await?
            .holding;
        let most = self.core.settings.max_sandboxes;
        if awake <= most {
            return Ok(place);
        }
        let others = awake.saturating_sub(1);
        let why = format!(
            "{others} of at most {most} sandboxes are awake or being woken (sandbox.max_sandboxes); put one to sleep or tear one down"
        );
        Err(Denial::new(DenialCode::SandboxCap, why).retry_after(15))
    }

    /// Has the host do something with the sandbox, and writes down what it is then.
    async fn rest<A>(
        &self,
        by: &Principal,
        mut record: RunRecord,
        put: impl Fn(Arc<dyn HostLink>, Fence) -> A + Send,
    ) -> Result<Run, Denial>
    where
        A: Future<Output = Result<Sandbox, Denial>> + Send,
    {
        let run = record.id.clone();
        let mut tries = 0;
        let sandbox = loop {
            let link = self.workspace(&record)?;
            tries += 1;
            match put(link, record.fence).await {
                // The run's driver was renewed in between; the newer fence will do.
                Err(denial) if denial.code == DenialCode::StaleFence && tries < 3 => {
                    record = self.record(by, &run).await?;
                }
                answer => break answer?,
            }
        };
        tracing::info!(%run, by = %by.key, state = ?sandbox.state, kept = sandbox.kept, "sandbox at rest or awake");
        let known = Box::new(Session::sandbox_facts(&sandbox));
        driver::ask(&self.core, &run, Want::Known(known)).await?;
        Ok(view::run(&self.core, self.record(by, &run).await?))
    }
}
