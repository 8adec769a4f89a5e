//! One fork: QEMU on the template's memory, with a copy of its disk, loaded and told who it is.
//!
//! A fork that does not confirm who it is within its deadline is destroyed, whatever it may be; then
//! another is tried, and then the sandbox is booted.

use super::super::guest::Guest;
use super::{DISK, Driver, Life, millis};
use crate::state::internal;
use crate::template::{self, Key, Template};
use crate::vmm::{self, Control, Holds, Machine, Origin};
use lazaret_api::host::BootStages;
use lazaret_domain::Denial;
use std::fs::File;
use std::time::Duration;
use tokio::time::Instant;

/// How long a fork may take to confirm its adoption.
const DEADLINE: Duration = Duration::from_secs(20);
/// Forks that are tried.
const TRIES: u8 = 2;

impl Driver {
    /// A guest that was forked and adopted, if there is a template and it works.
    pub(super) async fn forked(
        &self,
        machine: &Machine,
        life: &mut Option<Life>,
        asked_at: Instant,
    ) -> Option<Guest> {
        let template = self.template(machine).await?;
        let machine = Machine {
            origin: Origin::Fork(template.memory()),
            ..machine.clone()
        };
        for attempt in 1..=TRIES {
            self.change(|sandbox| {
                sandbox.stages = BootStages {
                    tries: attempt,
                    ..BootStages::default()
                }
            });
            let fork = self.fork(&machine, &template, life, asked_at);
            let failure = match tokio::time::timeout(DEADLINE, fork).await {
                Ok(Ok(guest)) => {
                    self.stage(|stages| stages.forked = true);
                    return Some(guest);
                }
                Ok(Err(denial)) => denial.to_string(),
                Err(_) => format!("it did not confirm its adoption within {DEADLINE:?}"),
            };
            if let Some(failed) = life.take() {
                failed.end().await;
            }
            tracing::warn!(attempt, failure, "a fork failed");
        }
        tracing::warn!("no fork came up; the sandbox is booted");
        let state = self.state.clone();
        let _ = tokio::task::spawn_blocking(move || template.discard(&state)).await;
        None
    }

    pub(super) async fn template(&self, machine: &Machine) -> Option<Template> {
        if !self.state.config().templates {
            return None;
        }
        let spec = &self.record.spec;
        let key = Key::of(&self.state, &spec.image, machine, spec.disk)
            .inspect_err(|denial| tracing::warn!(%denial, "no template can be looked for"))
            .ok()?;
        let state = self.state.clone();
        tokio::task::spawn_blocking(move || template::find(&state, &key))
            .await
            .ok()?
    }

    async fn fork(
        &self,
        machine: &Machine,
        template: &Template,
        life: &mut Option<Life>,
        asked_at: Instant,
    ) -> Result<Guest, Denial> {
        self.copy_template_disk(template)?;
        let (life, control) = self.launch(machine, life, asked_at).await?;
        self.load_template(life, template).await?;
        self.stage(|stages| stages.running_ms = Some(millis(asked_at)));
        tokio::select! {
            guest = self.claim(control, asked_at) => guest,
            ended = life.vmm_ended() => Err(ended),
        }
    }

    /// The disk of a fork: the template's, copied.
    pub(super) fn copy_template_disk(&self, template: &Template) -> Result<(), Denial> {
        vmm::copy_disk(&template.disk(), &self.dir.join(DISK))
    }

    /// Has a machine that waits for it go on from where the template was frozen.
    pub(super) async fn load_template(
        &self,
        life: &mut Life,
        template: &Template,
    ) -> Result<(), Denial> {
        let frozen = File::open(template.state())
            .map_err(|error| internal("open a template's state", &error))?;
        life.vmm
            .load(&frozen, Holds::Devices)
            .await
            .map_err(|error| internal("load a template", &error))?;
        life.vmm
            .go_on()
            .await
            .map_err(|error| internal("run a fork", &error))
    }

    /// Nothing is asked of a fork before it has entropy and a name of its own.
    async fn claim(&self, control: Control, asked_at: Instant) -> Result<Guest, Denial> {
        let guest = Guest::through(&control).await?;
        self.adopt(&guest, asked_at).await?;
        Ok(guest)
    }
}
