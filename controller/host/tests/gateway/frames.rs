//! What comes over the cable besides connections, and how the gateway ends.

use crate::bench::Bench;
use lazaret_api::guest::net;
use lazaret_domain::egress::EgressPolicy;
use lazaret_host::gateway::{GatewayEnd, hostile};
use proptest::prelude::*;
use std::net::Ipv4Addr;

#[tokio::test]
async fn t47_udp_icmp_ipv6_and_other_protocols_are_refused_and_logged() {
    let mut bench = Bench::new(EgressPolicy {
        open: true,
        ..EgressPolicy::default()
    });
    bench.guest.resolve("gateway.lazaret").await;
    let ipv4 = |protocol, payload: &[u8]| ipv4(protocol, Ipv4Addr::new(8, 8, 8, 8), payload);
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

#[tokio::test]
async fn arp_finds_the_gateway_and_nobody_else() {
    let mut bench = Bench::new(EgressPolicy::default());
    bench
        .guest
        .send_frame(&who_has(Ipv4Addr::new(198, 19, 255, 3)))
        .await;
    bench
        .guest
        .send_frame(&who_has(Ipv4Addr::new(10, 0, 0, 1)))
        .await;
    bench.guest.send_frame(&who_has(net::GATEWAY)).await;
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
        let mut stream: Vec<u8> = frames.iter().flat_map(|(shape, bytes)| on_the_cable(&plausible(*shape, bytes))).collect();
        stream.extend_from_slice(&tail);
        for answer in hostile::frames(&stream) {
            let to = answer.get(30..34).filter(|_| answer[12..14] == [8, 0]);
            prop_assert!(to.is_none_or(|to| to == net::GUEST.octets()), "{answer:?}");
        }
    }
}

pub(crate) fn on_the_cable(frame: &[u8]) -> Vec<u8> {
    [&u32::try_from(frame.len()).unwrap().to_be_bytes(), frame].concat()
}

fn ethernet(ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&net::GATEWAY_MAC[..], &net::GUEST_MAC, &ethertype, payload].concat()
}

pub(crate) fn ipv4(protocol: u8, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
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
}

pub(crate) fn who_has(target: Ipv4Addr) -> Vec<u8> {
    let packet = [
        &[0, 1, 8, 0, 6, 4, 0, 1][..],
        &net::GUEST_MAC,
        &net::GUEST.octets(),
        &[0; 6],
        &target.octets(),
    ]
    .concat();
    [&[0xff; 6][..], &net::GUEST_MAC, &[8, 6], &packet].concat()
}

/// Random bytes as the payload of something that looks right so far.
fn plausible(shape: u8, bytes: &[u8]) -> Vec<u8> {
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
