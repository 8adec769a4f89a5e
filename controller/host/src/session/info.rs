//! The host described. Nothing in it takes long: an accelerator that was not probed yet is probed
//! behind the answer, which says so.

use crate::process::boot_id;
use crate::state::{State, internal};
use crate::{image, probe};
use jiff::Timestamp;
use lazaret_api::host::HostInfo;
use lazaret_domain::{Denial, DenialCode};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

/// What a session finds out once.
#[derive(Default)]
pub(super) struct Facts {
    vmm: OnceCell<String>,
    probing: Arc<AtomicBool>,
}

impl Facts {
    /// Describes the host as it is now.
    pub(super) async fn gather(
        &self,
        state: &State,
        work: &TaskTracker,
    ) -> Result<HostInfo, Denial> {
        let fault = |error: std::io::Error| internal("describe the host", &error);
        Ok(HostInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: lazaret_api::PROTOCOL,
            accel: self.accel(state, work).await,
            vmm: self
                .vmm
                .get_or_try_init(|| vmm_version(state))
                .await
                .cloned(),
            image: image::newest(state),
            disk_free: state.disk_free().map_err(fault)?,
            clock: Timestamp::now(),
            boot_id: boot_id().map_err(fault)?,
            max_sandboxes: state.config().max_sandboxes,
        })
    }

    async fn accel(
        &self,
        state: &State,
        work: &TaskTracker,
    ) -> Result<lazaret_api::host::Accel, Denial> {
        let choice = state.config().accel;
        if let Some(known) = probe::known(state, choice) {
            return known;
        }
        if !self.probing.swap(true, Ordering::AcqRel) {
            let (state, probing) = (state.clone(), Arc::clone(&self.probing));
            work.spawn(async move {
                let outcome = probe::resolve(&state, choice).await;
                tracing::info!(?outcome, "the accelerators were probed");
                probing.store(false, Ordering::Release);
            });
        }
        Err(Denial::new(
            DenialCode::AcceleratorProbing,
            "a probe guest is being booted to see which accelerator works",
        )
        .retry_after(1))
    }
}

/// The first line QEMU says of itself.
async fn vmm_version(state: &State) -> Result<String, Denial> {
    let qemu = crate::vmm::find(&state.config().qemu)?;
    let output = Command::new(qemu)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| {
            Denial::new(
                DenialCode::VmmMissing,
                format!("QEMU cannot be run: {error}"),
            )
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.trim().to_owned()),
        _ => Err(Denial::new(
            DenialCode::VmmMissing,
            "QEMU does not say its version",
        )),
    }
}
