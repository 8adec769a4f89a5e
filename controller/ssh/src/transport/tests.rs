//! The client against an SSH server in this process that opens what no host may open.

use super::*;
use russh::keys::{Algorithm, PrivateKey};
use russh::server::{self, Auth, VerifiedPublicKey};
use std::os::unix::fs::PermissionsExt;
use tokio::net::TcpListener;

/// Lets everybody in.
struct Host;

impl server::Handler for Host {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }
}

fn client_key() -> ClientKey {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    ClientKey::load(&path).unwrap()
}

/// A connection to a server of the test, and that server's end of it.
async fn connected() -> (Transport, server::Handle) {
    let host_key = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap();
    let pin = HostKeyPin::of(host_key.public_key());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let config = server::Config {
            keys: vec![host_key],
            ..server::Config::default()
        };
        let session = server::run_stream(Arc::new(config), socket, Host)
            .await
            .unwrap();
        let handle = session.handle();
        tokio::spawn(session);
        handle
    });
    let target = Target {
        user: "lazaret".into(),
        host: "127.0.0.1".into(),
        port,
        pin,
    };
    let transport = Transport::dial(&target, &client_key(), Duration::from_secs(5))
        .await
        .unwrap();
    (transport, serving.await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_can_open_no_channel_of_any_kind_towards_the_controller() {
    let (transport, host) = connected().await;
    let attempts = [
        ("session", host.channel_open_session().await.err()),
        (
            "direct-tcpip",
            host.channel_open_direct_tcpip("127.0.0.1", 22, "127.0.0.1", 1)
                .await
                .err(),
        ),
        (
            "direct-streamlocal",
            host.channel_open_direct_streamlocal("/run/docker.sock")
                .await
                .err(),
        ),
        (
            "forwarded-tcpip",
            host.channel_open_forwarded_tcpip("127.0.0.1", 22, "127.0.0.1", 1)
                .await
                .err(),
        ),
        (
            "forwarded-streamlocal",
            host.channel_open_forwarded_streamlocal("/run/docker.sock")
                .await
                .err(),
        ),
        ("agent", host.channel_open_agent().await.err()),
        ("x11", host.channel_open_x11("127.0.0.1", 1).await.err()),
    ];
    for (kind, refused) in attempts {
        assert!(
            matches!(refused, Some(russh::Error::ChannelOpenFailure(_))),
            "{kind}: {refused:?}"
        );
    }
    assert!(!transport.is_closed(), "refusing costs no connection");
}
