//! Which accelerator works is found out by booting a guest, never by looking at `/dev/kvm`: a device
//! can be there, be opened, and still run no guest.
//!
//! The answer holds until QEMU, the image or the host's boot changes.

use crate::image;
use crate::process::boot_id;
use crate::state::{State, private_dir, replace};
use crate::vmm::{self, Cage, Console, Machine};
use lazaret_api::host::{Accel, AccelChoice};
use lazaret_domain::{ByteSize, Cpus, Denial, DenialCode};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// The memory of a probe guest.
const MEMORY: ByteSize = ByteSize::mebibytes(256);
/// Boots that are tried before an emulated accelerator is said not to work. One that hangs once may
/// work; a hardware one has no such excuse.
const EMULATED_TRIES: u8 = 2;

/// What an answer was found with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Circumstances {
    /// QEMU's program, its size, and when it was last changed: enough to see another version.
    vmm: (PathBuf, u64, i64, i64),
    image: String,
    boot_id: String,
}

impl Circumstances {
    fn now(state: &State) -> Result<Self, Denial> {
        let fault =
            |error: std::io::Error| crate::state::internal("see what a probe depends on", &error);
        let qemu = vmm::find(&state.config().qemu)?;
        let meta = std::fs::metadata(&qemu).map_err(fault)?;
        let vmm = (qemu, meta.size(), meta.mtime(), meta.ctime());
        Ok(Self {
            vmm,
            image: image::newest(state)?,
            boot_id: boot_id().map_err(fault)?,
        })
    }
}

/// An answer that is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Proof {
    circumstances: Circumstances,
    outcome: Result<(), Denial>,
}

fn proof_file(state: &State, accel: Accel) -> PathBuf {
    state.root().join(match accel {
        Accel::Kvm => "probe-kvm.json",
        Accel::Tcg => "probe-tcg.json",
    })
}

fn kept(state: &State, accel: Accel, circumstances: &Circumstances) -> Option<Result<(), Denial>> {
    let proof: Proof =
        serde_json::from_slice(&std::fs::read(proof_file(state, accel)).ok()?).ok()?;
    (proof.circumstances == *circumstances).then_some(proof.outcome)
}

/// The accelerators a choice allows, best first.
fn candidates(choice: AccelChoice) -> &'static [Accel] {
    match choice {
        AccelChoice::Kvm => &[Accel::Kvm],
        AccelChoice::Tcg => &[Accel::Tcg],
        AccelChoice::Auto => &[Accel::Kvm, Accel::Tcg],
    }
}

/// The answer for a choice, if it is known without booting.
pub(crate) fn known(state: &State, choice: AccelChoice) -> Option<Result<Accel, Denial>> {
    let circumstances = match Circumstances::now(state) {
        Ok(circumstances) => circumstances,
        Err(denial) => return Some(Err(denial)),
    };
    let mut refusal = None;
    for accel in candidates(choice) {
        match kept(state, *accel, &circumstances)? {
            Ok(()) => return Some(Ok(*accel)),
            Err(denial) => refusal = Some(denial),
        }
    }
    refusal.map(Err)
}

/// Refuses if a probe has shown that this accelerator does not work here.
pub(crate) fn refuse_if_known_to_fail(state: &State, choice: AccelChoice) -> Result<(), Denial> {
    match known(state, choice) {
        Some(Err(denial)) if denial.code == DenialCode::NoAccelerator => Err(denial),
        _ => Ok(()),
    }
}

/// The best accelerator that the choice allows and a probe has proven.
///
/// # Errors
/// `no_accelerator` if none works.
pub(crate) async fn resolve(state: &State, choice: AccelChoice) -> Result<Accel, Denial> {
    let mut refusal = None;
    for accel in candidates(choice) {
        match prove(state, *accel, false).await {
            Ok(()) => return Ok(*accel),
            Err(denial) => refusal = Some(denial),
        }
    }
    Err(refusal
        .unwrap_or_else(|| Denial::new(DenialCode::NoAccelerator, "no accelerator is allowed")))
}

