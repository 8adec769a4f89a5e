//! Making a sandbox: everything that can be refused is refused before anything exists; the
//! directory appears whole; a shim that does not come up takes the directory with it.

mod room;

use super::destroy::take_away;
use super::living::look;
use super::shims::Shims;
use crate::image;
use crate::shim::{RECORD, STATUS};
use crate::state::{Record, SandboxDir, State, StateLock, internal};
use jiff::Timestamp;
use lazaret_api::host::{AccelChoice, Sandbox, SandboxSpec};
use lazaret_domain::{ByteSize, Cpus, Denial, DenialCode, Fence, SandboxId};
use std::path::Path;

/// The least memory and disk with which a guest is of use.
const LEAST_MEMORY: ByteSize = ByteSize::mebibytes(128);
const LEAST_DISK: ByteSize = ByteSize::mebibytes(64);

/// Refuses what this host does not give.
pub(super) fn within_bounds(
    config: &crate::config::HostConfig,
    spec: &SandboxSpec,
) -> Result<(), Denial> {
    within_limits(config, spec.memory, spec.disk, spec.cpus)?;
    if !(1..=10).contains(&spec.boot_tries) {
        return Err(
            Denial::new(DenialCode::InvalidRequest, "booting is tried 1 to 10 times")
                .at("boot_tries"),
        );
    }
    // A policy that cannot be applied whole is never applied in part.
    spec.egress.check()
}

/// Refuses machines that are larger than this host gives, or too small to be of use.
pub(super) fn within_limits(
    config: &crate::config::HostConfig,
    memory: ByteSize,
    disk: ByteSize,
    cpus: Cpus,
) -> Result<(), Denial> {
    let size = |value: ByteSize, least: ByteSize, most: ByteSize, field: &str| {
        if value < least || value > most {
            let text = format!("{field} is from {least} to {most} on this host, not {value}");
            return Err(Denial::new(DenialCode::InvalidSize, text).at(field));
        }
        Ok(())
    };
    size(memory, LEAST_MEMORY, config.max_memory, "memory")?;
    size(disk, LEAST_DISK, config.max_disk, "disk")?;
    if cpus > config.max_cpus {
        let text = format!(
            "a sandbox has at most {} vCPUs on this host",
            config.max_cpus
        );
        return Err(Denial::new(DenialCode::InvalidCpus, text).at("cpus"));
    }
    Ok(())
}

/// Makes a sandbox, or finds the one of that id.
pub(super) async fn create(
    state: State,
    shims: Shims,
    id: SandboxId,
    fence: Fence,
    spec: SandboxSpec,
) -> Result<Sandbox, Denial> {
    let dir = state.sandbox(&id);
    if dir.exists() {
        return same(&state, &id, fence, &spec).await;
    }
    // The slow checks come before the lock.
    can_boot(&state, &spec).await?;
    let lock = state.lock().await?;
    if dir.exists() {
        drop(lock);
        return same(&state, &id, fence, &spec).await;
    }
    if spec.copy_of.is_some() {
        let text = "the copy is not there; copies are made of a sandbox that runs";
        return Err(Denial::new(DenialCode::SandboxGone, text));
    }
    let record = admit(&state, &id, fence, spec, &lock)?;
    if !super::spares::claim(&state, &record, &lock).await? {
        come_into_being(&state, &shims, &record, |_| Ok(())).await?;
    }
    drop(lock);
    // What the shim wrote down as it came up is what it would answer, without another connection.
    match dir.read::<Sandbox>(STATUS) {
        Some(sandbox) => Ok(sandbox),
        None => look(&state, &id).await,
    }
}

/// A sandbox that may be made.
fn admit(
    state: &State,
    id: &SandboxId,
    fence: Fence,
    spec: SandboxSpec,
    lock: &StateLock,
) -> Result<Record, Denial> {
    // A newer executor may have destroyed it since this one asked.
    state.sandbox(id).pass_fence(fence)?;
    room::admit(state, spec.disk, lock)?;
    Ok(Record {
        id: id.clone(),
        spec,
        created_at: Timestamp::now(),
    })
}

/// Makes a sandbox that is not there, with what it needs besides in its directory. The caller holds
/// the lock.
pub(super) async fn make(
    state: &State,
    shims: &Shims,
    id: &SandboxId,
    fence: Fence,
    spec: SandboxSpec,
    lock: &StateLock,
    fill: impl FnOnce(&SandboxDir) -> std::io::Result<()>,
) -> Result<(), Denial> {
    let record = admit(state, id, fence, spec, lock)?;
    come_into_being(state, shims, &record, fill).await
}

