//! The commands of one sandbox. Each has an id that its asker chose: asking again never runs it
//! twice. Output goes to disk, whoever reads or stops reading; the command learns nothing of it.
//!
//! Commands whose id begins with [`BESIDE`] are run beside the work, and callers decide how many there
//! are. Of those only the latest that ended are remembered, with their output, and they never take
//! the last places from the work's own commands.

mod call;

use super::guest::Guest;
use super::recording::{CAP, Recorder, Recording};
use crate::gateway::EgressLog;
use axum::body::Body;
use base64::Engine as _;
use call::{follow, guest_body};
use jiff::Timestamp;
use lazaret_api::guest::{ExecEnd, ExecExit};
use lazaret_api::host::{Exec, ExecRequest};
use lazaret_domain::{Denial, DenialCode, ExecId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Commands running at once, and commands remembered, in one sandbox. Fewer run than the guest
/// takes requests, so that there is room for file calls and the question how it is.
const RUNNING: usize = 48;
const REMEMBERED: usize = 1024;
/// How ids of commands beside the work begin.
const BESIDE: &str = "x-";
/// Of those: running at once, and remembered after their end.
const BESIDE_RUNNING: usize = 40;
const BESIDE_REMEMBERED: usize = 64;
/// How much longer than its own limit a command may take before it is given up from out here.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is kept of a command besides its output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    /// As it is shown.
    pub exec: Exec,
    /// Of the request, whose environment may hold what must not lie on disk.
    pub digest: String,
}

/// The file of a [`Note`] in the command's directory.
pub(crate) const NOTE: &str = "exec.json";

struct Entry {
    id: ExecId,
    started_at: Timestamp,
    digest: String,
    recording: Arc<Recording>,
    exit: Mutex<Option<ExecExit>>,
    cancel: CancellationToken,
}

impl Entry {
    fn show(&self) -> Exec {
        Exec {
            id: self.id.clone(),
            started_at: self.started_at,
            exit: self
                .exit
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            output_len: self.recording.progress().borrow().len,
        }
    }

    fn beside(&self) -> bool {
        self.id.as_str().starts_with(BESIDE)
    }

    fn over(&self) -> bool {
        self.exit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }
}

/// All commands of a sandbox. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Execs {
    dir: Arc<Path>,
    entries: Arc<Mutex<HashMap<ExecId, Arc<Entry>>>>,
    /// Commands beside the work that are over and remembered, in the order of their ends.
    ended: Arc<Mutex<VecDeque<ExecId>>>,
    sandbox_ended: CancellationToken,
    egress: EgressLog,
    tasks: TaskTracker,
}

impl Execs {
    /// None yet; each will have a directory in `dir`. Their ends say how far `egress` is.
    pub(crate) fn new(dir: PathBuf, egress: EgressLog) -> Self {
        Self {
            dir: dir.into(),
            entries: Arc::default(),
            ended: Arc::default(),
            sandbox_ended: CancellationToken::new(),
            egress,
            tasks: TaskTracker::new(),
        }
    }

    /// Starts a command once, or finds the one of that id. What is held is let go of with its end.
    pub(crate) fn start(
        &self,
        id: &ExecId,
        request: &ExecRequest,
        guest: Guest,
        held: impl Send + 'static,
    ) -> Result<Exec, Denial> {
        let wire = serde_json::to_vec(request)
            .map_err(|error| crate::state::internal("read a command", &error))?;
        let digest = base64::engine::general_purpose::STANDARD_NO_PAD.encode(Sha256::digest(&wire));
        let body = guest_body(request)?;
        let cap = request.output_cap.clamp(*CAP.start(), *CAP.end());
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(id) {
            return if entry.digest == digest {
                Ok(entry.show())
            } else {
                Err(Denial::new(
                    DenialCode::SpecMismatch,
                    format!("exec {id} exists with another command"),
                ))
            };
        }
        if self.sandbox_ended.is_cancelled() {
            return Err(Denial::new(
                DenialCode::SandboxGone,
                "the sandbox is being ended",
            ));
        }
        has_room(&entries, id)?;
        let dir = self.dir.join(id.as_str());
        crate::state::private_dir(&dir)
            .map_err(|error| crate::state::internal("make a command's directory", &error))?;
        let recording = Arc::new(Recording::new(dir));
        let entry = Arc::new(Entry {
            id: id.clone(),
            started_at: Timestamp::now(),
            digest,
            recording: Arc::clone(&recording),
            exit: Mutex::default(),
            cancel: CancellationToken::new(),
        });
        self.note(&entry)?;
        entries.insert(id.clone(), Arc::clone(&entry));
        let limit = request.spec.limits.max_duration.duration()
            + request.spec.limits.kill_grace.duration()
            + PATIENCE;
        let work = self.clone().run(
            Arc::clone(&entry),
            guest,
            body,
            Recorder::new(recording, cap),
            limit,
        );
        self.tasks.spawn(async move {
            work.await;
            drop(held);
        });
        Ok(entry.show())
    }

