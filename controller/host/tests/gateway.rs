//! The gateway from the guest's side: what a sandbox can reach, and what it can't.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "support/test_guest.rs"]
mod test_guest;

use lazaret_api::guest::net;
use lazaret_api::host::EgressRecord;
use lazaret_domain::egress::{EgressPolicy, Pinned};
use lazaret_host::gateway::{EgressLog, GatewayConfig, GatewayEnd, serve, take_frames};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use test_guest::{DnsAnswer, TestGuest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const SANDBOX: &str = "s0000000000000000";

/// A gateway with its guest.
struct Bench {
    guest: TestGuest,
    log: EgressLog,
    stop: CancellationToken,
    gateway: JoinHandle<GatewayEnd>,
}

impl Bench {
    fn new(policy: EgressPolicy) -> Self {
        Self::with_uplink(policy, PathBuf::from("/nonexistent/uplink.sock"))
    }

    fn with_uplink(policy: EgressPolicy, uplink: PathBuf) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (log, stop) = (EgressLog::new(), CancellationToken::new());
        let config = GatewayConfig {
            sandbox: SANDBOX.parse().unwrap(),
            policy,
            uplink,
        };
        let gateway = tokio::spawn(serve(theirs, config, log.clone(), stop.clone()));
        Self {
            guest: TestGuest::new(ours),
            log,
            stop,
            gateway,
        }
    }

    /// The records so far, without what is said about names.
    fn records(&self) -> Vec<EgressRecord> {
        self.log
            .after(0)
            .records
            .into_iter()
            .filter(|record| record.kind != "dns")
            .collect()
    }

    /// Waits until there is a record of this kind, while the guest's stack goes on.
    async fn record(&mut self, kind: &str) -> EgressRecord {
        loop {
            if let Some(record) = self
                .log
                .after(0)
                .records
                .into_iter()
                .find(|record| record.kind == kind)
            {
                return record;
            }
            // The gateway answers queries in the order of the frames: after one, all before it is done.
            self.guest.query("gateway.lazaret", 1).await;
            tokio::task::yield_now().await;
        }
    }
}

fn policy(rules: &[String]) -> EgressPolicy {
    EgressPolicy {
        rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..EgressPolicy::default()
    }
}