async fn come_into_being(
    state: &State,
    shims: &Shims,
    record: &Record,
    fill: impl FnOnce(&SandboxDir) -> std::io::Result<()>,
) -> Result<(), Denial> {
    let id = &record.id;
    appear(state, record, fill).map_err(|error| {
        let _ = std::fs::remove_dir_all(state.passage(id, "new"));
        internal("make the sandbox's directory", &error)
    })?;
    let started = shims.start(state, id, &state.sandbox(id)).await;
    if started.is_err()
        && let Err(denial) = take_away(state, id).await
    {
        tracing::error!(sandbox = %id, %denial, "what did not start was left behind");
    }
    started
}

/// The sandbox that exists, if it is the one that is asked for.
async fn same(
    state: &State,
    id: &SandboxId,
    fence: Fence,
    spec: &SandboxSpec,
) -> Result<Sandbox, Denial> {
    state.sandbox(id).pass_fence(fence)?;
    let sandbox = look(state, id).await?;
    if sandbox.spec == *spec {
        Ok(sandbox)
    } else {
        Err(Denial::new(
            DenialCode::SpecMismatch,
            format!("sandbox {id} exists with another specification"),
        ))
    }
}

/// Refuses now what would fail later: no image, no QEMU, no accelerator.
async fn can_boot(state: &State, spec: &SandboxSpec) -> Result<(), Denial> {
    crate::vmm::find(&state.config().qemu)?;
    for tool in crate::vmm::TOOLS {
        crate::vmm::find(Path::new(tool))?;
    }
    if spec.accel != AccelChoice::Tcg {
        crate::probe::refuse_if_known_to_fail(state, spec.accel)?;
    }
    let (state, digest) = (state.clone(), spec.image.clone());
    tokio::task::spawn_blocking(move || image::verified(&state, &digest).map(drop))
        .await
        .map_err(|error| internal("verify the image", &error))?
}

/// The directory appears by one rename.
fn appear(
    state: &State,
    record: &Record,
    fill: impl FnOnce(&SandboxDir) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let making = state.new_sandbox(&record.id);
    crate::state::private_dir(making.path())?;
    fill(&making)?;
    making.write(RECORD, record)?;
    std::fs::rename(making.path(), state.sandbox(&record.id).path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;

    fn spec() -> SandboxSpec {
        serde_json::from_value(serde_json::json!({
            "image": "0".repeat(64), "memory": "512M", "cpus": 1, "disk": "64M", "max_duration": "1h",
            "accel": "tcg", "egress": lazaret_domain::egress::EgressPolicy::default(),
            "git_base_url": "https://git.test/", "boot_deadline": "1m", "boot_tries": 1,
        }))
        .unwrap()
    }

    fn state(dir: &Path) -> State {
        let config = HostConfig {
            min_free_disk: ByteSize::mebibytes(1),
            ..HostConfig::default()
        };
        State::open(dir.join("s"), config).unwrap()
    }

    #[tokio::test]
    async fn what_a_newer_executor_destroyed_is_not_made_again_by_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let id = SandboxId::make(Timestamp::UNIX_EPOCH, 5);
        super::super::destroy::destroy(state.clone(), id.clone(), Fence(7))
            .await
            .unwrap();
        let denial = make(
            &state,
            &Shims::default(),
            &id,
            Fence(6),
            spec(),
            &state.lock().await.unwrap(),
            |_| Ok(()),
        )
        .await
        .unwrap_err();
        assert_eq!(denial.code, DenialCode::StaleFence);
        assert!(!state.sandbox(&id).exists());
    }

    /// The program of this test is no shim and ends at once.
    #[tokio::test]
    async fn a_start_that_fails_leaves_nothing_not_even_what_was_on_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let id = SandboxId::make(Timestamp::UNIX_EPOCH, 5);
        let leaving = state.passage(&id, "old");
        std::fs::create_dir_all(leaving.join("execs")).unwrap();
        let denial = make(
            &state,
            &Shims::default(),
            &id,
            Fence(1),
            spec(),
            &state.lock().await.unwrap(),
            |_| Ok(()),
        )
        .await
        .unwrap_err();
        assert_eq!(denial.code, DenialCode::Internal);
        assert!(
            denial.message.contains("the shim did not start"),
            "{denial}"
        );
        let left = std::fs::read_dir(state.root().join("sandboxes")).unwrap();
        assert_eq!(left.count(), 0);
    }
}
