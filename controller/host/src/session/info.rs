//! The host described. Nothing in it takes long: an accelerator that was not probed yet is probed
//! behind the answer, which says so. A probe that could not be made says why from then on, and is
//! made again after a pause.

use crate::process::boot_id;
use crate::state::{State, internal};
use crate::{image, probe};
use jiff::Timestamp;
use lazaret_api::host::HostInfo;
use lazaret_domain::{Denial, DenialCode};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// How long after a probe that could not be made another is made.
const PAUSE: Duration = Duration::from_secs(30);

/// What a session finds out once.
#[derive(Default)]
pub(super) struct Facts {
    vmm: OnceCell<String>,
    probing: Arc<Mutex<Probing>>,
}

/// What is known of probes besides the answers that are kept.
#[derive(Default)]
struct Probing {
    /// Whether one is being made.
    now: bool,
    /// When the last one failed for a reason that is not kept, and for which.
    failed: Option<(Instant, Denial)>,
}

fn locked(probing: &Mutex<Probing>) -> MutexGuard<'_, Probing> {
    probing.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut probing = locked(&self.probing);
        let rested = probing
            .failed
            .as_ref()
            .is_none_or(|(at, _)| at.elapsed() >= PAUSE);
        if rested && !probing.now {
            probing.now = true;
            let (state, probing) = (state.clone(), Arc::clone(&self.probing));
            work.spawn(async move {
                let outcome = probe::resolve(&state, choice).await;
                tracing::info!(?outcome, "the accelerators were probed");
                let mut probing = locked(&probing);
                probing.now = false;
                probing.failed = outcome.err().map(|denial| (Instant::now(), denial));
            });
        }
        // A reason is told until a probe has mended it: "being probed" would hide it for ever.
        Err(match &probing.failed {
            Some((_, denial)) => denial.clone(),
            None => Denial::new(
                DenialCode::AcceleratorProbing,
                "a probe guest is being booted to see which accelerator works",
            )
            .retry_after(1),
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use lazaret_api::host::AccelChoice;
    use lazaret_image::manifest::{FORMAT, FileRecord, Manifest};

    /// A host whose newest image is not what its manifest says.
    fn altered(root: &std::path::Path) -> State {
        let files = ["initrd", "rootfs.erofs", "vmlinuz"];
        let mut manifest = Manifest {
            format: FORMAT,
            digest: String::new(),
            kernel: "6.1".into(),
            files: files
                .map(|name| FileRecord {
                    name: name.into(),
                    sha256: "00".repeat(32),
                    size: 0,
                })
                .into(),
            packages: vec![],
            layers: vec![],
            created: "2026-01-01T00:00:00Z".into(),
        };
        manifest.digest = manifest.content_digest();
        let image = root.join("images").join(&manifest.digest);
        std::fs::create_dir_all(&image).unwrap();
        let text = serde_json::to_vec(&manifest).unwrap();
        std::fs::write(image.join("manifest.json"), text).unwrap();
        for file in files {
            std::fs::write(image.join(file), "").unwrap();
        }
        let config = HostConfig {
            accel: AccelChoice::Tcg,
            images_dir: Some(root.join("images")),
            // Never started: the image is looked at first.
            qemu: "/bin/sh".into(),
            ..HostConfig::default()
        };
        State::open(root.join("s"), config).unwrap()
    }

    #[tokio::test]
    async fn a_probe_that_cannot_be_made_says_why_and_is_not_made_at_once_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = altered(dir.path());
        let (facts, work) = (Facts::default(), TaskTracker::new());
        let first = facts.accel(&state, &work).await.unwrap_err();
        assert_eq!(first.code, DenialCode::AcceleratorProbing, "{first}");
        work.close();
        work.wait().await;
        for _ in 0..3 {
            let denial = facts.accel(&state, &work).await.unwrap_err();
            assert_eq!(denial.code, DenialCode::ImageAltered, "{denial}");
            assert!(
                work.is_empty(),
                "it is probed again before the pause is over"
            );
        }
        let long_ago = Instant::now().checked_sub(2 * PAUSE).unwrap();
        if let Some((at, _)) = &mut locked(&facts.probing).failed {
            *at = long_ago;
        }
        let denial = facts.accel(&state, &work).await.unwrap_err();
        assert_eq!(denial.code, DenialCode::ImageAltered, "still the last word");
        assert_eq!(work.len(), 1, "and it is being probed again");
        work.wait().await;
    }
}
