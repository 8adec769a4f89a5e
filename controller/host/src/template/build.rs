//! Making a template: boot, warm, freeze.

use super::{Key, Template, find};
use crate::state::{State, internal, private_dir, private_file};
use crate::vmm::{self, Cage, Console, Machine, Origin};
use lazaret_domain::{Denial, DenialCode, Span};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Kernel parameters that have the guest warm up before it says that it is ready.
const WARM: &str = "lazaret.warm";
/// How long QEMU may take to end once it was told to.
const FAREWELL: Duration = Duration::from_secs(10);
/// Boots that are tried.
const TRIES: u8 = 2;

/// The template of that key; it is made if there is none. Several who ask at once wait for the one
/// who makes it. `machine` is what a fork will be, without disk.
///
/// Must be called where QEMU may be started (see [`vmm::start`]).
///
/// # Errors
/// `boot_failed` if the guest did not come up, or what kept it from being kept.
pub(crate) async fn ensure(
    state: &State,
    key: &Key,
    machine: &Machine,
    deadline: Span,
) -> Result<Template, Denial> {
    let (owner, wanted) = (state.clone(), key.clone());
    let (_lock, found) = tokio::task::spawn_blocking(move || {
        let lock = lock(&owner, &wanted.name())?;
        Ok::<_, Denial>((lock, find(&owner, &wanted)))
    })
    .await
    .map_err(|error| internal("make a template", &error))??;
    if let Some(template) = found {
        return Ok(template);
    }
    tracing::info!(template = key.name(), "making a template");
    let making = state.templates().join(format!(".{}", key.name()));
    let mut outcome = Err(Denial::new(DenialCode::BootFailed, "it was not tried"));
    for _ in 0..TRIES {
        outcome = freeze(state, key, machine, &making, deadline).await;
        if outcome.is_ok() {
            break;
        }
        let _ = std::fs::remove_dir_all(&making);
    }
    outcome?;
    let (owner, wanted) = (state.clone(), key.clone());
    let kept = tokio::task::spawn_blocking(move || {
        let making = owner.templates().join(format!(".{}", wanted.name()));
        let kept = super::store::publish(&owner, &wanted, &making);
        let _ = std::fs::remove_dir_all(&making);
        kept
    });
    kept.await
        .map_err(|error| internal("keep a template", &error))?
}

/// Boots the guest and leaves its memory, state and disk in `making`.
async fn freeze(
    state: &State,
    key: &Key,
    machine: &Machine,
    making: &Path,
    deadline: Span,
) -> Result<(), Denial> {
    let fault = |error: io::Error| internal("make a template", &error);
    match std::fs::remove_dir_all(making) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fault(error)),
        _ => private_dir(making).map_err(fault)?,
    }
    let disk = making.join("disk.qcow2");
    vmm::make_disk(&state.disks(), &disk, key.disk).await?;
    // QEMU would make the file with other permissions.
    let memory = making.join("memory");
    private_file(&memory)
        .and_then(|file| file.set_len(key.memory.bytes()))
        .map_err(fault)?;
    let frozen = private_file(&making.join("state")).map_err(fault)?;
    let machine = Machine {
        disk: Some(disk),
        kernel_args: format!("{} {WARM}", machine.kernel_args),
        origin: Origin::Template(memory),
        ..machine.clone()
    };
    let config = state.config();
    let console = Console::new(
        config.console_budget.bytes(),
        config.console_window.duration(),
    );
    let work = run(&machine, making, &console, &frozen);
    match tokio::time::timeout(deadline.duration(), work).await {
        Ok(outcome) => outcome.map_err(|denial| {
            let lines = console.last_lines(12);
            Denial::new(denial.code, format!("{}\n{lines}", denial.message))
        }),
        Err(_) => Err(Denial::new(
            DenialCode::BootFailed,
            format!("the guest of a template was not ready after {deadline}"),
        )),
    }
}

async fn run(
    machine: &Machine,
    making: &Path,
    console: &Console,
    frozen: &File,
) -> Result<(), Denial> {
    let (mut vmm, lines) = vmm::start(machine, making, Cage::default()).await?;
    // The card is plugged into nothing: what the guest sends goes nowhere.
    let _unplugged = lines.cable;
    // Nothing is said on the control port: who says something there is the shim of a fork.
    let _silent = lines.control;
    let mut seen = console.seen();
    let booted = tokio::select! {
        () = console.read(lines.console) => Err("its console was lost".to_owned()),
        seen = seen.wait_for(|seen| seen.ready || seen.flooded || seen.panicked) => match seen.as_deref() {
            Ok(seen) if seen.ready => Ok(()),
            _ => Err("the guest failed".to_owned()),
        },
        status = vmm.ended() => Err(format!("QEMU ended ({}) {}", vmm::describe(status), vmm.complaint().trim())),
    };
    let outcome = match booted {
        Ok(()) => vmm
            .freeze(frozen, FAREWELL)
            .await
            .map_err(|error| format!("it could not be frozen: {error}")),
        Err(what) => Err(what),
    };
    vmm.end().await;
    outcome.map_err(|what| {
        Denial::new(
            DenialCode::BootFailed,
            format!("the guest of a template did not come up: {what}"),
        )
    })
}

/// Waits for the right to make the template of that name. Blocks the thread.
fn lock(state: &State, name: &str) -> Result<File, Denial> {
    let fault = |error: io::Error| internal("take the lock of a template", &error);
    let file = private_file(&state.templates().join(format!("{name}.lock"))).map_err(fault)?;
    file.lock().map_err(fault)?;
    Ok(file)
}

/// The right to make the template of that name, if nobody has it.
pub(super) fn lock_now(state: &State, name: &str) -> Option<File> {
    let file = private_file(&state.templates().join(format!("{name}.lock"))).ok()?;
    file.try_lock().ok().map(|()| file)
}
