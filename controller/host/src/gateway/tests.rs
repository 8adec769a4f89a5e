//! What clients say on ports 443 and 80, with a listener of the test for the internet.

mod other_ports;

use super::dial::{DialError, Outside};
use super::engine::Engine;
use super::test_guest::TestGuest;
use super::{EgressLog, GatewayConfig, GatewayEnd, serve_to};
use futures::future::BoxFuture;
use lazaret_api::guest::net;
use lazaret_domain::egress::{Dialable, EgressPolicy, Permit};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Everything beyond the gateway is one listener, and what was dialled is remembered.
struct Local {
    listener: SocketAddr,
    dialled: Arc<Mutex<Vec<String>>>,
}

impl Local {
    fn reach<'a>(&'a self, destination: String) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        self.dialled.lock().unwrap().push(destination);
        let unreachable = |error: std::io::Error| DialError::Unreachable(error.kind());
        Box::pin(async move { TcpStream::connect(self.listener).await.map_err(unreachable) })
    }
}

impl Outside for Local {
    fn dial<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        self.reach(format!("{}:{}", permit.host(), permit.port()))
    }

    fn connect<'a>(&'a self, to: &'a Dialable) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        self.reach(to.address().to_string())
    }
}

struct Bench {
    guest: TestGuest,
    listener: TcpListener,
    dialled: Arc<Mutex<Vec<String>>>,
    log: EgressLog,
    stop: CancellationToken,
    gateway: JoinHandle<GatewayEnd>,
}

impl Bench {
    async fn new(rules: &[&str]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (log, stop, dialled) = (EgressLog::new(), CancellationToken::new(), Arc::default());
        let outside = Local {
            listener: listener.local_addr().unwrap(),
            dialled: Arc::clone(&dialled),
        };
        let config = GatewayConfig {
            sandbox: "s0000000000000000".parse().unwrap(),
            policy: EgressPolicy {
                rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
                ..EgressPolicy::default()
            },
            uplink: PathBuf::new(),
        };
        let gateway = tokio::spawn(serve_to(
            theirs,
            config,
            log.clone(),
            stop.clone(),
            Box::new(outside),
        ));
        Self {
            guest: TestGuest::new(ours),
            listener,
            dialled,
            log,
            stop,
            gateway,
        }
    }

    /// Stops the gateway, which writes the records of what was still open, and gives them.
    async fn finish(self) -> (Vec<String>, Vec<(bool, String)>) {
        self.stop.cancel();
        assert!(matches!(self.gateway.await.unwrap(), GatewayEnd::Stopped));
        let records = self
            .log
            .after(0)
            .records
            .into_iter()
            .filter(|record| record.kind == "tcp");
        let dialled = self.dialled.lock().unwrap().clone();
        (
            dialled,
            records
                .map(|record| (record.allowed, record.reason))
                .collect(),
        )
    }
}

fn client_hello(name: &str) -> Vec<u8> {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    let name = [&[0][..], &length(name.as_bytes()), name.as_bytes()].concat();
    let list = [&length(&name)[..], &name].concat();
    let extension = [&[0, 0][..], &length(&list), &list].concat();
    let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let body = [&head[..], &length(&extension), &extension].concat();
    let handshake = [&[1, 0][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&handshake), &handshake].concat()
}

#[tokio::test]
async fn t41_tls_for_the_right_name_goes_through_byte_for_byte() {
    let mut bench = Bench::new(&["pypi.org"]).await;
    let address = bench.guest.resolve("pypi.org").await;
    let connection = bench.guest.connect(address, 443).await.unwrap();
    let hello = client_hello("PyPI.org");
    let (first, second) = hello.split_at(20);
    bench.guest.send(connection, first).await;
    bench.guest.send(connection, second).await;
    let (mut server, _) = bench.listener.accept().await.unwrap();
    let mut seen = vec![0; hello.len()];
    server.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen, hello);
    server.write_all(b"server hello").await.unwrap();
    assert_eq!(bench.guest.receive(connection, 12).await, b"server hello");
    let (dialled, records) = bench.finish().await;
    assert_eq!(dialled, ["pypi.org:443"]);
    assert_eq!(records, [(true, "pypi.org".to_owned())]);
}

