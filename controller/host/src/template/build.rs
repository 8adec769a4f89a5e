//! Making a template: boot, warm, freeze.

use super::store;
use super::{Key, Template};
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
/// How much longer than a boot it may take to warm up.
const WARMING: Duration = Duration::from_secs(45);
/// Boots that are tried.
const TRIES: u8 = 2;

/// The template of that key; it is made if there is none. Several who ask at once wait for the one
/// who makes it; one is made at a time. `machine` is what a fork will be, without disk.
///
/// Must be called where QEMU may be started (see [`vmm::start`]).
///
/// # Errors
/// `boot_failed` if the guest did not come up or lately had not, `disk_full`, or what kept it from
/// being kept.
pub(crate) async fn ensure(
    state: &State,
    key: &Key,
    machine: &Machine,
    boot_deadline: Span,
) -> Result<Template, Denial> {
    let (owner, wanted) = (state.clone(), key.clone());
    let (lock, found) = blocking(move || {
        let lock = store::lock(&owner)
            .map_err(|error| internal("take the lock of the templates", &error))?;
        store::collect_locked(&owner, &lock);
        let found = store::find_locked(&owner, &wanted, &lock);
        Ok((lock, found))
    })
    .await?;
    if let Some(template) = found {
        return Ok(template);
    }
    if store::failed_lately(state, key) {
        return Err(Denial::new(
            DenialCode::BootFailed,
            "the guest of this template did not come up a few minutes ago; see the host's log",
        ));
    }
    store::make_room(state, key, &lock)?;
    tracing::info!(template = key.name(), "making a template");
    let deadline = boot_deadline.duration() + WARMING;
    let mut outcome = Err(Denial::new(DenialCode::BootFailed, "it was not tried"));
    for _ in 0..TRIES {
        outcome = freeze(state, key, machine, deadline).await;
        if outcome.is_ok() {
            break;
        }
    }
    let (owner, wanted) = (state.clone(), key.clone());
    blocking(move || {
        let kept = outcome.and_then(|()| store::publish(&owner, &wanted, &lock));
        store::remember(&owner, &wanted, kept.is_err());
        let _ = std::fs::remove_dir_all(store::making(&owner, &wanted));
        drop(lock);
        kept
    })
    .await
}

/// Does what may take long on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Denial> + Send + 'static,
) -> Result<T, Denial> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| internal("make a template", &error))?
}

/// Boots the guest and leaves its memory, state and disk where templates are made.
async fn freeze(
    state: &State,
    key: &Key,
    machine: &Machine,
    deadline: Duration,
) -> Result<(), Denial> {
    let fault = |error: io::Error| internal("make a template", &error);
    let making = store::making(state, key);
    match std::fs::remove_dir_all(&making) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fault(error)),
        _ => private_dir(&making).map_err(fault)?,
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
    // It counts like a sandbox, though nobody uses it.
    let cage = Cage::make(&config.cgroup, store::CAGE, machine.memory, machine.cpus);
    let work = run(&machine, &making, cage, &console, &frozen);
    match tokio::time::timeout(deadline, work).await {
        Ok(outcome) => outcome.map_err(|denial| {
            let lines = console.last_lines(12);
            Denial::new(denial.code, format!("{}\n{lines}", denial.message))
        }),
        Err(_) => Err(Denial::new(
            DenialCode::BootFailed,
            format!("the guest of a template was not ready after {deadline:?}"),
        )),
    }
}

async fn run(
    machine: &Machine,
    making: &Path,
    cage: Cage,
    console: &Console,
    frozen: &File,
) -> Result<(), Denial> {
    let (mut vmm, lines) = vmm::start(machine, making, cage).await?;
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