/// Boots a probe guest, unless an earlier answer still holds and none afresh is wanted.
///
/// # Errors
/// `no_accelerator` with what happened, or what keeps a probe from being made.
pub async fn prove(state: &State, accel: Accel, fresh: bool) -> Result<(), Denial> {
    let circumstances = Circumstances::now(state)?;
    if let Some(outcome) = kept(state, accel, &circumstances).filter(|_| !fresh) {
        return outcome;
    }
    let tries = if accel == Accel::Tcg {
        EMULATED_TRIES
    } else {
        1
    };
    let mut outcome = Ok(());
    for _ in 0..tries {
        outcome = boot(state, accel, &circumstances.image).await;
        if outcome.is_ok() {
            break;
        }
    }
    // Only what was found out by booting is kept; a missing program or image can be mended.
    if outcome
        .as_ref()
        .err()
        .is_none_or(|denial| denial.code == DenialCode::NoAccelerator)
    {
        let proof = Proof {
            circumstances,
            outcome: outcome.clone(),
        };
        let written = serde_json::to_vec(&proof).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| replace(&proof_file(state, accel), &bytes)) {
            tracing::warn!(%error, "the answer of a probe could not be kept");
        }
    }
    outcome
}

async fn boot(state: &State, accel: Accel, digest: &str) -> Result<(), Denial> {
    let (owner, wanted) = (state.clone(), digest.to_owned());
    let image = tokio::task::spawn_blocking(move || image::verified(&owner, &wanted))
        .await
        .map_err(|error| crate::state::internal("verify the image", &error))??;
    let machine = Machine {
        qemu: state.config().qemu.clone(),
        image,
        accel,
        memory: MEMORY,
        cpus: Cpus::ONE,
        disk: None,
        probe: true,
        kernel_args: String::new(),
        origin: vmm::Origin::Boot,
    };
    // A directory of this process's own, so that two probes do not meet.
    let dir = state.root().join(format!("probe-{}", std::process::id()));
    private_dir(&dir)
        .map_err(|error| crate::state::internal("make a probe's directory", &error))?;
    let outcome = watch(&machine, &dir, state.config().probe_deadline.duration()).await;
    let _ = std::fs::remove_dir_all(&dir);
    outcome.map_err(|what| {
        Denial::new(
            DenialCode::NoAccelerator,
            format!("{accel:?} does not work: {what}").to_lowercase(),
        )
    })
}

async fn watch(machine: &Machine, dir: &std::path::Path, deadline: Duration) -> Result<(), String> {
    let console = Console::new(1 << 20, deadline);
    let cage = Cage::default();
    let (mut vmm, lines) = tokio::time::timeout(deadline, vmm::start(machine, dir, cage))
        .await
        .map_err(|_| format!("qemu did not start within {deadline:?}"))?
        .map_err(|denial| denial.message)?;
    let mut seen = console.seen();
    let outcome = tokio::select! {
        () = console.read(lines.console) => Ok(*console.seen().borrow()),
        seen = seen.wait_for(|seen| seen.probed) => Ok(seen.map(|seen| *seen).unwrap_or_default()),
        status = vmm.ended() => Err(format!("qemu ended ({}) {}", vmm::describe(status), vmm.complaint().trim())),
        () = tokio::time::sleep(deadline) => Err(format!("a probe guest did not boot within {deadline:?}")),
    };
    vmm.end().await;
    // QEMU may have been seen to end before the last words of its guest were read.
    match outcome {
        Ok(seen) if seen.probed => Ok(()),
        Ok(_) => Err("the probe guest ended early".into()),
        Err(_) if console.seen().borrow().probed => Ok(()),
        Err(what) => Err(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_emulation_is_never_chosen_where_only_kvm_is_allowed() {
        assert_eq!(candidates(AccelChoice::Kvm), [Accel::Kvm]);
        assert_eq!(candidates(AccelChoice::Tcg), [Accel::Tcg]);
        assert_eq!(candidates(AccelChoice::Auto), [Accel::Kvm, Accel::Tcg]);
    }
}
