//! Who comes in: a limited number of connections, and a part of them for each client.
//!
//! Nobody has said anything yet, so a client is here the address that connects. A configured proxy
//! stands for many clients and has no part of its own: what it brings is counted request by request,
//! by the client that it names.

use super::opening;
use crate::client::{self, Client};
use crate::places::{Share, Shares};
use crate::settings::EdgeSettings;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections open at the same time. Further ones wait in the listener's queue.
const CONNECTIONS: usize = 1024;
/// Connections beyond their client's part that are told so at the same time. Further ones are closed.
const SURPLUS: usize = 64;
/// After a failed accept (no descriptors left, say) it is tried again after this long.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// The listener and what it may let in.
pub(super) struct Door {
    listener: TcpListener,
    slots: Arc<Semaphore>,
    surplus: Arc<Semaphore>,
    clients: Shares<Client>,
    proxies: Vec<IpNet>,
    stall: Duration,
}

/// A connection that came in.
pub(super) struct Entered {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) place: Place,
}

/// What a connection holds while it is open.
pub(super) enum Place {
    /// A slot, and where it is counted a part of its client's.
    Slot {
        _slot: OwnedSemaphorePermit,
        _part: Option<Share<Client>>,
    },
    /// Its client has its part already.
    Surplus { _place: OwnedSemaphorePermit },
}

impl Place {
    /// Whether all its requests are refused.
    pub(super) fn is_surplus(&self) -> bool {
        matches!(self, Self::Surplus { .. })
    }
}

impl Door {
    pub(super) fn new(listener: TcpListener, settings: &EdgeSettings) -> Self {
        Self {
            listener,
            slots: Arc::new(Semaphore::new(CONNECTIONS)),
            surplus: Arc::new(Semaphore::new(SURPLUS)),
            clients: Shares::of(settings.connections_per_client),
            proxies: settings.trusted_proxies.clone(),
            stall: settings.deadlines.stall,
        }
    }

    /// The next connection that may come in, once there is room for one.
    pub(super) async fn next(&self) -> Entered {
        loop {
            // Neither semaphore is ever closed.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                std::future::pending().await
            };
            let (stream, peer) = self.accept().await;
            let Some(place) = self.place(slot, peer) else {
                tracing::debug!(%peer, "a connection was closed: its client has too many");
                continue;
            };
            if let Err(fault) = opening::prepare(&stream, self.stall) {
                tracing::debug!(%peer, %fault, "a connection's options could not be set");
            }
            return Entered {
                stream,
                peer,
                place,
            };
        }
    }

    async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(fault) => {
                    tracing::warn!(%fault, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn place(&self, slot: OwnedSemaphorePermit, peer: SocketAddr) -> Option<Place> {
        if client::is_proxy(peer.ip(), &self.proxies) {
            return Some(Place::Slot {
                _slot: slot,
                _part: None,
            });
        }
        match self.clients.take(&Client::of(peer.ip())) {
            Some(part) => Some(Place::Slot {
                _slot: slot,
                _part: Some(part),
            }),
            None => {
                let place = Arc::clone(&self.surplus).try_acquire_owned().ok()?;
                Some(Place::Surplus { _place: place })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::sync::CancellationToken;

    async fn door(proxies: &[&str]) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut settings = EdgeSettings::new(&format!("http://{address}"), address, stop).unwrap();
        settings.connections_per_client = 2;
        settings.trusted_proxies = proxies.iter().map(|net| net.parse().unwrap()).collect();
        Door::new(listener, &settings)
    }

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 4000)
    }

    /// Which of these connections get a slot, and which a place to be refused at, all held.
    fn places(door: &Door, from: &[&str]) -> (Vec<bool>, Vec<Place>) {
        let each = from.iter().map(|address| {
            let slot = Arc::clone(&door.slots).try_acquire_owned().unwrap();
            door.place(slot, peer(address)).unwrap()
        });
        let held: Vec<_> = each.collect();
        (held.iter().map(|place| !place.is_surplus()).collect(), held)
    }

    #[tokio::test]
    async fn a_client_has_its_part_of_the_slots_and_a_proxy_is_not_a_client() {
        let door = door(&["10.0.0.0/8"]).await;
        let from = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"];
        let (slots, held) = places(&door, &from);
        assert_eq!(slots, [true, true, false, true]);
        // A connection that is refused holds no slot.
        assert_eq!(door.slots.available_permits(), CONNECTIONS - 3);
        // One network of IPv6 addresses is one client, and proxies stand for many.
        let (slots, _held) = places(&door, &["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        assert_eq!(slots, [true, true, false]);
        let (slots, _held) = places(&door, &["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"]);
        assert_eq!(slots, [true, true, true]);
        drop(held);
        assert_eq!(places(&door, &["192.0.2.1"]).0, [true]);
    }

    #[tokio::test]
    async fn places_to_be_refused_at_are_few() {
        let door = door(&[]).await;
        let (_, _held) = places(&door, &["192.0.2.1"; 2 + SURPLUS]);
        let slot = Arc::clone(&door.slots).try_acquire_owned().unwrap();
        assert!(door.place(slot, peer("192.0.2.1")).is_none());
        assert_eq!(places(&door, &["192.0.2.2"]).0, [true]);
    }
}
