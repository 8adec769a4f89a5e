//! Spares: forks that are up before a sandbox is asked for, so that the next one is there at once.
//!
//! They belong to the session that made them and end with it: it holds the other end of each one's
//! standard input. They are made one at a time, while nobody waits for a sandbox, for the machine that
//! was asked for last while none was being made; a spare of another machine makes room after a while.

use super::destroy::{take_away, take_away_dir};
use super::shims::{ready, shim_command};
use super::{living, templates};
use crate::shim::{KEY, OFFER, RECORD, claim as ask};
use crate::state::{Record, State, StateLock, private_dir, private_file};
use crate::template::Key;
use jiff::Timestamp;
use lazaret_api::host::SandboxSpec;
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::{Denial, SandboxId};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Spares are made once no sandbox was asked for for so long.
const CALM: Duration = Duration::from_secs(1);
/// Held while spares are made.
const TURN: &str = "lock";
/// Spares for other machines than the last are kept, so many of them.
const OTHERS: usize = 1;

/// Makes the sandbox of a spare, if one is like it. The caller holds the lock.
///
/// # Errors
/// If what a failed claim left cannot be removed.
pub(super) async fn claim(
    state: &State,
    record: &Record,
    _lock: &StateLock,
) -> Result<bool, Denial> {
    let spares = spares(state);
    if spares.is_empty() || !state.config().templates {
        return Ok(false);
    }
    let Some(key) = templates::key(state, &record.spec).await else {
        return Ok(false);
    };
    for (id, _) in spares.iter().filter(|(_, of)| *of == key) {
        let spare = state.spare(id);
        match ask(&spare, record).await {
            Ok(()) => {
                tracing::info!(sandbox = %record.id, spare = %id, "a spare became a sandbox");
                return Ok(true);
            }
            Err(error) => tracing::warn!(spare = %id, %error, "a spare could not be claimed"),
        }
        // Whatever it is doing: it is not to become this sandbox later on.
        take_away_dir(state, id, &spare).await?;
        take_away(state, &record.id).await?;
    }
    Ok(false)
}

/// The spares that can be claimed, oldest first, and what they are forks of.
fn spares(state: &State) -> Vec<(SandboxId, Key)> {
    let ids = state.spare_ids().unwrap_or_default();
    let offered = |id: SandboxId| {
        let dir = state.spare(&id);
        living::shim(&dir)?;
        let key = dir.read::<Key>(OFFER)?;
        Some((id, key))
    };
    ids.into_iter().filter_map(offered).collect()
}

/// Removes what killed spares left behind, unless spares are being made: one that is has no shim to
/// show yet, and whoever makes it sweeps before.
pub(super) async fn sweep(state: &State, lock: &StateLock) {
    if let Ok(turn) = private_file(&state.spares().join(TURN))
        && turn.try_lock().is_ok()
    {
        sweep_in_turn(state, lock).await;
    }
}

async fn sweep_in_turn(state: &State, _lock: &StateLock) {
    for id in state.spare_ids().unwrap_or_default() {
        let dir = state.spare(&id);
        if living::shim(&dir).is_none()
            && let Err(denial) = take_away_dir(state, &id, &dir).await
        {
            tracing::warn!(spare = %id, %denial, "a spare could not be removed");
        }
    }
}

/// Makes the spares that are missing for such a sandbox, unless another was asked for since: then
/// whoever made that one does.
pub(super) async fn refill(state: State, spec: SandboxSpec, asked: u64, lately: Arc<AtomicU64>) {
    let wanted = usize::try_from(state.config().spares).unwrap_or(usize::MAX);
    if wanted == 0 || !state.config().templates || spec.copy_of.is_some() {
        return;
    }
    tokio::time::sleep(CALM).await;
    if lately.load(Ordering::SeqCst) != asked {
        return;
    }
    if let Err(error) = fill(&state, &spec, wanted).await {
        tracing::warn!(%error, "no spare could be made");
    }
}

async fn fill(state: &State, spec: &SandboxSpec, wanted: usize) -> anyhow::Result<()> {
    // One at a time on this host. Who comes meanwhile makes none; the next request after it does.
    let turn = private_file(&state.spares().join(TURN))?;
    if turn.try_lock().is_err() {
        return Ok(());
    }
    sweep_in_turn(state, &state.lock().await?).await;
    let Some(key) = templates::key(state, spec).await else {
        return Ok(());
    };
    drain(state, &key).await?;
    let mut there = spares(state).iter().filter(|(_, of)| *of == key).count();
    while there < wanted && state.templates().join(key.name()).is_dir() {
        // Where no sandbox is made, no spare is either.
        if state.disk_free()? < state.config().min_free_disk.bytes() {
            return Ok(());
        }
        make(state, spec, &key).await?;
        there += 1;
    }
    Ok(())
}

/// Ends spares that nobody will ask for: of templates that are gone, and of machines that were asked
/// for longest ago.
async fn drain(state: &State, key: &Key) -> Result<(), Denial> {
    let all = spares(state);
    let others: Vec<_> = all.iter().filter(|(_, of)| of != key).collect();
    let many = others.len().saturating_sub(OTHERS);
    let of_nothing = |(_, of): &&&(SandboxId, Key)| !state.templates().join(of.name()).is_dir();
    let ended: Vec<_> = others[..many]
        .iter()
        .chain(others[many..].iter().filter(of_nothing))
        .collect();
    for (id, _) in ended {
        let _lock = state.lock().await?;
        take_away_dir(state, id, &state.spare(id)).await?;
    }
    Ok(())
}

/// Makes a spare, and returns once it can be claimed.
async fn make(state: &State, spec: &SandboxSpec, key: &Key) -> anyhow::Result<()> {
    let id = SandboxId::make(Timestamp::now(), rand::random());
    let dir = state.spare(&id);
    let record = Record {
        id: id.clone(),
        // Nothing of the sandbox whose machine it has.
        spec: SandboxSpec {
            egress: EgressPolicy::default(),
            ..spec.clone()
        },
        created_at: Timestamp::now(),
    };
    private_dir(dir.path())?;
    dir.write(RECORD, &record)?;
    dir.write(KEY, key)?;
    let mut shim = shim_command(state, &id, &dir)?
        .arg("--spare")
        .stdin(Stdio::piped())
        .spawn()?;
    let held = shim.stdin.take();
    let is_ready = ready(&mut shim).await;
    tokio::spawn(async move {
        let _ = shim.wait().await;
        // Closed, it would end; a session that ends closes it.
        drop(held);
    });
    is_ready?;
    tracing::info!(spare = %id, "a spare is ready");
    Ok(())
}
