//! The task that owns a host's connection: it connects, watches, and connects again.

use crate::calls::Call;
use crate::channel::{Remains, Remote};
use crate::client::{CallError, HostClient};
use crate::key::ClientKey;
use crate::links::SshSettings;
use crate::transport::{Target, Transport};
use crate::uplink::Uplink;
use jiff::Timestamp;
use lazaret_domain::{Denial, DenialCode, HostName};
use lazaret_services::ports::host_link::LinkState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A connection that lasted so long was a good one: the pauses start anew after it.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// How long the end of a program's standard error is waited for once its output has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What callers see.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// Counts changes.
    pub(crate) generation: u64,
    pub(crate) connection: Connection,
}

#[derive(Clone, Default)]
pub(crate) enum Connection {
    /// The first attempt is under way.
    #[default]
    Connecting,
    /// Calls go here.
    Up(HostClient),
    /// There is none.
    Down {
        /// Why.
        reason: Denial,
        /// Whether an attempt failed; otherwise a connection was lost and none was made since.
        attempted: bool,
    },
}

/// See the module.
pub(crate) struct Driver {
    pub(crate) name: HostName,
    pub(crate) target: Target,
    pub(crate) key: ClientKey,
    pub(crate) settings: SshSettings,
    pub(crate) uplink: Uplink,
    pub(crate) snapshots: watch::Sender<Snapshot>,
    pub(crate) states: watch::Sender<LinkState>,
    /// A caller wants a connection now.
    pub(crate) wake: Arc<Notify>,
}

/// A connection that has answered.
struct Live {
    transport: Transport,
    client: HostClient,
    session: JoinHandle<String>,
    remains: Remains,
}

impl Driver {
    /// Keeps the connection up until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pause = Pause::new(&self.settings);
        loop {
            let attempt = tokio::time::timeout(self.settings.connect_deadline, self.connect());
            let attempt = tokio::select! {
                () = stop.cancelled() => return,
                attempt = attempt => attempt,
            };
            match attempt.unwrap_or_else(|_| Err(self.too_slow())) {
                Ok(live) => {
                    let since = Instant::now();
                    self.up(&live.client);
                    let Some(reason) = self.attend(live, &stop).await else {
                        return;
                    };
                    self.down(reason, false);
                    if since.elapsed() >= GOOD_AFTER {
                        pause = Pause::new(&self.settings);
                    }
                }
                Err(reason) => self.down(reason, true),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = pause.wait(&self.wake) => {}
            }
        }
    }

    async fn connect(&self) -> Result<Live, Denial> {
        let transport = Transport::dial(&self.target, &self.key, self.settings.keepalive).await?;
        let program = transport.start(Remote::Session).await?;
        let remains = program.remains();
        let (client, connection) = HostClient::over(program).await?;
        let session = tokio::spawn(connection);
        // Any answer in our generation of the protocol shows that the host side is there.
        match client.call(Call::ping()).await {
            Ok(_) => {}
            Err(CallError::Denied(denial)) if denial.code == DenialCode::NoSuchRoute => {}
            Err(CallError::Denied(denial)) => return Err(denial),
            Err(CallError::Broken(why)) => return Err(ended(&remains, &why).await),
        }
        Ok(Live {
            transport,
            client,
            session,
            remains,
        })
    }

    /// Serves the uplink and waits for the end of the connection; None when told to stop.
    async fn attend(&self, live: Live, stop: &CancellationToken) -> Option<Denial> {
        let Live {
            transport,
            client: _,
            session,
            remains,
        } = live;
        let reason = tokio::select! {
            () = stop.cancelled() => None,
            why = session => Some(ended(&remains, &why.unwrap_or_else(|error| error.to_string())).await),
            reason = self.keep_uplink(&transport) => Some(reason),
        };
        transport.close().await;
        reason
    }

    /// Starts the uplink again whenever it ends; resolves when the connection cannot carry it.
    async fn keep_uplink(&self, transport: &Transport) -> Denial {
        let mut pause = Pause::new(&self.settings);
        let never = Notify::new();
        loop {
            match transport.start(Remote::Uplink).await {
                Ok(program) => {
                    let remains = program.remains();
                    let since = Instant::now();
                    let why = self.uplink.serve(program).await;
                    let reason = ended(&remains, &why).await;
                    tracing::warn!(host = %self.name, %reason, "the uplink ended");
                    if since.elapsed() >= GOOD_AFTER {
                        pause = Pause::new(&self.settings);
                    }
                }
                Err(denial) if transport.is_closed() => return denial,
                Err(denial) => {
                    tracing::warn!(host = %self.name, reason = %denial, "the uplink could not be started");
                }
            }
            pause.wait(&never).await;
        }
    }

    fn up(&self, client: &HostClient) {
        tracing::info!(host = %self.name, "the host is connected");
        self.publish(Connection::Up(client.clone()));
        self.states.send_replace(LinkState::Up);
    }

    fn down(&self, reason: Denial, attempted: bool) {
        // The state keeps the time of the loss; only the reason follows the latest attempt.
        self.states.send_if_modified(|state| {
            let since = match state {
                LinkState::Down { reason: known, .. } if *known == reason => return false,
                LinkState::Down { since, .. } => *since,
                LinkState::Connecting | LinkState::Up => Timestamp::now(),
            };
            tracing::warn!(host = %self.name, %reason, "the host is not connected");
            *state = LinkState::Down {
                since,
                reason: reason.clone(),
            };
            true
        });
        self.publish(Connection::Down { reason, attempted });
    }

    fn publish(&self, connection: Connection) {
        self.snapshots.send_modify(|snapshot| {
            snapshot.generation += 1;
            snapshot.connection = connection;
        });
    }

    fn too_slow(&self) -> Denial {
        Denial::new(
            DenialCode::HostUnreachable,
            format!(
                "{}:{} did not complete a connection within {:.1} s",
                self.target.host,
                self.target.port,
                self.settings.connect_deadline.as_secs_f64()
            ),
        )
    }
}

