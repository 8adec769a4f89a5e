//! What names and addresses lead to, and what must be said on the way.

use crate::bench::{Bench, assert_untouched, listener, pinned, policy};
use crate::test_guest::DnsAnswer;
use lazaret_api::guest::net;
use lazaret_domain::egress::EgressPolicy;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
