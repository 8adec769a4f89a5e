//! Commands beside the run, in its sandbox.
//!
//! Under an idempotency key a command is run once. The name is stored before the host hears of the
//! command (an intent), and that the host has started it is stored after; a host runs a command of
//! one id once, but it forgets such commands in time, so what is known to have been started is only
//! ever read again:
//!
//! ```text
//!  name ─► stored ─► start ─► noted ─► output … exit
//!   │ known, not noted ─┘                │
//!   └ known and noted ───────────────────┘ forgotten by the host: already_done
//! ```
//!
//! One window is left to the host's memory: a controller that dies between `start` and `noted`, and
//! whose caller comes back after the host has forgotten the command.

use super::Runs;
use super::workspace::gone;
use crate::again::{already_done, digest, other_request};
use crate::driver::collect::{Collected, collect};
use crate::driver::outcome;
use crate::guest_git;
use crate::ports::store::{Asked, Named, NamedExec, RunRecord};
use crate::{IdempotencyKey, Principal};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_api::guest::ExecEnd;
use lazaret_api::host::ExecRequest;
use lazaret_api::public::{ExecResult, ExecRun, Scope};
use lazaret_domain::{Denial, DenialCode, ExecId, RunId, Span};

/// The longest a command beside the run may take.
const LIMIT: Span = Span::seconds(300);
/// The most of each stream of such a command.
const OUTPUT: usize = 1 << 20;
/// The most standard input of such a command.
const INPUT: usize = 1 << 20;

impl Runs {
    /// Runs a command beside the run, in its sandbox, and answers when it ended. Under an idempotency
    /// key it is run once, and asking again answers what it said. Needs `operate`.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ready`, `sandbox_gone`, `invalid_duration`, `too_large`,
    /// `idempotency_mismatch`, `already_done`, and why the host cannot be asked.
    pub async fn exec(
        &self,
        by: &Principal,
        run: &RunId,
        once: Option<IdempotencyKey>,
        request: ExecRun,
    ) -> Result<ExecResult, Denial> {
        by.require(Scope::Operate)?;
        let record = self.record(by, run).await?;
        let asked = match once {
            None => None,
            Some(name) => Some(Asked {
                by: by.key.clone(),
                name,
                digest: digest(&request)?,
            }),
        };
        let command = command(&record, request)?;
        match asked {
            None => Box::pin(self.beside(by, record, &command, OUTPUT)).await,
            Some(asked) => Box::pin(self.beside_once(by, record, command, asked)).await,
        }
        .and_then(|said| result(&said))
    }

    /// Runs a command under an id of its own and reads all it says.
    pub(super) async fn beside(
        &self,
        by: &Principal,
        record: RunRecord,
        command: &ExecRequest,
        cap: usize,
    ) -> Result<Collected, Denial> {
        let link = self.workspace(&record)?;
        let (sandbox, exec) = (record.plan.sandbox.clone(), self.new_exec()?);
        self.start(by, record, &exec, command).await?;
        collect(&*link, &sandbox, &exec, cap).await
    }

    /// Runs a command that has a name, unless it was run before, and reads all it says.
    async fn beside_once(
        &self,
        by: &Principal,
        record: RunRecord,
        command: ExecRequest,
        asked: Asked,
    ) -> Result<Collected, Denial> {
        // Before the name is stored: it is not used up where nothing can be run.
        let link = self.workspace(&record)?;
        let sandbox = record.plan.sandbox.clone();
        let fresh = NamedExec {
            exec: self.new_exec()?,
            started: false,
        };
        let store = &self.core.ports.store;
        let named = store.name_exec(&record.id, &asked, &fresh.exec).await?;
        let NamedExec { exec, started } = match named {
            Named::New => fresh,
            Named::Before(known) => known,
            Named::OtherRequest => return Err(other_request()),
        };
        if !started {
            let (runs, by, exec) = (self.clone(), by.clone(), exec.clone());
            let start = async move { runs.start_named(&by, record, &exec, &command, &asked).await };
            // A caller that goes away does not come between the start and the note of it.
            tokio::spawn(start).await.unwrap_or_else(|fault| {
                tracing::error!(%fault, "a command beside a run was not started to the end");
                let why = "a fault of ours; the server's log has more";
                Err(Denial::new(DenialCode::Internal, why))
            })?;
        }
        collect(&*link, &sandbox, &exec, OUTPUT)
            .await
            .map_err(forgotten)
    }