fn pinned(host: &str, port: u16) -> EgressPolicy {
    let pin = Pinned {
        host: host.parse().unwrap(),
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
    };
    EgressPolicy {
        pinned: vec![pin],
        ..policy(&[format!("{host}:{port}")])
    }
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Shows that nobody has connected: the first connection to be accepted is one made here.
async fn assert_untouched(listener: &TcpListener) {
    let own = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert_eq!(
        listener.accept().await.unwrap().1,
        own.local_addr().unwrap(),
        "somebody got through"
    );
}

#[tokio::test]
async fn t35_a_denied_name_does_not_exist_and_an_allowed_one_has_a_synthetic_address() {
    let mut bench = Bench::new(policy(&["pypi.org".to_owned()]));
    let nothing = DnsAnswer {
        code: 3,
        addresses: vec![],
    };
    assert_eq!(bench.guest.query("c2VjcmV0.attacker.tld", 1).await, nothing);
    assert_eq!(
        bench.guest.query("c2VjcmV0.attacker.tld", 16).await,
        nothing
    );
    let address = bench.guest.resolve("pypi.org").await;
    assert_eq!(address.octets()[..2], [198, 18]);
    assert_eq!(bench.guest.resolve("PyPI.org").await, address);
    assert_eq!(
        bench.guest.query("pypi.org", 28).await,
        DnsAnswer {
            code: 0,
            addresses: vec![]
        }
    );
    assert_eq!(bench.guest.resolve("gateway.lazaret").await, net::GATEWAY);
    let refused = bench.record("dns").await;
    assert_eq!(
        (refused.destination.as_str(), refused.allowed),
        ("c2vjcmv0.attacker.tld", false)
    );
}

#[tokio::test]
async fn t47_raw_addresses_are_reset_at_once_and_reach_nothing() {
    let (listener, port) = listener().await;
    let mut bench = Bench::new(EgressPolicy {
        open: true,
        ..EgressPolicy::default()
    });
    for address in [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(169, 254, 169, 254),
        Ipv4Addr::new(8, 8, 8, 8),
    ] {
        assert_eq!(bench.guest.connect(address, port).await, None, "{address}");
        assert_eq!(bench.guest.connect(address, 443).await, None, "{address}");
    }
    assert_eq!(bench.guest.connect(net::GATEWAY, 22).await, None);
    assert_eq!(
        bench
            .guest
            .connect(Ipv4Addr::new(198, 18, 0, 200), 443)
            .await,
        None,
        "stands for no name"
    );
    let records = bench.records();
    assert_eq!(records.len(), 10);
    assert!(
        records
            .iter()
            .all(|record| !record.allowed && record.count == 1),
        "{records:?}"
    );
    assert_eq!(records[0].destination, "127.0.0.1");
    assert_untouched(&listener).await;
}

#[tokio::test]
async fn a_pinned_host_reaches_its_listener_both_ways() {
    let (listener, port) = listener().await;
    let mut bench = Bench::new(pinned("mirror.internal", port));
    let address = bench.guest.resolve("mirror.internal").await;
    let connection = bench.guest.connect(address, port).await.unwrap();
    bench.guest.send(connection, b"ping").await;
    let (mut server, _) = listener.accept().await.unwrap();
    let mut got = [0; 4];
    server.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"ping");
    server.write_all(b"pong!").await.unwrap();
    drop(server);
    let ended = bench.guest.receive_to_end(connection).await;
    assert_eq!(
        (ended.received.as_slice(), ended.reset),
        (&b"pong!"[..], false)
    );
    bench.guest.close(connection);
    bench.guest.closed(connection).await;
    let record = bench.record("tcp").await;
    assert_eq!(
        (record.destination.as_str(), record.port, record.allowed),
        ("mirror.internal", Some(port), true)
    );
    assert_eq!(
        (record.reason, record.bytes_out, record.bytes_in),
        (format!("mirror.internal:{port}"), 4, 5)
    );
    assert_eq!(
        bench
            .guest
            .connect(address, port.wrapping_add(1).max(1))
            .await,
        None,
        "another port"
    );
}

#[tokio::test]
async fn t40_a_name_that_resolves_to_this_machine_is_refused_after_resolution() {
    let (listener, port) = listener().await;
    let mut bench = Bench::new(policy(&[format!("localhost:{port}")]));
    let address = bench.guest.resolve("localhost").await;
    let connection = bench.guest.connect(address, port).await.unwrap();
    assert!(bench.guest.receive_to_end(connection).await.reset);
    let record = bench.record("tcp").await;
    assert_eq!(
        (record.allowed, record.reason.as_str()),
        (false, "the address is loopback and not pinned to this host")
    );
    assert_untouched(&listener).await;
}

/// A ClientHello for a name.
fn client_hello(name: &str) -> Vec<u8> {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    let name = [&[0][..], &length(name.as_bytes()), name.as_bytes()].concat();
    let list = [&length(&name)[..], &name].concat();
    let extension = [&[0, 0][..], &length(&list), &list].concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0, 0, 2, 0x13, 1, 1, 0],
        &length(&extension),
        &extension,
    ]
    .concat();
    let handshake = [&[1, 0][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&handshake), &handshake].concat()
}

#[tokio::test]
async fn t41_port_443_wants_tls_for_the_very_name_before_anything_is_dialled() {
    // Loopback can't be listened to on 443 by everybody: a pin to an address where nobody is shows
    // by its record whether the connection came as far as being dialled.
    let mut bench = Bench::new(EgressPolicy {
        open: false,
        ..pinned("mirror.internal", 443)
    });
    let address = bench.guest.resolve("mirror.internal").await;
    let cases: [(Vec<u8>, &str); 4] = [
        (
            client_hello("other.internal"),
            "the TLS ClientHello names another host",
        ),
        (client_hello("1.2.3.4"), "the TLS ClientHello names no host"),
        (
            b"GET / HTTP/1.1\r\nHost: mirror.internal\r\n\r\n".to_vec(),
            "port 443 is for TLS only",
        ),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            "port 443 is for TLS only",
        ),
    ];
    for (opening, reason) in cases {
        let connection = bench.guest.connect(address, 443).await.unwrap();
        bench.guest.send(connection, &opening).await;
        let ended = bench.guest.receive_to_end(connection).await;
        assert!(
            ended.received.is_empty() || ended.received[0] == 21,
            "only an alert: {:?}",
            ended.received
        );
        bench.guest.close(connection);
        bench.guest.closed(connection).await;
        let records = bench.records();
        assert!(
            records
                .iter()
                .any(|record| !record.allowed && record.reason == reason),
            "{reason}: {records:?}"
        );
    }
    assert!(bench.records().iter().all(|record| !record.allowed));
}

