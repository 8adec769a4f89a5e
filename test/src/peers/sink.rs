//! A listener that should hear nothing, or says what it heard.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How much of an arrival is kept.
const KEPT: usize = 4096;

/// Something that reached the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// From where.
    pub from: SocketAddr,
    /// The first bytes; for a connection that said nothing, none.
    pub bytes: Vec<u8>,
}

/// One TCP and one UDP port of the same number. A connection is answered as HTTP with 200 and the
/// text `sink`.
pub struct Sink {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    _stop: DropGuard,
}

impl Sink {
    /// Listens on loopback.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start() -> anyhow::Result<Self> {
        Self::on(IpAddr::from([127, 0, 0, 1])).await
    }

    /// Listens on one of this machine's addresses.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn on(ip: IpAddr) -> anyhow::Result<Self> {
        let (tcp, udp) = pair(ip).await?;
        let address = tcp.local_addr()?;
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let connections = accept(tcp, Arc::clone(&arrivals));
        let datagrams = receive(udp, Arc::clone(&arrivals));
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = connections => {}
                () = datagrams => {}
            }
        });
        Ok(Self {
            address,
            arrivals,
            _stop: stop.drop_guard(),
        })
    }

    /// Where it listens, for both protocols.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has reached it so far.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A TCP and a UDP socket on the same free port.
async fn pair(ip: IpAddr) -> anyhow::Result<(TcpListener, UdpSocket)> {
    for _ in 0..20 {
        let tcp = TcpListener::bind((ip, 0)).await?;
        if let Ok(udp) = UdpSocket::bind((ip, tcp.local_addr()?.port())).await {
            return Ok((tcp, udp));
        }
    }
    anyhow::bail!("no port of {ip} is free for both TCP and UDP")
}

async fn accept(listener: TcpListener, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    while let Ok((mut stream, from)) = listener.accept().await {
        // Recorded at once: a connection that says nothing has arrived all the same.
        let place = {
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            arrivals.push(Arrival {
                protocol: "tcp",
                from,
                bytes: Vec::new(),
            });
            arrivals.len() - 1
        };
        let arrivals = Arc::clone(&arrivals);
        tokio::spawn(async move {
            let mut buffer = vec![0; KEPT];
            let read = stream.read(&mut buffer).await.unwrap_or(0);
            arrivals.lock().unwrap_or_else(PoisonError::into_inner)[place].bytes =
                buffer[..read].to_vec();
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: close\r\n\r\nsink\n")
                .await;
        });
    }
}

async fn receive(socket: UdpSocket, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    let mut buffer = vec![0; KEPT];
    while let Ok((read, from)) = socket.recv_from(&mut buffer).await {
        let arrival = Arrival {
            protocol: "udp",
            from,
            bytes: buffer[..read].to_vec(),
        };
        arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sink_hears_what_reaches_it() {
        let sink = Sink::start().await.unwrap();
        assert_eq!(sink.arrivals(), []);
        let mut stream = tokio::net::TcpStream::connect(sink.address())
            .await
            .unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("sink\n"));
        assert_eq!(sink.arrivals()[0].bytes, b"hello");
    }
}
