//! Many connections, and much on one.

use crate::bench::{Bench, listener, pinned};
use lazaret_api::guest::net;
use lazaret_domain::egress::EgressPolicy;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
