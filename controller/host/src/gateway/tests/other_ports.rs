//! What is said on ports that are neither 443 nor 80.

use super::{Bench, client_hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn t41_tls_on_any_other_port_wants_the_name_too() {
    let mut bench = Bench::new(&["pypi.org:8443"]).await;
    let address = bench.guest.resolve("pypi.org").await;
    let foreign = client_hello("evil.example");
    // Also when the two bytes that show what it is come one by one.
    for cut in [0, 1, 2, 20] {
        let connection = bench.guest.connect(address, 8443).await.unwrap();
        let (mut server, _) = bench.listener.accept().await.unwrap();
        let (first, second) = foreign.split_at(cut);
        bench.guest.send(connection, first).await;
        bench.guest.send(connection, second).await;
        let ended = bench.guest.receive_to_end(connection).await;
        assert_eq!(
            ended.received,
            super::super::hello::UNRECOGNIZED_NAME,
            "{cut}"
        );
        let mut seen = Vec::new();
        let _ = server.read_to_end(&mut seen).await;
        assert_eq!(seen, b"", "{cut}: nothing of it went out");
    }
    let own = client_hello("pypi.org");
    let connection = bench.guest.connect(address, 8443).await.unwrap();
    bench.guest.send(connection, &own).await;
    let (mut server, _) = bench.listener.accept().await.unwrap();
    let mut seen = vec![0; own.len()];
    server.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen, own);
    server.write_all(b"server hello").await.unwrap();
    assert_eq!(bench.guest.receive(connection, 12).await, b"server hello");
    let (_, records) = bench.finish().await;
    assert_eq!(
        records,
        [
            (false, "the TLS ClientHello names another host".to_owned()),
            (true, "pypi.org:8443".to_owned()),
        ]
    );
}

#[tokio::test]
async fn on_other_ports_anything_but_tls_goes_through_and_the_server_may_speak_first() {
    let mut bench = Bench::new(&["github.com:22"]).await;
    let address = bench.guest.resolve("github.com").await;
    for words in [&b"SSH-2.0-guest\r\n"[..], &[22], &[22, 4, 3]] {
        let connection = bench.guest.connect(address, 22).await.unwrap();
        let (mut server, _) = bench.listener.accept().await.unwrap();
        server.write_all(b"SSH-2.0-host\r\n").await.unwrap();
        assert_eq!(
            bench.guest.receive(connection, 14).await,
            b"SSH-2.0-host\r\n"
        );
        bench.guest.send(connection, words).await;
        bench.guest.close(connection);
        let answered = async {
            let mut seen = Vec::new();
            server.read_to_end(&mut seen).await.unwrap();
            server.write_all(b"bye").await.unwrap();
            drop(server);
            seen
        };
        let (ended, seen) = tokio::join!(bench.guest.receive_to_end(connection), answered);
        assert_eq!(seen, words);
        assert_eq!(
            (ended.received.as_slice(), ended.reset),
            (&b"bye"[..], false)
        );
    }
}