    /// A command as it is now.
    pub(crate) fn show(&self, id: &ExecId) -> Result<Exec, Denial> {
        self.find(id).map(|entry| entry.show())
    }

    /// The output of a command.
    pub(crate) fn recording(&self, id: &ExecId) -> Result<Arc<Recording>, Denial> {
        self.find(id).map(|entry| Arc::clone(&entry.recording))
    }

    /// Ends a command; one that is over stays as it is.
    pub(crate) fn cancel(&self, id: &ExecId) -> Result<(), Denial> {
        self.find(id).map(|entry| entry.cancel.cancel())
    }

    /// Ends every command because the sandbox has ended, and waits until each has its exit frame.
    pub(crate) async fn end_all(&self) {
        self.sandbox_ended.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn find(&self, id: &ExecId) -> Result<Arc<Entry>, Denial> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.get(id).cloned().ok_or_else(|| {
            Denial::new(
                DenialCode::ExecNotFound,
                format!("no exec {id} in this sandbox"),
            )
        })
    }

    fn note(&self, entry: &Entry) -> Result<(), Denial> {
        let note = Note {
            exec: entry.show(),
            digest: entry.digest.clone(),
        };
        serde_json::to_vec(&note)
            .map_err(std::io::Error::from)
            .and_then(|bytes| {
                crate::state::replace(&self.dir.join(entry.id.as_str()).join(NOTE), &bytes)
            })
            .map_err(|error| crate::state::internal("note a command", &error))
    }

    async fn run(
        self,
        entry: Arc<Entry>,
        guest: Guest,
        body: Body,
        mut recorder: Recorder,
        limit: Duration,
    ) {
        let started = Instant::now();
        let lasted = || lazaret_domain::millis(started.elapsed());
        let end = |end, message: &str| ExecExit {
            end,
            code: None,
            signal: None,
            message: Some(message.to_owned()),
            duration_ms: lasted(),
            egress_seq: None,
        };
        // Dropping the guest's answer is what makes the guest kill the command.
        let exit = tokio::select! {
            biased;
            () = self.sandbox_ended.cancelled() => end(ExecEnd::SandboxEnded, "the sandbox ended"),
            () = entry.cancel.cancelled() => end(ExecEnd::Cancelled, "it was cancelled"),
            done = follow(&guest, body, &mut recorder) => match done {
                // A guest's clock is the guest's word; out here the time is measured.
                Ok(exit) => ExecExit { duration_ms: lasted(), egress_seq: self.egress.settled_at(), ..exit },
                Err(denial) if denial.code == DenialCode::GuestUnreachable => end(ExecEnd::SandboxEnded, &denial.message),
                // Output that cannot be kept is not run on without: the guest ends the command.
                Err(denial) if denial.code == DenialCode::Internal => end(ExecEnd::Cancelled, &denial.message),
                Err(denial) => end(ExecEnd::NotStarted, &denial.message),
            },
            () = tokio::time::sleep(limit) => end(ExecEnd::TimedOut, "the guest did not end it in time"),
        };
        // In this order: who has read the exit frame also finds the exit when asking.
        *entry.exit.lock().unwrap_or_else(PoisonError::into_inner) = Some(exit.clone());
        if let Err(error) = recorder.finish(&exit).await {
            tracing::error!(exec = %entry.id, %error, "the end of a command could not be recorded");
        }
        if let Err(denial) = self.note(&entry) {
            tracing::error!(exec = %entry.id, %denial, "the end of a command could not be noted");
        }
        if entry.beside() {
            self.forget_oldest(entry.id.clone()).await;
        }
    }

    /// Notes the end of a command beside the work, and forgets the oldest of them beyond the bound.
    /// Who still reads its output is cut off.
    async fn forget_oldest(&self, id: ExecId) {
        let oldest = {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.push_back(id);
            (ended.len() > BESIDE_REMEMBERED)
                .then(|| ended.pop_front())
                .flatten()
        };
        let Some(oldest) = oldest else { return };
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&oldest);
        if let Err(error) = tokio::fs::remove_dir_all(self.dir.join(oldest.as_str())).await {
            tracing::warn!(exec = %oldest, %error, "a command's output could not be removed");
        }
    }
}

/// Whether one more command can be started and remembered.
fn has_room(entries: &HashMap<ExecId, Arc<Entry>>, id: &ExecId) -> Result<(), Denial> {
    let running = |entry: &&Arc<Entry>| !entry.over();
    let beside = id.as_str().starts_with(BESIDE);
    let room = if beside {
        let others = entries.values().filter(|entry| entry.beside());
        others.filter(running).count() < BESIDE_RUNNING
    } else {
        entries.len() < REMEMBERED && entries.values().filter(running).count() < RUNNING
    };
    if room {
        return Ok(());
    }
    let why = if beside {
        format!("a sandbox runs at most {BESIDE_RUNNING} commands beside its work at once")
    } else {
        format!("a sandbox runs at most {RUNNING} commands at once and {REMEMBERED} in all")
    };
    Err(Denial::new(DenialCode::HostBusy, why).retry_after(1))
}

#[cfg(test)]
mod tests;
