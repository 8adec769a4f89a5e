//! One command in the guest as a step: started once, its output told as it comes, its exit kept.

use super::collect::{Collected, collect};
use super::outcome::ending;
use super::output::{Gatherer, Shown};
use super::session::{Halt, Leave, Session};
use super::steps::Begun;
use crate::core::Backoff;
use crate::ports::host_link::ByteStream;
use crate::ports::store::Fact;
use bytes::BytesMut;
use futures::StreamExt;
use lazaret_api::frame::Frame;
use lazaret_api::guest::ExecExit;
use lazaret_api::host::{ExecRequest, WakeFrom};
use lazaret_domain::run::{Ending, Outcome};
use lazaret_domain::{Denial, DenialCode, ExecId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How long a sandbox may take to wake.
const WAKE: Duration = Duration::from_secs(120);

/// A command that was run as a step.
#[derive(Clone, Debug)]
pub(super) struct Stepped {
    /// How it ended.
    pub(super) exit: ExecExit,
    /// Its standard output where that is not shown, if it was read in one piece.
    pub(super) stdout: Option<Vec<u8>>,
}

/// What reading came to.
enum Read {
    /// Bytes.
    Bytes(bytes::Bytes),
    /// What is gathered is to be written.
    Write,
    /// The gateway is to be asked.
    Look,
    /// The stream was cut off.
    Cut,
}

impl Session {
    /// Starts a command, unless it was started before.
    pub(super) async fn start(
        &mut self,
        name: &str,
        request: &ExecRequest,
        begun: Begun,
    ) -> Result<(), Leave> {
        // What was known when the command before ended is not known any more.
        self.egress_known = None;
        let (fence, id, exec) = (self.fence(), self.run.plan.sandbox.clone(), exec_id(name)?);
        if begun == Begun::Before {
            let seen = self
                .ask(|link| {
                    let (id, exec) = (id.clone(), exec.clone());
                    async move { link.exec(&id, &exec).await }
                })
                .await?;
            match seen {
                Ok(_) => return Ok(()),
                Err(denial) if denial.code == DenialCode::ExecNotFound => {}
                Err(denial) => return Err(self.refusal(&denial).await?.into()),
            }
        }
        let started = self
            .ask(|link| {
                let (id, exec, request) = (id.clone(), exec.clone(), request.clone());
                async move { link.start_exec(fence, &id, &exec, &request).await }
            })
            .await?;
        match started {
            Ok(_) => Ok(()),
            // It fell asleep while nobody had work for it: between two steps, with this controller away.
            Err(denial) if denial.code == DenialCode::SandboxAsleep => {
                // It is at work already, so it is not asked whether there is a place; the others see its.
                let core = Arc::clone(&self.core);
                let _place = core.places.give(&self.run.id);
                let woken = self
                    .ask_for(WAKE, |link| {
                        let id = id.clone();
                        async move { link.wake(fence, &id, WakeFrom::Memory).await }
                    })
                    .await?;
                match woken {
                    Ok(sandbox) => {
                        let seen = Some(Self::sandbox_facts(&sandbox));
                        let facts = self.facts(|facts| facts.sandbox = seen);
                        self.commit(vec![facts]).await?;
                    }
                    Err(denial) => return Err(self.refusal(&denial).await?.into()),
                }
                let started = self
                    .ask(|link| {
                        let (id, exec, request) = (id.clone(), exec.clone(), request.clone());
                        async move { link.start_exec(fence, &id, &exec, &request).await }
                    })
                    .await?;
                match started {
                    Ok(_) => Ok(()),
                    Err(denial) => Err(self.refusal(&denial).await?.into()),
                }
            }
            Err(denial) => Err(self.refusal(&denial).await?.into()),
        }
    }

    /// The ending behind a host's refusal that concerns a command.
    async fn refusal(&mut self, denial: &Denial) -> Result<Ending, Leave> {
        match denial.code {
            DenialCode::SandboxGone | DenialCode::SandboxNotFound | DenialCode::ExecNotFound => {
                self.sandbox_ending().await
            }
            _ => Ok(super::outcome::refused(denial)),
        }
    }

    /// Runs a command as a step and tells its output.
    pub(super) async fn command_step(
        &mut self,
        name: &str,
        request: &ExecRequest,
        shown: Shown,
    ) -> Result<Stepped, Leave> {
        let begun = self.begin(name).await?;
        if let Begun::Done(outcome) = begun {
            let exit = serde_json::from_str(&outcome).map_err(|_| {
                ending(
                    Outcome::Lost,
                    "journal_diverged",
                    "the run's journal holds an outcome that cannot be read",
                )
            })?;
            return Ok(Stepped { exit, stdout: None });
        }
        self.start(name, request, begun).await?;
        // What became known before is stored while the command runs.
        self.flush().await?;
        if self.run.facts.cancel_asked.is_some() {
            self.cancel(name).await?;
        }
        let cursor = self
            .step(name)
            .map(|step| step.cursor.clone())
            .unwrap_or_default();
        let mut gatherer = Gatherer::from(cursor, shown);
        let (id, exec) = (self.run.plan.sandbox.clone(), exec_id(name)?);
        let mut backoff = Backoff::new(&self.core.settings.pace);
        loop {
            let offset = gatherer.offset();
            let stream = self
                .ask(|link| {
                    let (id, exec) = (id.clone(), exec.clone());
                    async move { link.output(&id, &exec, offset, true).await }
                })
                .await?;
            let stream = match stream {
                Ok(stream) => stream,
                Err(denial) => return Err(self.refusal(&denial).await?.into()),
            };
            if let Some(exit) = self.follow(name, stream, &mut gatherer).await? {
                let stdout = gatherer.aside();
                self.egress_known = exit.egress_seq;
                return Ok(Stepped { exit, stdout });
            }
            if gatherer.offset() > offset {
                backoff = Backoff::new(&self.core.settings.pace);
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Follows one stream to the command's exit, or to where it was cut off.
    async fn follow(
        &mut self,
        name: &str,
        mut stream: ByteStream,
        gatherer: &mut Gatherer,
    ) -> Result<Option<ExecExit>, Leave> {
        let pace = self.core.settings.pace;
        let mut buffer = BytesMut::new();
        let mut look_at = Instant::now() + pace.look;
        let mut write_at: Option<Instant> = None;
        loop {
            let read = tokio::select! {
                biased;
                () = sleep_until(write_at.unwrap_or(look_at)), if write_at.is_some() => Read::Write,
                () = sleep_until(look_at) => Read::Look,
                bytes = stream.next() => match bytes {
                    Some(Ok(bytes)) => Read::Bytes(bytes),
                    Some(Err(_)) | None => Read::Cut,
                },
            };
            match read {
                Read::Bytes(bytes) => buffer.extend_from_slice(&bytes),
                Read::Write => {
                    self.write(name, gatherer, None).await?;
                    write_at = None;
                }
                Read::Look => {
                    // The stream of a host that hangs is silent for ever.
                    if self.overdue() {
                        self.write(name, gatherer, None).await?;
                        return Err(self.outlived().await?.into());
                    }
                    self.fetch_egress().await?;
                    look_at = Instant::now() + pace.look;
                }
                Read::Cut => {
                    self.write(name, gatherer, None).await?;
                    return Ok(None);
                }
            }
            let garbled = || {
                ending(
                    Outcome::Interrupted,
                    "output_garbled",
                    "the host sent output that is out of form",
                )
            };
            loop {
                let exit = match Frame::decode(&mut buffer) {
                    Ok(None) => break,
                    Ok(Some(frame)) => gatherer.push(&frame).ok(),
                    Err(_) => None,
                };
                let Some(exit) = exit else {
                    // Nobody follows it any more: it is not to work on.
                    self.write(name, gatherer, None).await?;
                    self.cancel(name).await?;
                    return Err(garbled().into());
                };
                if let Some(exit) = exit {
                    self.write(name, gatherer, Some(&exit)).await?;
                    return Ok(Some(exit));
                }
                if gatherer.full() {
                    self.write(name, gatherer, None).await?;
                    write_at = None;
                }
            }
            if write_at.is_none() && !gatherer.is_empty() {
                write_at = Some(Instant::now() + pace.gather);
            }
        }
    }

    /// Writes what is gathered and how far it reaches, in one commit. With the exit all of it goes
    /// with the next commit, which comes at once.
    async fn write(
        &mut self,
        name: &str,
        gatherer: &mut Gatherer,
        exit: Option<&ExecExit>,
    ) -> Result<(), Halt> {
        if gatherer.is_empty() && exit.is_none() {
            return Ok(());
        }
        let (events, cursor) = gatherer.take();
        let mut facts: Vec<_> = events.into_iter().map(Fact::Event).collect();
        facts.push(Fact::Read(name.to_owned(), cursor));
        if let Some(exit) = exit {
            let outcome = serde_json::to_string(exit).unwrap_or_default();
            facts.push(Fact::Done(name.to_owned(), outcome));
            self.put_off(facts);
            return Ok(());
        }
        self.commit(facts).await
    }

    async fn cancel(&mut self, name: &str) -> Result<(), Leave> {
        let (fence, id, exec) = (self.fence(), self.run.plan.sandbox.clone(), exec_id(name)?);
        let answer = self
            .ask(|link| {
                let (id, exec) = (id.clone(), exec.clone());
                async move { link.cancel_exec(fence, &id, &exec).await }
            })
            .await?;
        match answer {
            Ok(()) => Ok(()),
            Err(denial) => Err(self.refusal(&denial).await?.into()),
        }
    }

    /// Reads all that a command said, again if that was cut off. One that may still run is waited for
    /// as long as is said.
    pub(super) async fn collect(
        &mut self,
        name: &str,
        cap: usize,
        longest: Option<Duration>,
    ) -> Result<Collected, Leave> {
        let (id, exec) = (self.run.plan.sandbox.clone(), exec_id(name)?);
        let pace = self.core.settings.pace;
        let read = self
            .ask_for(longest.unwrap_or(pace.call), |link| {
                let (id, exec) = (id.clone(), exec.clone());
                async move { collect(&*link, &id, &exec, cap).await }
            })
            .await?;
        match read {
            Ok(said) => Ok(said),
            Err(denial) => Err(self.refusal(&denial).await?.into()),
        }
    }
}

/// A step's name as the id of its command.
fn exec_id(name: &str) -> Result<ExecId, Ending> {
    name.parse()
        .map_err(|denial: Denial| super::outcome::refused(&denial))
}
