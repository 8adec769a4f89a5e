//! The life of one admitted connection, from the guest's first segment to its record in the log.

mod splice;

use super::dial::{DialError, Outside};
use super::engine::{Admission, Target};
use super::log::{EgressLog, Volume};
use super::stream::{GuestStream, Tally};
use super::{services, web};
use lazaret_domain::SandboxId;
use lazaret_domain::egress::Permit;
use splice::{check_hello, say_why, splice, splice_checked};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// The guest must confirm a connection within this time.
const ESTABLISH: Duration = Duration::from_secs(10);
/// The port on which only TLS for the right name is let through.
const TLS_PORT: u16 = 443;
/// The port on which only HTTP for the right host is let through.
const HTTP_PORT: u16 = 80;

/// What connections need besides the guest.
pub(super) struct Surroundings {
    pub(super) sandbox: SandboxId,
    pub(super) uplink: PathBuf,
    pub(super) log: EgressLog,
    pub(super) outside: Box<dyn Outside>,
}

/// Serves one connection until it ends.
pub(super) async fn run(admission: Admission, around: Arc<Surroundings>) {
    let Admission { stream, target } = admission;
    let tally = stream.tally();
    let served = async {
        if !matches!(timeout(ESTABLISH, stream.established()).await, Ok(Ok(()))) {
            return;
        }
        match target {
            Target::Service => services::serve(stream, &around).await,
            Target::Host(permit) => {
                let mut record = Record::new(
                    &around.log,
                    &tally,
                    permit.host(),
                    permit.port(),
                    permit.rule(),
                );
                record.outcome(to_host(stream, permit, &around).await);
            }
            Target::Address(dialable, rule) => {
                let to = dialable.address();
                let mut record = Record::new(&around.log, &tally, &to.ip(), to.port(), &rule);
                record.outcome(match around.outside.connect(&dialable).await {
                    Ok(upstream) => splice(stream, upstream).await,
                    Err(error) => error.into(),
                });
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = tally.idle() => {}
    }
}

/// How a connection went.
pub(super) enum Outcome {
    /// Bytes went through, until it ended.
    Served,
    /// It was allowed, but came to nothing.
    Failed(String),
    /// On a closer look it is not allowed.
    Refused(String),
}

impl From<DialError> for Outcome {
    fn from(error: DialError) -> Self {
        if error.is_refusal() {
            Self::Refused(error.to_string())
        } else {
            Self::Failed(error.to_string())
        }
    }
}

async fn to_host(mut stream: GuestStream, permit: Permit, around: &Surroundings) -> Outcome {
    if permit.port() == HTTP_PORT {
        web::serve(stream, &permit, around).await;
        return Outcome::Served;
    }
    let mut opening = Vec::new();
    if permit.port() == TLS_PORT
        && let Err(outcome) = check_hello(&mut stream, &mut opening, permit.host()).await
    {
        say_why(&mut stream, &outcome).await;
        return outcome;
    }
    let mut upstream = match around.outside.dial(&permit).await {
        Ok(upstream) => upstream,
        Err(error) => return error.into(),
    };
    if permit.port() != TLS_PORT {
        return splice_checked(stream, upstream, permit.host()).await;
    }
    if let Err(error) = upstream.write_all(&opening).await {
        return Outcome::Failed(format!("the connection broke: {}", error.kind()));
    }
    splice(stream, upstream).await
}

/// The record of a connection, written when it ends, however it ends.
struct Record<'a> {
    log: &'a EgressLog,
    tally: &'a Tally,
    destination: String,
    port: u16,
    rule: String,
    outcome: Outcome,
}

impl<'a> Record<'a> {
    fn new(
        log: &'a EgressLog,
        tally: &'a Tally,
        destination: &dyn Display,
        port: u16,
        rule: &str,
    ) -> Self {
        let (destination, rule) = (destination.to_string(), rule.to_owned());
        log.begin();
        Self {
            log,
            tally,
            destination,
            port,
            rule,
            outcome: Outcome::Served,
        }
    }

    fn outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let (allowed, reason) = match &self.outcome {
            Outcome::Served => (true, self.rule.clone()),
            Outcome::Failed(why) => (true, format!("{}; {why}", self.rule)),
            Outcome::Refused(why) => (false, why.clone()),
        };
        let volume = Volume {
            bytes_out: self.tally.sent(),
            bytes_in: self.tally.received(),
            duration_ms: lazaret_domain::millis(self.tally.elapsed()),
        };
        self.log.add(
            "tcp",
            &self.destination,
            Some(self.port),
            allowed,
            &reason,
            volume,
        );
        self.log.end();
    }
}
