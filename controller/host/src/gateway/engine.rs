//! The link: what happens to a frame. Does no I/O and spawns nothing, so that tests and the fuzzer
//! can drive it frame by frame.
//!
//! ```text
//!  frame ─ look ─┬─ refused: logged; the stack, which has no socket for it, says so to the guest
//!                ├─ first segment ─ judge ─┬─ refused: logged, reset by the stack
//!                │                         └─ admitted: a socket for just this connection, then
//!                └─ anything else ─────────────► the stack
//! ```
//!
//! A socket listens only between the judgement on a first segment and its delivery.

use super::cable::{CableFault, Wire};
use super::dns;
use super::log::EgressLog;
use super::names::Names;
use super::screen::{DNS_PORT, Seen, look};
use super::stream::{GuestStream, Net, Shared};
use lazaret_api::guest::net;
use lazaret_domain::egress::{Dialable, EgressPolicy, Permit};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, IpListenEndpoint};
use std::net::{IpAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The most connections at once.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The most of them that the guest has not confirmed yet.
const MAX_HALF_OPEN: usize = 64;
/// This many connections get buffers for full speed …
const FAST_CONNECTIONS: usize = 32;
/// … of this size in each direction,
const FAST_BUFFER: usize = 256 * 1024 - 1;
/// all others get this much.
const PLAIN_BUFFER: usize = 64 * 1024 - 1;
// The stack (smoltcp 0.14) takes the window of its SYN-ACK, which is never scaled, for a scaled one.
// Of any other size than these, a buffer is smaller than that: the stack would accept data beyond its
// end, and panic when the guest filled the gap.
const _: () = assert!((FAST_BUFFER + 1).is_power_of_two() && (PLAIN_BUFFER + 1).is_power_of_two());
/// The port of the gateway's own services.
const SERVICE_PORT: u16 = 80;

/// What an admitted connection is for.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// The gateway's own services.
    Service,
    /// A host that the policy allows.
    Host(Permit),
    /// An address that a rule with a network allows.
    Address(Dialable, String),
}

/// A connection that was let in.
pub(super) struct Admission {
    pub(super) stream: GuestStream,
    pub(super) target: Target,
}

/// What a step did.
#[derive(Default)]
pub(super) struct Step {
    /// The connections that were let in.
    pub(super) admitted: Vec<Admission>,
    /// When to take the next step, if nothing else happens before.
    pub(super) next: Option<Duration>,
}

/// The link's state.
pub(super) struct Engine {
    pub(super) wire: Wire,
    pub(super) shared: Arc<Shared>,
    started: Instant,
    names: Names,
    policy: Arc<EgressPolicy>,
    log: EgressLog,
    dns: SocketHandle,
}

