//! A guest for tests: a second TCP/IP stack on the other end of a cable, without any VM.
//!
//! It has the static settings of every guest. Everything waits for a value: [`TestGuest::until`]
//! drives the stack until its closure has one.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test file uses its own part of it"
)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

use bytes::{Buf, BufMut, BytesMut};
use lazaret_api::guest::net;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, IpEndpoint};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

/// The answer to a DNS query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsAnswer {
    /// The response code; 3 is NXDOMAIN.
    pub code: u8,
    /// The addresses.
    pub addresses: Vec<Ipv4Addr>,
}

/// How a connection ended, and what came before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub received: Vec<u8>,
    pub reset: bool,
}

#[derive(Default)]
struct Link {
    inbound: BytesMut,
    outbound: BytesMut,
    /// Frames that came, if they are to be kept for a test to look at.
    kept: Option<Vec<Vec<u8>>>,
}

pub struct TestGuest {
    cable: UnixStream,
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    started: Instant,
    next_port: u16,
    resolver: SocketHandle,
    pulled: bool,
}

impl TestGuest {
    pub fn new(cable: UnixStream) -> Self {
        let mut link = Link::default();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(net::GUEST_MAC)));
        config.random_seed = 2;
        let mut interface = Interface::new(config, &mut link, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(IpAddress::Ipv4(net::GUEST), net::PREFIX))
                .expect("room for an address");
        });
        interface
            .routes_mut()
            .add_default_ipv4_route(net::GATEWAY)
            .expect("room for a route");
        let mut sockets = SocketSet::new(Vec::new());
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 8], vec![0; 8192]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(40_000).expect("a free port");
        let resolver = sockets.add(socket);
        Self {
            cable,
            link,
            interface,
            sockets,
            started: Instant::now(),
            next_port: 41_000,
            resolver,
            pulled: false,
        }
    }

    /// Drives the stack until the closure has a value.
    pub async fn until<T>(
        &mut self,
        mut ready: impl FnMut(&mut SocketSet<'static>) -> Option<T>,
    ) -> T {
        loop {
            let now = StackInstant::from_micros(
                i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
            );
            self.interface.poll(now, &mut self.link, &mut self.sockets);
            if let Some(value) = ready(&mut self.sockets) {
                // What the closure did goes out before anything else happens.
                self.interface.poll(now, &mut self.link, &mut self.sockets);
                self.flush().await;
                return value;
            }
            let delay = self
                .interface
                .poll_delay(now, &self.sockets)
                .map(|delay| Duration::from_micros(delay.total_micros()));
            self.exchange(delay).await;
        }
    }

    async fn flush(&mut self) {
        while !self.link.outbound.is_empty() && !self.pulled {
            self.exchange(None).await;
        }
    }

    async fn exchange(&mut self, delay: Option<Duration>) {
        let pause = async {
            match delay {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        let wants_write = !self.link.outbound.is_empty();
        tokio::select! {
            ready = self.cable.readable(), if !self.pulled => {
                ready.expect("a readable cable");
                self.link.inbound.reserve(256 * 1024);
                match self.cable.try_read_buf(&mut self.link.inbound) {
                    Ok(0) => self.pulled = true,
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => self.pulled = true,
                }
            }
            ready = self.cable.writable(), if wants_write && !self.pulled => {
                ready.expect("a writable cable");
                match self.cable.try_write(&self.link.outbound) {
                    Ok(sent) => self.link.outbound.advance(sent),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => self.pulled = true,
                }
            }
            () = pause => {}
        }
    }

    /// Puts a whole frame on the cable, as it is.
    pub async fn send_frame(&mut self, frame: &[u8]) {
        self.link
            .outbound
            .put_u32(u32::try_from(frame.len()).expect("a frame"));
        self.link.outbound.extend_from_slice(frame);
        self.flush().await;
    }

    /// Puts bytes on the cable that need not be a frame.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        self.link.outbound.extend_from_slice(bytes);
        self.flush().await;
    }

    /// Waits until the other end has pulled the cable.
    pub async fn pulled(&mut self) {
        while !self.pulled {
            self.exchange(None).await;
            self.link.inbound.clear();
        }
    }

    /// Waits for a frame that the closure likes.
    pub async fn frame<T>(&mut self, mut likes: impl FnMut(&[u8]) -> Option<T>) -> T {
        self.link.kept = Some(Vec::new());
        loop {
            let now = StackInstant::from_micros(
                i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
            );
            self.interface.poll(now, &mut self.link, &mut self.sockets);
            let kept = self.link.kept.replace(Vec::new()).unwrap_or_default();
            if let Some(value) = kept.iter().find_map(|frame| likes(frame)) {
                self.link.kept = None;
                return value;
            }
            self.exchange(None).await;
        }
    }

    /// Asks the gateway for a name's records of a kind (1 is A, 28 is AAAA).
    pub async fn query(&mut self, name: &str, kind: u16) -> DnsAnswer {
        let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            query.push(u8::try_from(label.len()).expect("a label"));
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        query.extend_from_slice(&kind.to_be_bytes());
        query.extend_from_slice(&[0, 1]);
        let (resolver, server) = (
            self.resolver,
            IpEndpoint::new(IpAddress::Ipv4(net::GATEWAY), 53),
        );
        self.sockets
            .get_mut::<udp::Socket<'_>>(resolver)
            .send_slice(&query, server)
            .expect("a query");
        let question = query.len();
        self.until(|sockets| {
            let (answer, _) = sockets.get_mut::<udp::Socket<'_>>(resolver).recv().ok()?;
            assert_eq!(answer[..2], [0x12, 0x34]);
            let count = u16::from_be_bytes([answer[6], answer[7]]);
            let addresses = answer[question..]
                .chunks(16)
                .take(usize::from(count))
                .map(|record| {
                    assert_eq!(record[..2], [0xc0, 12], "one compressed name");
                    Ipv4Addr::new(record[12], record[13], record[14], record[15])
                });
            Some(DnsAnswer {
                code: answer[3] & 15,
                addresses: addresses.collect(),
            })
        })
        .await
    }

    /// The address that stands for an allowed name.
    pub async fn resolve(&mut self, name: &str) -> Ipv4Addr {
        let answer = self.query(name, 1).await;
        assert_eq!(
            (answer.code, answer.addresses.len()),
            (0, 1),
            "{name}: {answer:?}"
        );
        answer.addresses[0]
    }

    /// Begins a connection.
    pub fn start(&mut self, address: Ipv4Addr, port: u16) -> SocketHandle {
        self.start_with(address, port, 64 * 1024)
    }

    /// Begins a connection with buffers of this size.
    pub fn start_with(&mut self, address: Ipv4Addr, port: u16, buffer: usize) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let remote = SocketAddrV4::new(address, port);
        self.next_port = if self.next_port == 65_000 {
            41_000
        } else {
            self.next_port + 1
        };
        socket
            .connect(
                self.interface.context(),
                IpEndpoint::from(remote),
                self.next_port,
            )
            .expect("a new connection");
        self.sockets.add(socket)
    }

    /// Makes a connection; none if it is refused.
    pub async fn connect(&mut self, address: Ipv4Addr, port: u16) -> Option<SocketHandle> {
        let handle = self.start(address, port);
        let connected = self
            .until(
                |sockets| match sockets.get::<tcp::Socket<'_>>(handle).state() {
                    tcp::State::SynSent | tcp::State::SynReceived => None,
                    tcp::State::Closed => Some(false),
                    _ => Some(true),
                },
            )
            .await;
        connected.then_some(handle)
    }

    /// Sends all of it.
    pub async fn send(&mut self, handle: SocketHandle, mut data: &[u8]) {
        self.until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            if let Ok(sent) = socket.send_slice(data) {
                data = &data[sent..];
            } else {
                data = &[];
            }
            data.is_empty().then_some(())
        })
        .await;
    }

    /// Reads at least this much.
    pub async fn receive(&mut self, handle: SocketHandle, least: usize) -> Vec<u8> {
        let mut received = Vec::new();
        self.until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            take(socket, &mut received);
            assert!(
                received.len() >= least || socket.may_recv(),
                "ended after {received:?}"
            );
            (received.len() >= least).then_some(())
        })
        .await;
        received
    }

    /// Reads until the other side has ended the connection.
    pub async fn receive_to_end(&mut self, handle: SocketHandle) -> Ended {
        let mut received = Vec::new();
        let reset = self
            .until(|sockets| {
                let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
                take(socket, &mut received);
                match socket.state() {
                    tcp::State::Closed => Some(true),
                    tcp::State::CloseWait
                    | tcp::State::LastAck
                    | tcp::State::Closing
                    | tcp::State::TimeWait => Some(false),
                    _ => None,
                }
            })
            .await;
        Ended { received, reset }
    }

    /// Says that no more will be sent.
    pub fn close(&mut self, handle: SocketHandle) {
        self.sockets.get_mut::<tcp::Socket<'_>>(handle).close();
    }

    /// Forgets a connection without a word.
    pub fn forget(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// Waits until a connection is over on this side.
    pub async fn closed(&mut self, handle: SocketHandle) {
        self.until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            take(socket, &mut Vec::new());
            matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait).then_some(())
        })
        .await;
        self.sockets.remove(handle);
    }
}