#[tokio::test]
async fn t47_udp_icmp_ipv6_and_other_protocols_are_refused_and_logged() {
    let mut bench = Bench::new(EgressPolicy {
        open: true,
        ..EgressPolicy::default()
    });
    bench.guest.resolve("gateway.lazaret").await;
    let ipv4 = |protocol: u8, payload: &[u8]| {
        let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let header = [
            &[0x45, 0][..],
            &length,
            &[0, 0, 0x40, 0, 64, protocol, 0, 0],
            &net::GUEST.octets(),
            &[8, 8, 8, 8],
        ]
        .concat();
        [
            &net::GATEWAY_MAC[..],
            &net::GUEST_MAC,
            &[8, 0],
            &header,
            payload,
        ]
        .concat()
    };
    // QUIC: the guest is told at once that there is nothing there.
    bench
        .guest
        .send_frame(&ipv4(17, &[0x9c, 0x40, 1, 0xbb, 0, 12, 0, 0, 1, 2, 3, 4]))
        .await;
    bench
        .guest
        .frame(|frame| {
            (frame.get(23) == Some(&1) && frame.get(34..36) == Some(&[3, 3])).then_some(())
        })
        .await;
    let udp = bench.record("udp").await;
    assert_eq!(
        (udp.destination.as_str(), udp.port, udp.allowed),
        ("8.8.8.8", Some(443), false)
    );
    bench
        .guest
        .send_frame(&ipv4(1, &[8, 0, 0, 0, 0, 1, 0, 1]))
        .await;
    assert_eq!(bench.record("icmp").await.destination, "8.8.8.8");
    bench.guest.send_frame(&ipv4(132, &[0; 12])).await;
    assert_eq!(bench.record("frame").await.reason, "only TCP is passed on");
    let ipv6 = [
        &net::GATEWAY_MAC[..],
        &net::GUEST_MAC,
        &[0x86, 0xdd],
        &[0x60, 0, 0, 0, 0, 0, 58, 255],
        &[0; 16],
        &[0xfe; 16],
    ]
    .concat();
    bench.guest.send_frame(&ipv6).await;
    assert_eq!(
        bench.record("ipv6").await.destination,
        "fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe"
    );
    // A pretended sender, a fragment, a runt, a giant: the gateway goes on.
    let mut spoofed = ipv4(6, &[0; 20]);
    spoofed[26..30].copy_from_slice(&[1, 2, 3, 4]);
    bench.guest.send_frame(&spoofed).await;
    bench.guest.send_frame(&[]).await;
    bench.guest.send_frame(&[0; 5]).await;
    bench.guest.send_frame(&vec![0xff; 66_000]).await;
    assert_eq!(bench.guest.resolve("gateway.lazaret").await, net::GATEWAY);
    let reasons: Vec<_> = bench
        .records()
        .into_iter()
        .map(|record| record.reason)
        .collect();
    for reason in [
        "the source address is not the guest's",
        "the frame is too short",
        "the frame is longer than the link allows",
    ] {
        assert!(
            reasons.iter().any(|logged| logged == reason),
            "{reason}: {reasons:?}"
        );
    }
}

#[tokio::test]
async fn a_stream_that_is_not_of_frames_ends_the_gateway_with_a_cause() {
    let mut bench = Bench::new(EgressPolicy::default());
    bench
        .guest
        .send_raw(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3])
        .await;
    assert!(matches!(
        bench.gateway.await.unwrap(),
        GatewayEnd::OutOfStep(_)
    ));
    assert_eq!(bench.log.after(0).records[0].kind, "frame");
    bench.guest.pulled().await;
}