#[tokio::test]
async fn t41_another_name_or_no_tls_is_closed_before_anything_is_dialled() {
    let mut bench = Bench::new(&["pypi.org", "*.pypi.org"]).await;
    let address = bench.guest.resolve("pypi.org").await;
    for opening in [
        client_hello("files.pypi.org"),
        client_hello("evil.example"),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        let connection = bench.guest.connect(address, 443).await.unwrap();
        bench.guest.send(connection, &opening).await;
        let ended = bench.guest.receive_to_end(connection).await;
        assert!(ended.received.is_empty() || ended.received == super::hello::UNRECOGNIZED_NAME);
    }
    let (dialled, records) = bench.finish().await;
    assert_eq!(dialled, [""; 0]);
    assert!(
        records.iter().all(|(allowed, _)| !allowed) && records.len() == 2,
        "{records:?}"
    );
}

/// Reads one request without a body.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn t41_each_request_on_port_80_is_checked_also_on_a_connection_that_is_kept() {
    let mut bench = Bench::new(&["deb.debian.org"]).await;
    let address = bench.guest.resolve("deb.debian.org").await;
    let connection = bench.guest.connect(address, 80).await.unwrap();
    // Two at once: the second one is for another host.
    let requests = "GET http://deb.debian.org/a%2f../b?c HTTP/1.1\r\nHost: DEB.debian.org:80\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n\
                    GET /secret HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    bench.guest.send(connection, requests.as_bytes()).await;
    let (mut server, _) = bench.listener.accept().await.unwrap();
    let head = read_head(&mut server).await;
    assert!(head.starts_with("GET /a%2f../b?c HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("host: deb.debian.org\r\n") && !head.to_lowercase().contains("upgrade"),
        "{head}"
    );
    server
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await
        .unwrap();
    let ended = bench.guest.receive_to_end(connection).await;
    let answers = String::from_utf8(ended.received).unwrap();
    assert!(
        answers.starts_with("HTTP/1.1 200 OK\r\n")
            && answers.contains("\r\n\r\nokHTTP/1.1 403 Forbidden\r\n"),
        "{answers}"
    );
    assert!(answers.contains("\"code\":\"egress_denied\""), "{answers}");
    let (dialled, records) = bench.finish().await;
    assert_eq!(dialled, ["deb.debian.org:80"]);
    assert_eq!(
        records,
        [
            (
                false,
                "the Host header names another host than the connection".to_owned()
            ),
            (true, "deb.debian.org".to_owned()),
        ],
        "the refused request, and the connection"
    );
}

#[tokio::test]
async fn t41_a_connection_header_that_names_host_takes_nothing_from_what_was_checked() {
    let mut bench = Bench::new(&["deb.debian.org"]).await;
    let address = bench.guest.resolve("deb.debian.org").await;
    let connection = bench.guest.connect(address, 80).await.unwrap();
    let request =
        "GET / HTTP/1.1\r\nHost: deb.debian.org\r\nConnection: host, X-Mine\r\nX-Mine: 1\r\n\r\n";
    bench.guest.send(connection, request.as_bytes()).await;
    let (mut server, _) = bench.listener.accept().await.unwrap();
    let head = read_head(&mut server).await.to_lowercase();
    assert!(head.contains("host: deb.debian.org\r\n"), "{head}");
    assert!(!head.contains("x-mine"), "{head}");
}

