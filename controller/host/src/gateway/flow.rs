//! The life of one admitted connection, from the guest's first segment to its record in the log.

use super::dial::{DialError, Outside};
use super::engine::{Admission, Target};
use super::hello::{self, Hello, MAX_HELLO, UNRECOGNIZED_NAME};
use super::log::{EgressLog, Volume};
use super::stream::{GuestStream, Tally};
use super::{services, web};
use lazaret_domain::SandboxId;
use lazaret_domain::egress::Permit;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The guest must confirm a connection within this time.
const ESTABLISH: Duration = Duration::from_secs(10);
/// A TLS client must say what it wants within this time.
const HELLO: Duration = Duration::from_secs(20);
/// How much of a connection is on its way through the gateway, in each direction.
const COPY_BUFFER: usize = 64 * 1024;
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
        return web::serve(stream, permit, around).await;
    }
    let mut opening = Vec::new();
    if permit.port() == TLS_PORT {
        match read_hello(&mut stream, &mut opening).await {
            Hello::For(name) if name == *permit.host() => {}
            Hello::For(_) => {
                // The client gets to know why, in TLS's own words.
                let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
                let _ = stream.shutdown().await;
                return Outcome::Refused("the TLS ClientHello names another host".to_owned());
            }
            Hello::Refused(reason) => {
                let _ = stream.shutdown().await;
                return Outcome::Refused(reason.to_owned());
            }
            Hello::Incomplete => return Outcome::Failed("no TLS ClientHello came".to_owned()),
        }
    }
    let mut upstream = match around.outside.dial(&permit).await {
        Ok(upstream) => upstream,
        Err(error) => return error.into(),
    };
    if let Err(error) = upstream.write_all(&opening).await {
        return Outcome::Failed(format!("the connection broke: {}", error.kind()));
    }
    splice(stream, upstream).await
}

/// Reads until it is clear what the client wants, or will not become so.
async fn read_hello(stream: &mut GuestStream, opening: &mut Vec<u8>) -> Hello {
    let reading = async {
        let mut piece = [0; 4096];
        while opening.len() <= MAX_HELLO {
            let length = stream.read(&mut piece).await?;
            if length == 0 {
                break;
            }
            opening.extend_from_slice(&piece[..length]);
            match hello::read(opening) {
                Hello::Incomplete => {}
                settled => return Ok(settled),
            }
        }
        io::Result::Ok(Hello::Incomplete)
    };
    match timeout(HELLO, reading).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(_)) | Err(_) => Hello::Incomplete,
    }
}

/// Passes bytes both ways. Each side is read only as fast as the other takes it.
async fn splice(mut stream: GuestStream, mut upstream: TcpStream) -> Outcome {
    // How it broke is between the two ends; both get to know by their connection ending.
    let _ =
        copy_bidirectional_with_sizes(&mut stream, &mut upstream, COPY_BUFFER, COPY_BUFFER).await;
    Outcome::Served
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
            duration_ms: u64::try_from(self.tally.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        self.log.add(
            "tcp",
            &self.destination,
            Some(self.port),
            allowed,
            &reason,
            volume,
        );
    }
}