#[tokio::test]
async fn the_gateway_ends_when_it_is_stopped_or_its_cable_is_pulled() {
    let mut bench = Bench::new(EgressPolicy::default());
    bench.guest.resolve("gateway.lazaret").await;
    bench.stop.cancel();
    assert!(matches!(bench.gateway.await.unwrap(), GatewayEnd::Stopped));
    let bench = Bench::new(EgressPolicy::default());
    drop(bench.guest);
    assert!(matches!(
        bench.gateway.await.unwrap(),
        GatewayEnd::Unplugged
    ));
}

/// Reads an HTTP message's head, and as much of a body as its length says.
async fn read_http(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut text = Vec::new();
    loop {
        let head = text
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
            .map(|at| at + 4);
        if let Some(head) = head {
            let lower = String::from_utf8_lossy(&text[..head]).to_lowercase();
            let body = lower
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.split("\r\n").next())
                .map_or(0, |length| length.parse().unwrap());
            if text.len() >= head + body {
                return String::from_utf8(text).unwrap();
            }
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        text.push(byte[0]);
    }
}

#[tokio::test]
async fn the_git_route_reaches_the_uplink_with_the_sandbox_that_the_cable_belongs_to() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("uplink.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let uplink = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_http(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npack")
            .await
            .unwrap();
        request
    });
    let mut bench = Bench::with_uplink(EgressPolicy::default(), socket);
    let connection = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
    let request = "POST /git/acme/demo.git/git-upload-pack?a=b HTTP/1.1\r\nHost: gateway.lazaret\r\nLazaret-Sandbox: s1111111111111111\r\n\
                   Lazaret-Admin: yes\r\nAuthorization: Bearer stolen\r\nCookie: a=b\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\n\
                   Git-Protocol: version=2\r\nContent-Length: 4\r\n\r\n0000";
    bench.guest.send(connection, request.as_bytes()).await;
    let ended = bench.guest.receive_to_end(connection).await;
    let answer = String::from_utf8(ended.received).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\npack"),
        "{answer}"
    );
    let seen = uplink.await.unwrap().to_lowercase();
    assert!(
        seen.starts_with("post /git/acme/demo.git/git-upload-pack?a=b http/1.1\r\n"),
        "{seen}"
    );
    assert!(
        seen.contains(&format!("lazaret-sandbox: {SANDBOX}\r\n"))
            && seen.contains("git-protocol: version=2\r\n"),
        "{seen}"
    );
    for gone in [
        "s1111111111111111",
        "lazaret-admin",
        "stolen",
        "cookie",
        "x-secret",
    ] {
        assert!(!seen.contains(gone), "{gone}: {seen}");
    }
    assert!(seen.ends_with("0000"), "{seen}");
    let record = bench.record("service").await;
    assert_eq!(
        (
            record.destination.as_str(),
            record.reason.as_str(),
            record.allowed
        ),
        ("gateway.lazaret", "git", true)
    );
}

#[tokio::test]
async fn without_an_uplink_git_gets_503_and_other_services_do_not_exist() {
    let mut bench = Bench::new(EgressPolicy::default());
    for (path, status, code) in [
        (
            "/git/acme/demo.git/info/refs?service=git-upload-pack",
            "503",
            "uplink_down",
        ),
        ("/model/v1/messages", "404", "no_such_route"),
        ("/", "404", "no_such_route"),
        ("/git/../model", "400", "invalid_path"),
    ] {
        let connection = bench.guest.connect(net::GATEWAY, 80).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: gateway.lazaret\r\nConnection: close\r\n\r\n");
        bench.guest.send(connection, request.as_bytes()).await;
        let answer =
            String::from_utf8(bench.guest.receive_to_end(connection).await.received).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {answer}"
        );
        assert!(
            answer.contains("application/problem+json")
                && answer.contains(&format!("\"code\":\"{code}\"")),
            "{path}: {answer}"
        );
    }
}