#[tokio::test]
async fn each_refused_request_is_recorded_also_when_others_on_its_connection_go_through() {
    let mut bench = Bench::new(&["deb.debian.org"]).await;
    let address = bench.guest.resolve("deb.debian.org").await;
    let connection = bench.guest.connect(address, 80).await.unwrap();
    let requests = "GET /1 HTTP/1.1\r\nHost: evil.example\r\n\r\nGET /2 HTTP/1.1\r\nHost: evil.example\r\n\r\n\
                    GET /3 HTTP/1.1\r\nHost: deb.debian.org\r\n\r\n\
                    CONNECT evil.example:80 HTTP/1.1\r\nHost: deb.debian.org\r\nConnection: close\r\n\r\n";
    bench.guest.send(connection, requests.as_bytes()).await;
    let (mut server, _) = bench.listener.accept().await.unwrap();
    read_head(&mut server).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await
        .unwrap();
    bench.guest.receive_to_end(connection).await;
    let log = bench.log.clone();
    bench.finish().await;
    let records: Vec<_> = log
        .after(0)
        .records
        .into_iter()
        .filter(|record| record.kind == "tcp")
        .map(|record| (record.allowed, record.count, record.reason))
        .collect();
    let foreign = "the Host header names another host than the connection";
    assert_eq!(
        records,
        [
            (false, 2, foreign.to_owned()),
            (false, 1, "CONNECT is not passed on".to_owned()),
            (true, 1, "deb.debian.org".to_owned()),
        ]
    );
}

#[tokio::test]
async fn a_rule_with_a_network_allows_its_public_addresses_and_no_others() {
    let mut bench = Bench::new(&["8.8.8.0/24:853", "10.0.0.0/8"]).await;
    let connection = bench
        .guest
        .connect(Ipv4Addr::new(8, 8, 8, 8), 853)
        .await
        .unwrap();
    bench.guest.send(connection, b"ask").await;
    let (mut server, _) = bench.listener.accept().await.unwrap();
    let mut asked = [0; 3];
    server.read_exact(&mut asked).await.unwrap();
    assert_eq!(
        bench.guest.connect(Ipv4Addr::new(8, 8, 8, 8), 443).await,
        None
    );
    assert_eq!(
        bench.guest.connect(Ipv4Addr::new(10, 0, 0, 1), 443).await,
        None
    );
    let (dialled, records) = bench.finish().await;
    assert_eq!(dialled, ["8.8.8.8:853"]);
    assert_eq!(
        records.iter().filter(|(allowed, _)| *allowed).count(),
        1,
        "{records:?}"
    );
}

#[test]
fn a_link_without_traffic_asks_for_no_next_step() {
    let mut engine = Engine::new(Arc::default(), EgressLog::new(), 1);
    assert_eq!(engine.step().unwrap().next, None);
    let arp = [
        &[0xff; 6][..],
        &net::GUEST_MAC,
        &[8, 6],
        &[0, 1, 8, 0, 6, 4, 0, 1],
        &net::GUEST_MAC,
        &net::GUEST.octets(),
        &[0; 6],
        &net::GATEWAY.octets(),
    ]
    .concat();
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07gateway\x07lazaret\0\0\x01\0\x01";
    let udp = [
        &[0x9c, 0x40, 0, 53][..],
        &u16::try_from(8 + query.len()).unwrap().to_be_bytes(),
        &[0, 0],
        query,
    ]
    .concat();
    let length = u16::try_from(20 + udp.len()).unwrap().to_be_bytes();
    let ipv4 = [
        &net::GATEWAY_MAC[..],
        &net::GUEST_MAC,
        &[8, 0],
        &[0x45, 0],
        &length,
        &[0, 0, 0x40, 0, 64, 17, 0, 0],
        &net::GUEST.octets(),
        &net::GATEWAY.octets(),
        &udp,
    ]
    .concat();
    for frame in [arp, ipv4] {
        engine
            .wire
            .feed(&u32::try_from(frame.len()).unwrap().to_be_bytes());
        engine.wire.feed(&frame);
        let step = engine.step().unwrap();
        assert!(!engine.wire.take_outbound().is_empty(), "an answer");
        assert_eq!((step.next, step.admitted.len()), (None, 0));
    }
    assert_eq!(engine.step().unwrap().next, None);
}