/// Why a program of the host side ended: what it said itself is worth more than that the
/// connection broke.
async fn ended(remains: &Remains, why: &str) -> Denial {
    // Its last words may still be on their way.
    let _ = tokio::time::timeout(LAST_WORDS, remains.complete()).await;
    match (remains.status(), remains.said()) {
        (Some(status), said) if said.is_empty() => Denial::new(
            DenialCode::HostRefused,
            format!(
                "the host's program ended with status {status}: check the forced command in its authorized_keys"
            ),
        ),
        (Some(status), said) => Denial::new(
            DenialCode::HostRefused,
            format!("the host's program ended with status {status}: {said}"),
        ),
        (None, said) if said.is_empty() => Denial::new(
            DenialCode::HostUnreachable,
            format!("the connection to the host broke: {why}"),
        ),
        (None, said) => Denial::new(
            DenialCode::HostUnreachable,
            format!("the connection to the host broke: {said}"),
        ),
    }
}

/// The pauses between attempts: doubling, with a random part left out so that many links do not
/// knock in step, and cut short by a caller, but never to nothing.
struct Pause {
    next: Duration,
    shortest: Duration,
    longest: Duration,
}

impl Pause {
    fn new(settings: &SshSettings) -> Self {
        Self {
            next: settings.first_pause,
            shortest: settings.first_pause / 2,
            longest: settings.longest_pause,
        }
    }

    async fn wait(&mut self, wake: &Notify) {
        let whole = self.next;
        self.next = (whole * 2).min(self.longest);
        let pause = whole.mul_f64(rand::random_range(0.5..=1.0));
        tokio::time::sleep(self.shortest).await;
        tokio::select! {
            () = wake.notified() => {}
            () = tokio::time::sleep(pause.saturating_sub(self.shortest)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest_and_are_never_nothing() {
        let settings = SshSettings::default();
        let (mut pause, wake) = (Pause::new(&settings), Notify::new());
        let mut whole = settings.first_pause;
        for _ in 0..12 {
            let start = Instant::now();
            pause.wait(&wake).await;
            assert!(
                start.elapsed() >= whole / 2 && start.elapsed() <= whole + Duration::from_millis(2)
            );
            whole = (whole * 2).min(settings.longest_pause);
        }
        assert_eq!(whole, settings.longest_pause);
        wake.notify_one();
        let start = Instant::now();
        pause.wait(&wake).await;
        assert!(
            start.elapsed() >= settings.first_pause / 2
                && start.elapsed() < settings.longest_pause / 2
        );
    }
}