    /// Has the host start a command, and notes that it did.
    async fn start_named(
        &self,
        by: &Principal,
        record: RunRecord,
        exec: &ExecId,
        command: &ExecRequest,
        asked: &Asked,
    ) -> Result<(), Denial> {
        let run = record.id.clone();
        match self.start(by, record, exec, command).await {
            // The caller's request is the same, so it is the command of this name, and it was started
            // in other surroundings: before the repository was there, or by an older controller.
            Err(denial) if denial.code == DenialCode::SpecMismatch => {}
            started => started?,
        }
        if let Err(fault) = self.core.ports.store.exec_started(&run, asked).await {
            // What it says is true all the same; who asks again is left to the host's memory.
            tracing::warn!(%run, %exec, %fault, "that a command was started could not be noted");
        }
        Ok(())
    }

    /// Has the host start a command, once for each id.
    async fn start(
        &self,
        by: &Principal,
        mut record: RunRecord,
        exec: &ExecId,
        command: &ExecRequest,
    ) -> Result<(), Denial> {
        let link = self.workspace(&record)?;
        for last in [false, false, true] {
            match link
                .start_exec(record.fence, &record.plan.sandbox, exec, command)
                .await
            {
                Err(denial) if !last => record = self.once_more(by, &record.id, denial).await?,
                answer => return answer.map(|_| ()),
            }
        }
        Ok(())
    }

    fn new_exec(&self) -> Result<ExecId, Denial> {
        format!("x-{:016x}", self.core.ports.random.bits()).parse()
    }
}

/// What the host is asked for.
fn command(record: &RunRecord, request: ExecRun) -> Result<ExecRequest, Denial> {
    let limit = request.max_duration.unwrap_or(LIMIT);
    if limit > LIMIT {
        let why = format!("a command beside a run takes at most {LIMIT}");
        return Err(Denial::new(DenialCode::InvalidDuration, why).at("max_duration"));
    }
    let stdin = request.stdin.unwrap_or_default();
    if stdin.len() > INPUT {
        let why = format!("standard input is at most {INPUT} bytes");
        return Err(Denial::new(DenialCode::TooLarge, why).at("stdin"));
    }
    let repo = record.plan.request.repo.as_ref();
    let directory = guest_git::directory(repo.filter(|_| record.facts.base.is_some()));
    let mut command = guest_git::command(&record.id, request.command, directory, limit)?;
    command.stdin = STANDARD.encode(stdin);
    command.output_cap = 4 * OUTPUT as u64;
    Ok(command)
}

/// What a command came to, as it is told.
fn result(said: &Collected) -> Result<ExecResult, Denial> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match said.exit.end {
        ExecEnd::SandboxEnded => Err(gone()),
        ExecEnd::NotStarted => {
            let why = said
                .exit
                .message
                .as_deref()
                .map_or_else(|| "no reason was given".to_owned(), outcome::excerpt);
            let why = format!("the command could not be started: {why}");
            Err(Denial::new(DenialCode::InvalidCommand, why).at("command"))
        }
        end => Ok(ExecResult {
            exit_code: said.exit.code,
            signal: said.exit.signal,
            timed_out: end == ExecEnd::TimedOut,
            stdout: text(&said.stdout),
            stderr: text(&said.stderr),
            truncated: said.truncated,
        }),
    }
}

/// A command that was started and that the host no longer knows was run, and is not run again.
fn forgotten(denial: Denial) -> Denial {
    match denial.code {
        DenialCode::ExecNotFound => already_done(
            "the command was run under this idempotency key, and what it said is no longer kept; to run it again, \
             use another idempotency key",
        ),
        _ => denial,
    }
}
