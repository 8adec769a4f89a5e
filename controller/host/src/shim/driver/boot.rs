//! One boot: QEMU, console, gateway, and the guest agent that is told who it is.

use super::super::VMM;
use super::super::guest::Guest;
use super::{Driver, Life, millis};
use crate::gateway::{self, GatewayConfig};
use crate::vmm::{self, Cage, Control, Machine};
use lazaret_domain::{Denial, DenialCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

impl Driver {
    /// One try.
    pub(super) async fn boot(
        &self,
        machine: &Machine,
        life: &mut Option<Life>,
        asked_at: Instant,
    ) -> Result<Guest, Denial> {
        let (life, control) = self.launch(machine, life, asked_at).await?;
        tokio::select! {
            guest = self.greet(control, asked_at) => guest,
            ended = life.vmm_ended() => Err(ended),
        }
    }

    /// Starts QEMU with console and gateway. What runs is in `life` then.
    pub(super) async fn launch<'a>(
        &self,
        machine: &Machine,
        life: &'a mut Option<Life>,
        asked_at: Instant,
    ) -> Result<(&'a mut Life, Control), Denial> {
        let (life, control) = self.launch_unplugged(machine, life, asked_at).await?;
        self.plug(life);
        Ok((life, control))
    }

    /// Starts QEMU with its console; what its network card sends goes nowhere before [`Self::plug`].
    pub(super) async fn launch_unplugged<'a>(
        &self,
        machine: &Machine,
        life: &'a mut Option<Life>,
        asked_at: Instant,
    ) -> Result<(&'a mut Life, Control), Denial> {
        self.console.start_over();
        let config = self.state.config();
        let name = self.dir.cage(&self.record.id);
        let cage = Cage::make(&config.cgroup, name.as_str(), machine.memory, machine.cpus);
        self.stage(|stages| stages.shim_ms = Some(millis(asked_at)));
        let key = self.key(machine).ok();
        let (vmm, lines) = vmm::start(machine, self.dir.path(), cage).await?;
        self.dir
            .write(VMM, &vmm.identity)
            .map_err(|error| crate::state::internal("write who QEMU is", &error))?;
        self.stage(|stages| stages.vmm_ms = Some(millis(asked_at)));
        self.change(|sandbox| sandbox.confinement = vmm.confinement.clone());
        let console = self.console.clone();
        let reading = tokio::spawn(async move { console.read(lines.console).await });
        let life = life.insert(Life {
            vmm,
            reading,
            cable: Some(lines.cable),
            gateway: None,
            stop: CancellationToken::new(),
            key,
        });
        Ok((life, lines.control))
    }

    /// Plugs the sandbox's network card into its gateway.
    pub(super) fn plug(&self, life: &mut Life) {
        let Some(cable) = life.cable.take() else {
            return;
        };
        let config = GatewayConfig {
            sandbox: self.record.id.clone(),
            policy: self.record.spec.egress.clone(),
            uplink: self.state.uplink_socket(),
        };
        let gateway = gateway::serve(cable, config, self.egress.clone(), life.stop.clone());
        life.gateway = Some(tokio::spawn(async move {
            // A sandbox without its gateway reaches nothing: that is the safe side.
            let end = gateway.await;
            tracing::info!(%end, "the gateway has ended");
        }));
    }

    /// Waits for the guest agent, and tells it who it is.
    async fn greet(&self, control: Control, asked_at: Instant) -> Result<Guest, Denial> {
        let gone = |_| Denial::new(DenialCode::BootFailed, "the console was lost");
        let mut seen = self.console.seen();
        let flooded = || Denial::new(DenialCode::BootFailed, "the guest flooded its console");
        if seen
            .wait_for(|seen| seen.up || seen.ready || seen.flooded)
            .await
            .map_err(gone)?
            .flooded
        {
            return Err(flooded());
        }
        self.stage(|stages| stages.kernel_ms = Some(millis(asked_at)));
        if seen
            .wait_for(|seen| seen.ready || seen.flooded)
            .await
            .map_err(gone)?
            .flooded
        {
            return Err(flooded());
        }
        let guest = Guest::through(&control).await?;
        self.adopt(&guest, asked_at).await?;
        Ok(guest)
    }

    /// Tells the guest who it is. It does nothing before that.
    pub(super) async fn adopt(&self, guest: &Guest, asked_at: Instant) -> Result<(), Denial> {
        let adopted = guest
            .adopt(&self.record.id, &self.record.spec.git_base_url)
            .await?;
        guest.right_clock(adopted.wall_clock_ns).await?;
        self.stage(|stages| stages.agent_ms = Some(millis(asked_at)));
        self.change(|sandbox| {
            sandbox.boot_id = Some(adopted.boot_id);
            sandbox.kernel = Some(adopted.kernel);
        });
        Ok(())
    }
}