fn take(socket: &mut tcp::Socket<'_>, into: &mut Vec<u8>) {
    while socket.can_recv() {
        let piece = socket
            .recv(|data| (data.len(), data.to_vec()))
            .expect("what can be received");
        into.extend_from_slice(&piece);
    }
}

impl Device for Link {
    type RxToken<'a> = Frame;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Frame, Room<'_>)> {
        let length = usize::try_from(u32::from_be_bytes(*self.inbound.first_chunk::<4>()?))
            .expect("a length");
        if self.inbound.len() < 4 + length {
            return None;
        }
        self.inbound.advance(4);
        let frame = self.inbound.split_to(length);
        if let Some(kept) = &mut self.kept {
            kept.push(frame.to_vec());
        }
        Some((Frame(frame), Room(&mut self.outbound)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Room<'_>> {
        (self.outbound.len() < 512 * 1024).then_some(Room(&mut self.outbound))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 14 + usize::from(net::MTU);
        capabilities
    }
}

struct Frame(BytesMut);

impl smoltcp::phy::RxToken for Frame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Room<'a>(&'a mut BytesMut);

impl smoltcp::phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.put_u32(u32::try_from(len).expect("a frame"));
        let start = self.0.len();
        self.0.resize(start + len, 0);
        f(&mut self.0[start..])
    }
}