impl Engine {
    pub(super) fn new(policy: Arc<EgressPolicy>, log: EgressLog, seed: u64) -> Self {
        let mut wire = Wire::default();
        let mut config = Config::new(EthernetAddress(net::GATEWAY_MAC).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // There is room for two; a failure would leave the gateway mute, never open.
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(net::GATEWAY), net::PREFIX));
        });
        interface.set_any_ip(true);
        let mut sockets = SocketSet::new(Vec::new());
        let buffer =
            || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 * 1024]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        let _ = socket.bind(IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(net::GATEWAY)),
            port: DNS_PORT,
        });
        let dns = sockets.add(socket);
        let shared = Arc::new(Shared::new(Net {
            interface,
            sockets,
            released: Vec::new(),
        }));
        Self {
            wire,
            shared,
            started: Instant::now(),
            names: Names::default(),
            policy,
            log,
            dns,
        }
    }

    /// Takes in what has come, sends what is to go, and clears away what has ended.
    pub(super) fn step(&mut self) -> Result<Step, CableFault> {
        // Made before the lock is taken, so that a stream it holds is never dropped under the lock.
        let mut step = Step::default();
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.net();
        let net = &mut *guard;
        let now = StackInstant::from_micros(
            i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
        );
        while self.wire.may_send() {
            let Some(frame) = self.wire.front()? else {
                break;
            };
            match look(frame) {
                Seen::Ignore => {}
                Seen::Pass => self.deliver(net, now),
                Seen::Refuse(refused) => {
                    self.log.refuse(
                        refused.kind,
                        &refused.destination,
                        refused.port,
                        &refused.reason,
                    );
                    if refused.answer {
                        self.deliver(net, now);
                    }
                }
                Seen::Open { from, to } => step.admitted.extend(self.open(net, now, from, to)),
            }
            self.wire.advance();
        }
        self.answer_queries(net);
        while net
            .interface
            .poll_egress(now, &mut self.wire, &mut net.sockets)
            != PollResult::None
        {}
        clear_away(net);
        if self.wire.may_send() {
            // The stack answers "now" when it waits for something that has no time: no busy loop.
            let stack = net.interface.poll_delay(now, &net.sockets);
            let stack = stack.map(|delay| {
                Duration::from_micros(delay.total_micros()).max(Duration::from_millis(1))
            });
            let linger = net
                .released
                .iter()
                .map(|(_, until)| until.saturating_duration_since(Instant::now()))
                .min();
            step.next = stack.into_iter().chain(linger).min();
        }
        Ok(step)
    }

    /// Gives the frame in front to the stack.
    fn deliver(&mut self, net: &mut Net, now: StackInstant) {
        self.wire.stage();
        net.interface
            .poll_ingress_single(now, &mut self.wire, &mut net.sockets);
    }

    /// Judges the first segment of a connection and delivers it. With no socket for it, the stack
    /// resets the connection.
    fn open(
        &mut self,
        net: &mut Net,
        now: StackInstant,
        from: u16,
        to: SocketAddrV4,
    ) -> Option<Admission> {
        let known = sockets(net).any(|(_, socket)| {
            socket
                .remote_endpoint()
                .is_some_and(|remote| remote.port == from)
                && socket
                    .local_endpoint()
                    .is_some_and(|local| local == SocketAddrV4::into(to))
        });
        if known {
            // Sent again: the stack knows what to do.
            self.deliver(net, now);
            return None;
        }
        let admitted = self
            .judge(net, to)
            .and_then(|target| Some((listen(net, to)?, target)));
        self.deliver(net, now);
        let (handle, target) = admitted?;
        if net.sockets.get::<tcp::Socket<'_>>(handle).is_listening() {
            // The stack did not like the segment after all.
            net.sockets.remove(handle);
            return None;
        }
        Some(Admission {
            stream: GuestStream::new(Arc::clone(&self.shared), handle),
            target,
        })
    }

    /// Whether a connection may be made, and what it is for. Logs it if not.
    fn judge(&self, net: &mut Net, to: SocketAddrV4) -> Option<Target> {
        let (address, port) = (*to.ip(), to.port());
        let name = self.names.name_of(address);
        let judged = if address == net::GATEWAY {
            if port == SERVICE_PORT {
                Ok(Target::Service)
            } else {
                Err("no such service".to_owned())
            }
        } else if let Some(name) = name {
            self.policy
                .permit(name, port)
                .map(Target::Host)
                .map_err(|refusal| refusal.to_string())
        } else {
            let judged = self.policy.permit_address(IpAddr::V4(address), port);
            judged
                .map(|(to, rule)| Target::Address(to, rule.to_owned()))
                .map_err(|refusal| refusal.to_string())
        };
        let half_open = sockets(net)
            .filter(|(_, socket)| socket.state() == tcp::State::SynReceived)
            .count();
        let judged = match judged {
            Ok(_) if sockets(net).count() >= MAX_CONNECTIONS => {
                Err("the sandbox has too many connections".to_owned())
            }
            Ok(_) if half_open >= MAX_HALF_OPEN => {
                Err("the sandbox has too many unconfirmed connections".to_owned())
            }
            judged => judged,
        };
        match judged {
            Ok(target) => Some(target),
            Err(reason) => {
                let kind = if address == net::GATEWAY {
                    "service"
                } else {
                    "tcp"
                };
                match name {
                    Some(name) => self.log.refuse(kind, name, Some(port), &reason),
                    None => self.log.refuse(kind, &address, Some(port), &reason),
                }
                None
            }
        }
    }

    fn answer_queries(&mut self, net: &mut Net) {
        let socket = net.sockets.get_mut::<udp::Socket<'_>>(self.dns);
        while socket.can_send()
            && let Ok((query, from)) = socket.recv()
        {
            if let Some(answer) = dns::answer(query, &mut self.names, &self.policy, &self.log) {
                // Without room for it the answer is lost, as datagrams may be; the guest asks again.
                let _ = socket.send_slice(&answer, from);
            }
        }
    }
}

/// The TCP sockets.
fn sockets(net: &Net) -> impl Iterator<Item = (SocketHandle, &tcp::Socket<'static>)> {
    net.sockets
        .iter()
        .filter_map(|(handle, socket)| match socket {
            smoltcp::socket::Socket::Tcp(socket) => Some((handle, socket)),
            smoltcp::socket::Socket::Udp(_) => None,
        })
}

/// A socket that listens for the one connection whose first segment comes next.
fn listen(net: &mut Net, to: SocketAddrV4) -> Option<SocketHandle> {
    let size = if sockets(net).count() < FAST_CONNECTIONS {
        FAST_BUFFER
    } else {
        PLAIN_BUFFER
    };
    let buffer = || tcp::SocketBuffer::new(vec![0; size]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    socket
        .listen(IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*to.ip())),
            port: to.port(),
        })
        .ok()?;
    Some(net.sockets.add(socket))
}

/// Removes the sockets that nobody needs any more: their stream is gone, and the guest has been told
/// everything, or has had its time.
fn clear_away(net: &mut Net) {
    let now = Instant::now();
    let sockets = &mut net.sockets;
    net.released.retain(|(handle, until)| {
        let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
        let over = match socket.state() {
            tcp::State::Closed => socket.remote_endpoint().is_none(),
            tcp::State::TimeWait => true,
            _ => false,
        };
        let overdue = now >= *until;
        if overdue && !over && socket.is_open() {
            // The reset goes out with the next step.
            socket.abort();
        }
        let remove = over || (overdue && !socket.is_open());
        if remove {
            sockets.remove(*handle);
        }
        !remove
    });
}