#[tokio::test]
async fn t48_three_hundred_connections_closed_by_the_guest_leave_no_slot_used() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let mut served = 0;
        while served < 301 {
            let (mut stream, _) = listener.accept().await.unwrap();
            served += 1;
            tokio::spawn(async move {
                let _ = stream.write_all(b"hello").await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    let mut bench = Bench::new(pinned("mirror.internal", port));
    let address = bench.guest.resolve("mirror.internal").await;
    for _ in 0..6 {
        let mut open = Vec::new();
        for _ in 0..50 {
            open.push(
                bench
                    .guest
                    .connect(address, port)
                    .await
                    .expect("a free slot"),
            );
        }
        for connection in &open {
            bench.guest.receive(*connection, 5).await;
            bench.guest.close(*connection);
        }
        for connection in open {
            bench.guest.closed(connection).await;
        }
    }
    let last = bench
        .guest
        .connect(address, port)
        .await
        .expect("a free slot");
    bench.guest.receive(last, 5).await;
    server.await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_are_reset_and_logged_and_a_slot_comes_free_again() {
    let (listener, port) = listener().await;
    let mut bench = Bench::new(pinned("mirror.internal", port));
    let address = bench.guest.resolve("mirror.internal").await;
    let server = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap());
        }
    });
    let mut open = Vec::new();
    while let Some(connection) = bench.guest.connect(address, port).await {
        open.push(connection);
        assert!(open.len() <= 256);
    }
    assert_eq!(open.len(), 256);
    assert!(
        bench
            .records()
            .iter()
            .any(|record| record.reason == "the sandbox has too many connections")
    );
    server.abort();
    assert!(server.await.unwrap_err().is_cancelled());
    // The far side has hung up on all of them: each comes free as soon as the guest agrees.
    for connection in open {
        bench.guest.receive_to_end(connection).await;
        bench.guest.close(connection);
        bench.guest.closed(connection).await;
    }
    let refused = bench
        .guest
        .connect(address, port)
        .await
        .expect("a free slot");
    assert!(
        bench.guest.receive_to_end(refused).await.reset,
        "nobody listens there any more"
    );
}

#[tokio::test]
async fn a_flood_of_first_segments_neither_stops_the_gateway_nor_grows_its_log() {
    let mut bench = Bench::new(EgressPolicy {
        open: true,
        ..EgressPolicy::default()
    });
    let address = bench.guest.resolve("example.com").await;
    let syn = |to: Ipv4Addr, from: u16, port: u16| {
        let header = [
            &[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0][..],
            &net::GUEST.octets(),
            &to.octets(),
        ]
        .concat();
        let segment = [
            &from.to_be_bytes()[..],
            &port.to_be_bytes(),
            &[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0],
        ]
        .concat();
        [
            &net::GATEWAY_MAC[..],
            &net::GUEST_MAC,
            &[8, 0],
            &header,
            &segment,
        ]
        .concat()
    };
    for index in 0..5_000_u16 {
        bench
            .guest
            .send_frame(&syn(address, 1_000 + index, 443))
            .await;
        bench
            .guest
            .send_frame(&syn(
                Ipv4Addr::from(0x0800_0000 + u32::from(index)),
                1_000 + index,
                443,
            ))
            .await;
        // The guest's stack resets what it never asked for: that is the guest confirming nothing.
    }
    assert_eq!(bench.guest.resolve("gateway.lazaret").await, net::GATEWAY);
    let records = bench.records();
    assert!(records.len() < 500, "{}", records.len());
    assert!(
        records
            .iter()
            .filter(|record| !record.allowed)
            .map(|record| record.count)
            .sum::<u64>()
            >= 5_000
    );
}

