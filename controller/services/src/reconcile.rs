//! Comparing hosts with the store, again and again, in small steps that do no harm when repeated.
//!
//! A sandbox on a host is ours to keep exactly while a run holds it. One whose run holds it no more is
//! removed at once (a removal that was believed done was not); one that no run ever knew is left alone
//! for a grace time, then noted and removed. Removals that a run still waits for are its driver's.

use crate::core::{Core, millis_between};
use crate::ports::host_link::{HostLink, LinkState};
use lazaret_api::host::Sandbox;
use lazaret_domain::{Denial, HostName};
use std::sync::Arc;

/// Reconciles until the controller stops.
pub(crate) async fn forever(core: Arc<Core>) {
    loop {
        for (name, link) in core.hosts.links() {
            if *link.state().borrow() != LinkState::Up {
                continue;
            }
            if let Err(denial) = host(&core, &name, &*link).await {
                tracing::warn!(host = %name, %denial, "a host could not be compared with the store");
            }
        }
        tokio::time::sleep(core.settings.pace.reconcile).await;
    }
}

async fn host(core: &Core, name: &HostName, link: &dyn HostLink) -> Result<(), Denial> {
    for sandbox in link.sandboxes().await? {
        if let Some(why) = stray(core, name, &sandbox).await? {
            tracing::warn!(host = %name, sandbox = %sandbox.id, why, "a stray sandbox is removed");
            let fence = core.ports.store.fence().await?;
            // One that cannot be removed must not shield those after it.
            if let Err(denial) = link.destroy(fence, &sandbox.id).await {
                tracing::warn!(host = %name, sandbox = %sandbox.id, %denial, "a stray sandbox is not removed yet");
            }
        }
    }
    Ok(())
}

/// Why a sandbox on a host is to be removed, if it is.
async fn stray(
    core: &Core,
    name: &HostName,
    sandbox: &Sandbox,
) -> Result<Option<&'static str>, Denial> {
    match core.ports.store.run_of(&sandbox.id).await? {
        Some(run) if run.plan.host != *name => Ok(Some("its run is on another host")),
        Some(run) if run.holds => Ok(None),
        Some(_) => Ok(Some("its run holds it no more")),
        None => {
            let age = u128::from(millis_between(sandbox.created_at, core.now()));
            Ok((age > core.settings.pace.stray_grace.as_millis()).then_some("no run knows it"))
        }
    }
}
