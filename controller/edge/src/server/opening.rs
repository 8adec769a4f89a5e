//! The first bytes of a connection. hyper-util tells HTTP/1 and HTTP/2 apart without a time limit,
//! so a socket that says nothing, or half of HTTP/2's preface, would keep its place for ever. They
//! are read here, where the caller can put a limit on it, and given back in front of the rest.

use std::io::{self, Cursor};
use std::time::Duration;
use tokio::io::{AsyncReadExt, Chain, Join, join};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// How HTTP/2 begins. What differs from it in any byte is HTTP/1.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A peer that has been silent for this long is asked whether it is still there…
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// …again every so often…
const PROBE_EVERY: Duration = Duration::from_secs(15);
/// …and is gone after so many questions without an answer.
const PROBES: u32 = 4;

/// A connection whose first bytes are read again.
pub(super) type Opened = Join<Chain<Cursor<Vec<u8>>, OwnedReadHalf>, OwnedWriteHalf>;

/// Waits until it is plain which HTTP the client speaks.
///
/// # Errors
/// `UnexpectedEof` if the client left before, and whatever reading gives.
pub(super) async fn opened(stream: TcpStream) -> io::Result<Opened> {
    let (mut read, write) = stream.into_split();
    let mut seen = Vec::with_capacity(PREFACE.len());
    while seen.len() < PREFACE.len() && PREFACE.starts_with(&seen) {
        let missing = (PREFACE.len() - seen.len()) as u64;
        if (&mut read).take(missing).read_buf(&mut seen).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(join(Cursor::new(seen).chain(read), write))
}

/// Bytes of answers that the kernel holds for one connection. What it holds counts as taken, so with
/// more of it a slow client that gets on would look like one that does not.
const SEND_BUFFER: usize = 256 << 10;

/// Has the kernel notice peers that went away without a word, or that take nothing of what it holds
/// for them for so long, and small answers go out at once.
///
/// # Errors
/// What the kernel says.
pub(super) fn prepare(stream: &TcpStream, stall: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER)?;
    let stall = u32::try_from(stall.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, stall)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn what_was_read_to_tell_is_read_again() {
        let openings = [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PRIVATE / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nframes",
        ];
        for opening in openings {
            let (mut client, server) = pair().await;
            // Byte by byte, so that every length of what has come is seen.
            let sending = tokio::spawn(async move {
                client.set_nodelay(true).unwrap();
                for byte in opening {
                    client.write_all(&[*byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
            let mut read = Vec::new();
            let mut stream = opened(server).await.unwrap();
            stream.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, opening);
            sending.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_before_it_is_plain_is_an_error() {
        let (mut client, server) = pair().await;
        client.write_all(b"PRI").await.unwrap();
        drop(client);
        let fault = opened(server).await.err().unwrap();
        assert_eq!(fault.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn the_kernel_asks_silent_peers() {
        use rustix::net::sockopt;
        let (_client, server) = pair().await;
        prepare(&server, Duration::from_secs(7)).unwrap();
        assert!(sockopt::socket_keepalive(&server).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&server).unwrap(), PROBE_AFTER);
        assert_eq!(sockopt::tcp_user_timeout(&server).unwrap(), 7000);
    }
}
