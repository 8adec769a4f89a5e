//! What is passed on between the guest and a host, and what must be seen of it before.

use super::super::hello::{self, Hello, MAX_HELLO, UNRECOGNIZED_NAME};
use super::super::stream::GuestStream;
use super::Outcome;
use lazaret_domain::egress::DomainName;
use std::io;
use std::time::Duration;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional_with_sizes,
    copy_buf,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A TLS client must say what it wants within this time.
const HELLO: Duration = Duration::from_secs(20);
/// How much of a connection is on its way through the gateway, in each direction.
const COPY_BUFFER: usize = 64 * 1024;
/// Why a ClientHello for another host is not let through.
const FOREIGN_NAME: &str = "the TLS ClientHello names another host";
/// What every TLS handshake begins with.
const TLS_MARK: [u8; 2] = [22, 3];

/// Reads a ClientHello, and says why it is not let through unless it is for this host.
pub(super) async fn check_hello<R>(
    stream: &mut R,
    opening: &mut Vec<u8>,
    host: &DomainName,
) -> Result<(), Outcome>
where
    R: AsyncRead + Unpin,
{
    match read_hello(stream, opening).await {
        Hello::For(name) if name == *host => Ok(()),
        Hello::For(_) => Err(Outcome::Refused(FOREIGN_NAME.to_owned())),
        Hello::Refused(reason) => Err(Outcome::Refused(reason.to_owned())),
        Hello::Incomplete => Err(Outcome::Failed("no TLS ClientHello came".to_owned())),
    }
}

/// Ends a connection in order. A client that asked for another name gets to know it in TLS's own
/// words.
pub(super) async fn say_why(stream: &mut (impl AsyncWrite + Unpin), outcome: &Outcome) {
    let Outcome::Refused(reason) = outcome else {
        return;
    };
    if reason == FOREIGN_NAME {
        let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
    }
    let _ = stream.shutdown().await;
}

/// Reads until it is clear what the client wants, or will not become so.
async fn read_hello<R>(stream: &mut R, opening: &mut Vec<u8>) -> Hello
where
    R: AsyncRead + Unpin,
{
    let reading = async {
        let mut piece = [0; 4096];
        loop {
            match hello::read(opening) {
                Hello::Incomplete => {}
                settled => return Ok(settled),
            }
            let length = stream.read(&mut piece).await?;
            if length == 0 || opening.len() > MAX_HELLO {
                return io::Result::Ok(Hello::Incomplete);
            }
            opening.extend_from_slice(&piece[..length]);
        }
    };
    match timeout(HELLO, reading).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(_)) | Err(_) => Hello::Incomplete,
    }
}

/// [`splice`] for a port on which anything may be spoken, and the server may speak first: if what
/// the guest says first is a TLS handshake, it must be for this host.
pub(super) async fn splice_checked(
    stream: GuestStream,
    upstream: TcpStream,
    host: &DomainName,
) -> Outcome {
    let (mut said, mut heard) = tokio::io::split(stream);
    let (answers, mut asks) = upstream.into_split();
    let broke = |_: io::Error| Outcome::Served;
    let up = async {
        let mut opening = Vec::new();
        if opens_tls(&mut said, &mut opening).await.map_err(broke)? {
            check_hello(&mut said, &mut opening, host).await?;
        }
        asks.write_all(&opening).await.map_err(broke)?;
        drop(opening);
        let mut said = BufReader::with_capacity(COPY_BUFFER, &mut said);
        copy_buf(&mut said, &mut asks).await.map_err(broke)?;
        asks.shutdown().await.map_err(broke)
    };
    let down = async {
        let mut answers = BufReader::with_capacity(COPY_BUFFER, answers);
        copy_buf(&mut answers, &mut heard).await.map_err(broke)?;
        heard.shutdown().await.map_err(broke)
    };
    match tokio::try_join!(up, down) {
        Ok(_) => Outcome::Served,
        Err(outcome) => {
            say_why(&mut heard, &outcome).await;
            outcome
        }
    }
}

/// Reads the guest's first bytes: whether they begin a TLS handshake. It may take any time to come
/// to speak.
async fn opens_tls<R>(stream: &mut R, opening: &mut Vec<u8>) -> io::Result<bool>
where
    R: AsyncRead + Unpin,
{
    let mut piece = [0; 4096];
    while opening.len() < TLS_MARK.len() && TLS_MARK.starts_with(opening) {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            return Ok(false);
        }
        opening.extend_from_slice(&piece[..length]);
    }
    Ok(opening.starts_with(&TLS_MARK))
}

/// Passes bytes both ways. Each side is read only as fast as the other takes it.
pub(super) async fn splice(mut stream: GuestStream, mut upstream: TcpStream) -> Outcome {
    // How it broke is between the two ends; both get to know by their connection ending.
    let _ =
        copy_bidirectional_with_sizes(&mut stream, &mut upstream, COPY_BUFFER, COPY_BUFFER).await;
    Outcome::Served
}
