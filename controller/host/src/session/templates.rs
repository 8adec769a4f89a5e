//! Templates as the host API shows them: made when asked for, or after a sandbox had to be booted
//! for want of one.

use super::living::look;
use crate::image;
use crate::state::{State, internal};
use crate::template::{self, Key};
use crate::vmm::{Machine, Origin};
use lazaret_api::host::{Accel, AccelChoice, SandboxSpec, Template, TemplateSpec};
use lazaret_domain::{Denial, DenialCode, SandboxId};
use std::time::Duration;

/// How often a sandbox that is being booted is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Makes the template, unless there is one. Takes as long as a boot takes.
pub(super) async fn ensure(state: State, spec: TemplateSpec) -> Result<Template, Denial> {
    if !state.config().templates {
        return Err(Denial::new(
            DenialCode::NoSuchRoute,
            "this host is set to make no templates (`templates = false` in its host.toml)",
        ));
    }
    let accel = match spec.accel {
        AccelChoice::Tcg => Accel::Tcg,
        choice => crate::probe::resolve(&state, choice).await?,
    };
    let (machine, key) = machine(&state, &spec, accel).await?;
    template::ensure(&state, &key, &machine, spec.boot_deadline).await?;
    Ok(Template {
        name: key.name(),
        image: key.image,
        accel,
        memory: key.memory,
        cpus: key.cpus,
        disk: key.disk,
    })
}

/// The machine of such a template, without disk, and the template's key.
async fn machine(
    state: &State,
    spec: &TemplateSpec,
    accel: Accel,
) -> Result<(Machine, Key), Denial> {
    let (owner, digest) = (state.clone(), spec.image.clone());
    let image = tokio::task::spawn_blocking(move || image::verified(&owner, &digest))
        .await
        .map_err(|error| internal("verify the image", &error))??;
    let machine = Machine {
        qemu: state.config().qemu.clone(),
        image,
        accel,
        memory: spec.memory,
        cpus: spec.cpus,
        disk: None,
        probe: false,
        kernel_args: state.config().kernel_args.clone(),
        origin: Origin::Boot,
    };
    let key = Key::of(state, &spec.image, &machine, spec.disk)?;
    Ok((machine, key))
}

/// The key of the template that such a sandbox is forked from, if that can be told without a probe.
pub(super) async fn key(state: &State, spec: &SandboxSpec) -> Option<Key> {
    let accel = match spec.accel {
        AccelChoice::Tcg => Accel::Tcg,
        choice => crate::probe::known(state, choice)?.ok()?,
    };
    let wanted = TemplateSpec::of(spec);
    let found = machine(state, &wanted, accel).await;
    found.ok().map(|(_, key)| key)
}

/// Waits until the sandbox is up, and makes the template that it lacked. They do not boot side by
/// side: whoever waits for the sandbox comes first.
pub(super) async fn after(state: State, id: SandboxId, spec: SandboxSpec) {
    if !state.config().templates {
        return;
    }
    let lacked = loop {
        match look(&state, &id).await {
            Ok(sandbox) if crate::shim::is_forking(&sandbox) => tokio::time::sleep(LOOK).await,
            Ok(sandbox) => break sandbox.boot_id.is_some() && !sandbox.stages.forked,
            // It was removed before we looked. Where there is a template nothing is made.
            Err(_) => break true,
        }
    };
    if !lacked {
        return;
    }
    if let Err(denial) = ensure(state, TemplateSpec::of(&spec)).await {
        tracing::warn!(%denial, "no template could be made");
    }
}
