//! One command in the guest as a step: started once, its output told as it comes, its exit kept.

use super::outcome::ending;
use super::output::{Gatherer, Shown};
use super::session::{Halt, Leave, Session};
use super::steps::Begun;
use crate::core::Backoff;
use crate::ports::host_link::{ByteStream, HostLink};
use crate::ports::store::Fact;
use bytes::BytesMut;
use futures::StreamExt;
use lazaret_api::frame::Frame;
use lazaret_api::guest::ExecExit;
use lazaret_api::host::{EgressRecords, ExecRequest};
use lazaret_api::public::EventBody;
use lazaret_domain::run::{Ending, Outcome};
use lazaret_domain::{Denial, DenialCode, ExecId, SandboxId};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// All that a command said, up to a bound.
#[derive(Clone, Debug)]
pub(crate) struct Collected {
    /// How it ended.
    pub(crate) exit: ExecExit,
    /// Its standard output.
    pub(crate) stdout: Vec<u8>,
    /// Its standard error.
    pub(crate) stderr: Vec<u8>,
    /// Whether there was more.
    pub(crate) truncated: bool,
}

/// Reads a command's output from its start to its exit, at most `cap` bytes of each stream.
///
/// # Errors
/// What the host refused, or `host_unreachable` if the stream was cut off before the exit.
pub(crate) async fn collect(
    link: &dyn HostLink,
    sandbox: &SandboxId,
    exec: &ExecId,
    cap: usize,
) -> Result<Collected, Denial> {
    let cut = || {
        Denial::new(
            DenialCode::HostUnreachable,
            "the output of a command was cut off",
        )
    };
    let mut stream = link.output(sandbox, exec, 0, true).await?;
    let (mut buffer, mut stdout, mut stderr, mut truncated) =
        (BytesMut::new(), Vec::new(), Vec::new(), false);
    loop {
        while let Some(frame) = Frame::decode(&mut buffer).map_err(|_| cut())? {
            let (kept, bytes) = match frame {
                Frame::Stdout(bytes) => (&mut stdout, bytes),
                Frame::Stderr(bytes) => (&mut stderr, bytes),
                Frame::Gap(_) => {
                    truncated = true;
                    continue;
                }
                Frame::Exit(json) => {
                    let exit = serde_json::from_slice(&json).map_err(|_| cut())?;
                    return Ok(Collected {
                        exit,
                        stdout,
                        stderr,
                        truncated,
                    });
                }
            };
            let room = cap.saturating_sub(kept.len()).min(bytes.len());
            truncated |= room < bytes.len();
            kept.extend_from_slice(&bytes[..room]);
        }
        buffer.extend_from_slice(&stream.next().await.ok_or_else(cut)??);
    }
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
    ) -> Result<ExecExit, Leave> {
        let begun = self.begin(name).await?;
        if let Begun::Done(outcome) = begun {
            return serde_json::from_str(&outcome).map_err(|_| {
                ending(
                    Outcome::Lost,
                    "journal_diverged",
                    "the run's journal holds an outcome that cannot be read",
                )
                .into()
            });
        }
        self.start(name, request, begun).await?;
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
                return Ok(exit);
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
            while let Some(frame) = Frame::decode(&mut buffer).map_err(|_| garbled())? {
                if let Some(exit) = gatherer.push(&frame).map_err(|_| garbled())? {
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

    /// Writes what is gathered, how far it reaches, and perhaps the exit, in one commit.
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

    /// Reads all that a command said, again if that was cut off.
    pub(super) async fn collect(&mut self, name: &str, cap: usize) -> Result<Collected, Leave> {
        let (id, exec) = (self.run.plan.sandbox.clone(), exec_id(name)?);
        let read = self
            .ask(|link| {
                let (id, exec) = (id.clone(), exec.clone());
                async move { collect(&*link, &id, &exec, cap).await }
            })
            .await?;
        match read {
            Ok(said) => Ok(said),
            Err(denial) => Err(self.refusal(&denial).await?.into()),
        }
    }

    /// Tells the gateway's decisions that were not told yet. A host that cannot be asked now is asked
    /// the next time: nothing else waits for this.
    pub(super) async fn fetch_egress(&mut self) -> Result<(), Halt> {
        let Some(link) = self.core.hosts.link(&self.run.plan.host) else {
            return Ok(());
        };
        if self.run.facts.sandbox.is_none() {
            return Ok(());
        }
        let after = self.run.facts.egress_after;
        let patience = Duration::from_secs(2).min(self.core.settings.pace.patience);
        let fetched =
            tokio::time::timeout(patience, link.egress(&self.run.plan.sandbox, after)).await;
        let Ok(Ok(EgressRecords { records, .. })) = fetched else {
            return Ok(());
        };
        let new: Vec<_> = records
            .into_iter()
            .filter(|record| record.seq > after)
            .collect();
        let Some(last) = new.iter().map(|record| record.seq).max() else {
            return Ok(());
        };
        let mut facts = vec![self.facts(|facts| facts.egress_after = last)];
        let first = new.iter().map(|record| record.seq).min().unwrap_or(last);
        if first > after + 1 {
            let missing = first - after - 1;
            facts.push(Fact::Event(EventBody::Gap {
                missing,
                unit: "events".to_owned(),
            }));
        }
        facts.extend(
            new.into_iter()
                .map(|record| Fact::Event(EventBody::Egress { record })),
        );
        self.commit(facts).await
    }
}

/// A step's name as the id of its command.
fn exec_id(name: &str) -> Result<ExecId, Ending> {
    name.parse()
        .map_err(|denial: Denial| super::outcome::refused(&denial))
}
