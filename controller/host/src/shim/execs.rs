//! The commands of one sandbox. Each has an id that its asker chose: asking again never runs it
//! twice. Output goes to disk, whoever reads or stops reading; the command learns nothing of it.

use super::guest::Guest;
use super::recording::{CAP, Recorder, Recording};
use axum::body::Body;
use base64::Engine as _;
use bytes::{BufMut, Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use jiff::Timestamp;
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecEnd, ExecExit, MAX_SPEC};
use lazaret_api::host::{Exec, ExecRequest};
use lazaret_domain::{Denial, DenialCode, ExecId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
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
/// The longest standard input.
const STDIN: usize = 1 << 20;
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
    sandbox_ended: CancellationToken,
    tasks: TaskTracker,
}

impl Execs {
    /// None yet; each will have a directory in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir: dir.into(),
            entries: Arc::default(),
            sandbox_ended: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Starts a command once, or finds the one of that id.
    pub(crate) fn start(
        &self,
        id: &ExecId,
        request: &ExecRequest,
        guest: Guest,
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
        if entries.len() >= REMEMBERED
            || entries.values().filter(|entry| !entry.over()).count() >= RUNNING
        {
            return Err(Denial::new(
                DenialCode::HostBusy,
                format!(
                    "a sandbox runs at most {RUNNING} commands at once and {REMEMBERED} in all"
                ),
            ));
        }
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
        self.tasks.spawn(work);
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
        let end = |end, message: &str| ExecExit {
            end,
            code: None,
            signal: None,
            message: Some(message.to_owned()),
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        // Dropping the guest's answer is what makes the guest kill the command.
        let exit = tokio::select! {
            biased;
            () = self.sandbox_ended.cancelled() => end(ExecEnd::SandboxEnded, "the sandbox ended"),
            () = entry.cancel.cancelled() => end(ExecEnd::Cancelled, "it was cancelled"),
            done = follow(&guest, body, &mut recorder) => match done {
                Ok(exit) => exit,
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
    }
}

/// Sends the command and records what it writes, until its exit frame.
async fn follow(guest: &Guest, body: Body, recorder: &mut Recorder) -> Result<ExecExit, Denial> {
    let response = guest.send(Method::POST, "/v1/exec", body).await?;
    if !response.status().is_success() {
        return Err(crate::wire::denial_of(response).await);
    }
    let cut = || {
        Denial::new(
            DenialCode::GuestUnreachable,
            "the guest's answer was cut off before the command's end",
        )
    };
    let mut stream = response.into_body();
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = Frame::decode(&mut buffer).map_err(|error| {
            Denial::new(
                DenialCode::GuestUnreachable,
                format!("the guest sent no frames: {error}"),
            )
        })? {
            if let Frame::Exit(payload) = frame {
                return serde_json::from_slice(&payload).map_err(|_| cut());
            }
            recorder
                .output(frame)
                .await
                .map_err(|error| crate::state::internal("record output", &error))?;
        }
        let Some(Ok(part)) = stream.frame().await else {
            return Err(cut());
        };
        if let Ok(data) = part.into_data() {
            buffer.extend_from_slice(&data);
        }
    }
}

/// The body of a guest's exec call: the specification with its length before it, then the input.
fn guest_body(request: &ExecRequest) -> Result<Body, Denial> {
    let stdin = base64::engine::general_purpose::STANDARD
        .decode(&request.stdin)
        .map_err(|_| {
            Denial::new(DenialCode::InvalidRequest, "standard input is base64").at("stdin")
        })?;
    let spec = serde_json::to_vec(&request.spec)
        .map_err(|error| crate::state::internal("write a command", &error))?;
    let too_large = |what: &str| {
        Denial::new(
            DenialCode::TooLarge,
            format!("{what} is larger than allowed"),
        )
    };
    if stdin.len() > STDIN {
        return Err(too_large("standard input").at("stdin"));
    }
    let length = u32::try_from(spec.len())
        .ok()
        .filter(|_| spec.len() <= MAX_SPEC)
        .ok_or_else(|| too_large("the command").at("spec"))?;
    let mut body = BytesMut::with_capacity(4 + spec.len() + stdin.len());
    body.put_u32(length);
    body.put_slice(&spec);
    body.put_slice(&stdin);
    Ok(Body::from(Bytes::from(body)))
}
