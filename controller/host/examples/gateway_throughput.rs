//! How fast bytes go through the gateway, without a VM: a guest's stack on one end of the cable, a
//! listener on loopback behind the gateway, and one connection between them.
//!
//! `cargo run --release -p lazaret-host --example gateway_throughput`

#[path = "../tests/support/test_guest.rs"]
mod test_guest;

use lazaret_domain::egress::{EgressPolicy, Pinned};
use lazaret_host::gateway::{EgressLog, GatewayConfig, serve};
use smoltcp::socket::tcp::Socket;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use test_guest::TestGuest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio_util::sync::CancellationToken;

/// How much is sent each way.
const SIZE: usize = 512 << 20;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let pin = Pinned {
        host: "mirror.internal".parse()?,
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
    };
    let policy = EgressPolicy {
        rules: vec![format!("mirror.internal:{port}").parse()?],
        pinned: vec![pin],
        open: false,
    };
    let (ours, theirs) = UnixStream::pair()?;
    let config = GatewayConfig {
        sandbox: "s0000000000000000".parse()?,
        policy,
        uplink: "/nonexistent".into(),
    };
    let stop = CancellationToken::new();
    let gateway = tokio::spawn(serve(theirs, config, EgressLog::new(), stop.clone()));
    let server = tokio::spawn(async move {
        let (mut down, _) = listener.accept().await?;
        let block = vec![7; 1 << 20];
        for _ in 0..SIZE / block.len() {
            down.write_all(&block).await?;
        }
        let (mut up, _) = listener.accept().await?;
        let mut left = SIZE;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            left -= up.read(&mut buffer).await?;
        }
        up.write_all(b"!").await?;
        anyhow::Ok(())
    });

    let mut guest = TestGuest::new(ours);
    let address = guest.resolve("mirror.internal").await;
    let mut out = std::io::stdout();

    let connection = guest.start_with(address, port, 1 << 20);
    let (begun, mut got) = (Instant::now(), 0);
    guest
        .until(|sockets| {
            let socket = sockets.get_mut::<Socket<'_>>(connection);
            while socket.can_recv() {
                got += socket.recv(|data| (data.len(), data.len())).unwrap_or(0);
            }
            (got >= SIZE).then_some(())
        })
        .await;
    writeln!(out, "to the guest:   {} MiB/s", rate(begun))?;

    let connection = guest.start_with(address, port, 1 << 20);
    let (begun, mut sent, block) = (Instant::now(), 0, vec![7; 1 << 20]);
    guest
        .until(|sockets| {
            let socket = sockets.get_mut::<Socket<'_>>(connection);
            if socket.can_send() && sent < SIZE {
                let rest = block.len().min(SIZE - sent);
                sent += socket.send_slice(&block[..rest]).unwrap_or(0);
            }
            socket.can_recv().then_some(())
        })
        .await;
    writeln!(out, "from the guest: {} MiB/s", rate(begun))?;

    stop.cancel();
    gateway.await?;
    server.await?
}

fn rate(begun: Instant) -> u128 {
    (SIZE as u128 >> 20) * 1000 / begun.elapsed().as_millis().max(1)
}