#[tokio::test]
async fn a_hundred_megabytes_arrive_whole_both_ways() {
    const SIZE: usize = 100 << 20;
    let (listener, port) = listener().await;
    let mut bench = Bench::new(pinned("mirror.internal", port));
    let address = bench.guest.resolve("mirror.internal").await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = vec![0; 1 << 20];
        let mut sum = 0_u64;
        for _ in 0..SIZE / received.len() {
            stream.read_exact(&mut received).await.unwrap();
            sum = received.iter().fold(sum, |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
            });
            stream.write_all(&received).await.unwrap();
        }
        sum
    });
    let connection = bench.guest.start_with(address, port, 512 * 1024);
    let pattern: Vec<u8> = (0..251_u8).cycle().take(SIZE).collect();
    let (mut sent, mut echoed) = (0, 0);
    bench
        .guest
        .until(|sockets| {
            let socket = sockets.get_mut::<smoltcp::socket::tcp::Socket<'_>>(connection);
            if sent < SIZE && socket.can_send() {
                sent += socket.send_slice(&pattern[sent..]).unwrap();
            }
            while socket.can_recv() {
                let length = socket.recv(|data| {
                    assert_eq!(data, &pattern[echoed..echoed + data.len()]);
                    (data.len(), data.len())
                });
                echoed += length.unwrap();
            }
            (echoed == SIZE).then_some(())
        })
        .await;
    let expected = pattern.iter().fold(0_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    assert_eq!(server.await.unwrap(), expected);
}

#[tokio::test]
async fn arp_finds_the_gateway_and_nobody_else() {
    let mut bench = Bench::new(EgressPolicy::default());
    let arp = |target: Ipv4Addr| {
        let packet = [
            &[0, 1, 8, 0, 6, 4, 0, 1][..],
            &net::GUEST_MAC,
            &net::GUEST.octets(),
            &[0; 6],
            &target.octets(),
        ]
        .concat();
        [&[0xff; 6][..], &net::GUEST_MAC, &[8, 6], &packet].concat()
    };
    bench
        .guest
        .send_frame(&arp(Ipv4Addr::new(198, 19, 255, 3)))
        .await;
    bench
        .guest
        .send_frame(&arp(Ipv4Addr::new(10, 0, 0, 1)))
        .await;
    bench.guest.send_frame(&arp(net::GATEWAY)).await;
    let sender = bench
        .guest
        .frame(|frame| {
            (frame[12..14] == [8, 6] && frame[20..22] == [0, 2]).then(|| frame[28..32].to_vec())
        })
        .await;
    assert_eq!(sender, net::GATEWAY.octets());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_bytes_on_the_cable_stop_the_gateway(
        frames in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..30),
        tail in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut stream = Vec::new();
        for (shape, bytes) in frames {
            let frame = plausible(shape, &bytes);
            stream.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_be_bytes());
            stream.extend_from_slice(&frame);
        }
        stream.extend_from_slice(&tail);
        take_frames(&stream);
    }
}

/// Random bytes as the payload of something that looks right so far.
fn plausible(shape: u8, bytes: &[u8]) -> Vec<u8> {
    let ethernet = |ethertype: [u8; 2], payload: &[u8]| {
        [&net::GATEWAY_MAC[..], &net::GUEST_MAC, &ethertype, payload].concat()
    };
    let ipv4 = |protocol: u8, to: Ipv4Addr, payload: &[u8]| {
        let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let header = [
            &[0x45, 0][..],
            &length,
            &[0, 0, 0x40, 0, 64, protocol, 0, 0],
            &net::GUEST.octets(),
            &to.octets(),
        ]
        .concat();
        ethernet([8, 0], &[&header, payload].concat())
    };
    let to = [
        net::GATEWAY,
        net::SYNTHETIC_FIRST,
        Ipv4Addr::new(8, 8, 8, 8),
        Ipv4Addr::BROADCAST,
    ][usize::from(shape >> 6)];
    match shape % 8 {
        0 => bytes.to_vec(),
        1 => ethernet([8, 6], bytes),
        2 => ethernet([0x86, 0xdd], bytes),
        3 => ethernet([8, 0], bytes),
        4 => ipv4(1, to, bytes),
        5 => {
            let udp = [
                &[0x9c, 0x40, 0, 53][..],
                &u16::try_from(8 + bytes.len()).unwrap().to_be_bytes(),
                &[0, 0],
                bytes,
            ]
            .concat();
            ipv4(17, to, &udp)
        }
        6 => ipv4(
            6,
            to,
            &[
                &[
                    0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
                ][..],
                bytes,
            ]
            .concat(),
        ),
        _ => ipv4(6, to, bytes),
    }
}
