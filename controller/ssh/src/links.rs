//! The port's implementation: links that renew themselves.

use crate::calls::Call;
use crate::client::{CallError, HostClient};
use crate::driver::{Connection, Driver, Snapshot};
use crate::key::{ClientKey, HostKeyPin};
use crate::over::{Answer, Exchange, Over};
use crate::transport::Target;
use crate::uplink::{Uplink, UplinkService};
use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_domain::{Denial, DenialCode, HostName};
use lazaret_services::ports::host_link::{HostAddress, HostLink, HostLinks, LinkState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The times and bounds of a link. The defaults keep the port's promise of an answer within ten
/// seconds.
#[derive(Clone, Debug)]
pub struct SshSettings {
    /// Connecting, authenticating and the first answer together take at most this long.
    pub connect_deadline: Duration,
    /// A call waits at most this long for a connection.
    pub call_deadline: Duration,
    /// After so long without a sign of life one is asked for; three unanswered end the connection.
    pub keepalive: Duration,
    /// The first pause between attempts; it doubles, and a random part of it is left out.
    pub first_pause: Duration,
    /// The longest pause between attempts.
    pub longest_pause: Duration,
    /// The most calls in flight to one host, streams included.
    pub in_flight: usize,
}

impl Default for SshSettings {
    fn default() -> Self {
        Self {
            connect_deadline: Duration::from_secs(8),
            call_deadline: Duration::from_millis(9500),
            keepalive: Duration::from_secs(2),
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(30),
            in_flight: 512,
        }
    }
}

/// Makes links over SSH.
pub struct SshLinks {
    key: ClientKey,
    routes: UplinkService,
    settings: SshSettings,
}

impl SshLinks {
    /// Links that authenticate with this key and answer uplinks with these routes.
    #[must_use]
    pub fn new(key: ClientKey, routes: UplinkService, settings: SshSettings) -> Self {
        Self {
            key,
            routes,
            settings,
        }
    }
}

impl HostLinks for SshLinks {
    /// Must be called within a tokio runtime: the link's task is started there.
    fn connect(&self, name: &HostName, address: &HostAddress) -> Arc<dyn HostLink> {
        let (snapshots, snapshot) = watch::channel(Snapshot::default());
        let (states, state) = watch::channel(LinkState::Connecting);
        let wake = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        match address.host_key.parse::<HostKeyPin>() {
            Ok(pin) => {
                let driver = Driver {
                    name: name.clone(),
                    target: Target {
                        user: address.user.clone(),
                        host: address.host.clone(),
                        port: address.port,
                        pin,
                    },
                    key: self.key.clone(),
                    settings: self.settings.clone(),
                    uplink: Uplink::new(name.clone(), self.routes.clone()),
                    snapshots,
                    states,
                    wake: Arc::clone(&wake),
                };
                tokio::spawn(driver.run(stop.clone()));
            }
            Err(reason) => {
                // Without a pin nothing is ever dialled: both senders end here, and every call
                // gets this reason.
                states.send_replace(LinkState::Down {
                    since: Timestamp::now(),
                    reason: reason.clone(),
                });
                snapshots.send_replace(Snapshot {
                    generation: 1,
                    connection: Connection::Down {
                        reason,
                        attempted: true,
                    },
                });
            }
        }
        Arc::new(Over(Link {
            snapshot,
            state,
            wake,
            in_flight: Arc::new(Semaphore::new(self.settings.in_flight)),
            call_deadline: self.settings.call_deadline,
            _stop: stop.drop_guard(),
        }))
    }
}

/// A caller's end of a link. Dropping it ends the connection.
struct Link {
    snapshot: watch::Receiver<Snapshot>,
    state: watch::Receiver<LinkState>,
    wake: Arc<Notify>,
    in_flight: Arc<Semaphore>,
    call_deadline: Duration,
    _stop: DropGuard,
}

impl Link {
    /// The connection of a later generation than `used`, waiting for one attempt if there is none.
    async fn client(&self, used: Option<u64>) -> Result<(u64, HostClient), Denial> {
        let mut snapshot = self.snapshot.clone();
        let asked_at = snapshot.borrow().generation;
        let found = tokio::time::timeout(self.call_deadline, async {
            loop {
                let last_reason = {
                    let now = snapshot.borrow_and_update();
                    match &now.connection {
                        Connection::Up(client) if Some(now.generation) != used => {
                            return Ok((now.generation, client.clone()));
                        }
                        // The driver has yet to notice that this one broke.
                        Connection::Up(_) | Connection::Connecting => None,
                        Connection::Down { reason, attempted } => {
                            if *attempted && now.generation > asked_at {
                                return Err(reason.clone());
                            }
                            self.wake.notify_one();
                            Some(reason.clone())
                        }
                    }
                };
                if snapshot.changed().await.is_err() {
                    return Err(last_reason.unwrap_or_else(|| {
                        Denial::new(
                            DenialCode::Stopping,
                            "the link to this host is being closed",
                        )
                    }));
                }
            }
        });
        found.await.unwrap_or_else(|_| {
            Err(Denial::new(
                DenialCode::HostUnreachable,
                format!(
                    "no connection to the host within {:.1} s",
                    self.call_deadline.as_secs_f64()
                ),
            ))
        })
    }
}

#[async_trait]
impl Exchange for Link {
    fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    async fn exchange(&self, call: Call) -> Result<Answer, Denial> {
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            return Err(Denial::new(
                DenialCode::HostBusy,
                "too many calls to this host are in flight",
            )
            .retry_after(1));
        };
        let again = call.again();
        let (generation, client) = self.client(None).await?;
        let broken = match client.call(call).await {
            Ok(response) => return Ok(Answer::new(response, Some(permit))),
            Err(CallError::Denied(denial)) => return Err(denial),
            Err(CallError::Broken(why)) => why,
        };
        // Every call of the host API has the same effect once or twice, so one that was cut off is
        // made again over the next connection, once.
        let Some(call) = again else {
            return Err(Denial::new(
                DenialCode::HostUnreachable,
                format!("the connection broke: {broken}"),
            ));
        };
        let (_, client) = self.client(Some(generation)).await?;
        match client.call(call).await {
            Ok(response) => Ok(Answer::new(response, Some(permit))),
            Err(CallError::Denied(denial)) => Err(denial),
            Err(CallError::Broken(why)) => Err(Denial::new(
                DenialCode::HostUnreachable,
                format!("the connection broke twice: {why}"),
            )),
        }
    }
}
