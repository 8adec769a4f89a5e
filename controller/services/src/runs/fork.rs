//! Forking a run: copies of its sandbox as it is at one moment, each with a run of its own.
//!
//! The host makes the copies first, and then their runs are accepted. Should the controller die in
//! between, no run knows the copies, and they are removed as strays ([`crate::reconcile`]).

use super::accept::{accept_all, cap};
use super::{Runs, view, within};
use crate::again::{digest, other_request};
use crate::driver;
use crate::ports::store::{NewRun, Parent, RunPlan, RunRecord};
use crate::{IdempotencyKey, Principal};
use lazaret_api::host::{Copied, MAX_COPIES};
use lazaret_api::public::{CreateRun, ForkRun, Forked, Scope};
use lazaret_domain::{Denial, RunId, SandboxId};

impl Runs {
    /// Copies a run, its sandbox with memory and disk, and gives each copy a command of its own. The
    /// run itself stands still for a moment and goes on. Needs `run`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `invalid_request`, `idempotency_mismatch`,
    /// `sandbox_cap` if not all of them have a place, `disk_full`, and why the host cannot be asked. Nothing was made then.
    pub async fn fork(
        &self,
        by: &Principal,
        run: &RunId,
        key: Option<IdempotencyKey>,
        request: ForkRun,
    ) -> Result<Forked, Denial> {
        by.require(Scope::Run)?;
        let most = u32::try_from(MAX_COPIES).unwrap_or(u32::MAX);
        let n = within("n", request.n.unwrap_or(1), most)?;
        let digest = digest(&(run, &request))?;
        // Who asks the same at the same time gets what was made, and no copies of its own.
        let _turn = self.core.forks.turn(run).await;
        let (mut runs, mut names) = (Vec::new(), Vec::new());
        for number in 1..=n {
            let name = key.as_ref().map(|key| key.of_copy(number));
            match self.made_before(by, name.as_ref(), &digest).await? {
                Some(record) => runs.push(view::run(&self.core, record)),
                None => names.push(name.map(|name| (name, digest.clone()))),
            }
        }
        if names.is_empty() {
            return Ok(Forked {
                runs,
                pause_ms: None,
            });
        }
        let source = self.record(by, run).await?;
        self.workspace(&source)?;
        let n = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let waking = self.core.places.waking();
        let awake = self.core.ports.store.counts(&waking).await?.holding;
        if awake.saturating_add(n) > self.core.settings.max_sandboxes {
            return Err(cap(awake));
        }
        let now = self.core.now();
        let ids: Vec<_> = (0..n)
            .map(|_| SandboxId::make(now, self.core.ports.random.bits()))
            .collect();
        let (source, copied) = self.copies(by, source, &ids).await?;
        tracing::info!(%run, copies = n, pause_ms = copied.pause_ms, by = %by.key, "run forked");
        let new = ids.iter().zip(names);
        let new = new.map(|(id, name)| self.copy(by, &source, id, &request, name));
        let accepted = accept_all(&self.core, new.collect()).await;
        if accepted.is_err() {
            // Copies that no run knows.
            self.discard(&source, &ids).await;
        }
        for ((record, new), id) in accepted?.into_iter().zip(&ids) {
            if new {
                tracing::info!(run = %record.id, sandbox = %id, parent = %run, "copy accepted");
            } else {
                // Whoever asked the same had their turn before; a safeguard, so that no copy is without a run.
                self.discard(&source, std::slice::from_ref(id)).await;
            }
            runs.push(view::run(&self.core, record));
        }
        Ok(Forked {
            runs,
            pause_ms: copied.pause_ms,
        })
    }

    async fn made_before(
        &self,
        by: &Principal,
        name: Option<&IdempotencyKey>,
        digest: &str,
    ) -> Result<Option<RunRecord>, Denial> {
        let Some(name) = name else {
            return Ok(None);
        };
        match self.core.ports.store.accepted_before(&by.key, name).await? {
            None => Ok(None),
            Some((before, record)) if before == digest => Ok(Some(record)),
            Some(_) => Err(other_request()),
        }
    }

    async fn copies(
        &self,
        by: &Principal,
        mut source: RunRecord,
        ids: &[SandboxId],
    ) -> Result<(RunRecord, Copied), Denial> {
        let mut tries = 0;
        loop {
            let link = self.workspace(&source)?;
            tries += 1;
            match link.copies(source.fence, &source.plan.sandbox, ids).await {
                Err(denial) if tries < 3 => {
                    source = self.once_more(by, &source.id, denial).await?;
                }
                answer => return Ok((source, answer?)),
            }
        }
    }

    /// The run of a copy.
    fn copy(
        &self,
        by: &Principal,
        source: &RunRecord,
        sandbox: &SandboxId,
        request: &ForkRun,
        idempotency: Option<(IdempotencyKey, String)>,
    ) -> NewRun {
        let now = self.core.now();
        let plan = RunPlan {
            request: CreateRun {
                command: request.command.clone(),
                task: None,
                ..source.plan.request.clone()
            },
            egress: source.plan.egress.clone(),
            host: source.plan.host.clone(),
            sandbox: sandbox.clone(),
            spec: source.plan.spec.copied(&source.plan.sandbox),
            parent: Some(Parent {
                run: source.id.clone(),
                base: source.facts.base.clone(),
            }),
        };
        NewRun {
            id: RunId::make(now, self.core.ports.random.bits()),
            by: by.key.clone(),
            at: now,
            plan,
            idempotency,
            first_step: driver::FIRST_STEP,
        }
    }

    async fn discard(&self, source: &RunRecord, ids: &[SandboxId]) {
        let Some(link) = self.core.hosts.link(&source.plan.host) else {
            return;
        };
        for id in ids {
            if let Err(denial) = link.destroy(source.fence, id).await {
                tracing::warn!(sandbox = %id, %denial, "a copy without a run is not removed yet");
            }
        }
    }
}
