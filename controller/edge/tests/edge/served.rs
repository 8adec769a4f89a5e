//! A whole controller behind a socket.

use crate::support::{LONG, command, services, token};
use lazaret_api::public::Scope;
use lazaret_edge::EdgeSettings;
use lazaret_services::ports::fake_host::{FakeHost, Play};
use lazaret_services::{Principal, Services};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A server on a socket of its own.
pub struct Served {
    pub address: SocketAddr,
    pub services: Services,
    pub stop: CancellationToken,
    pub server: JoinHandle<std::io::Result<()>>,
    pub host: FakeHost,
    _directory: tempfile::TempDir,
}

impl Served {
    pub async fn with(change: impl FnOnce(&mut EdgeSettings)) -> Self {
        let (services, host, directory) = services().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut settings =
            EdgeSettings::new(&format!("http://{address}"), address, stop.clone()).unwrap();
        settings.comment_every = Duration::from_millis(20);
        change(&mut settings);
        let router = lazaret_edge::router(services.clone(), settings.clone());
        let serving = async move { lazaret_edge::serve(listener, router, &settings).await };
        Self {
            address,
            services,
            stop,
            server: tokio::spawn(serving),
            host,
            _directory: directory,
        }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub fn health(&self) -> String {
        format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", self.address)
    }

    /// A stream of a run that goes on and says nothing.
    pub async fn stream_of_a_run(&self) -> TcpStream {
        self.host.plays(|_, _| Play {
            frames: Vec::new(),
            exit: None,
        });
        let token = token(&self.services, Scope::Read).await;
        let by = Principal::controller();
        let run = self.services.runs.delegate(&by, None, command()).await;
        let head = format!(
            "GET /api/v1/runs/{}/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Accept: text/event-stream\r\n\r\n",
            run.unwrap().run,
            self.address
        );
        let mut stream = self.connect().await;
        let begun = exchange(&mut stream, &head, "event: state").await;
        assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
        stream
    }
}

/// Sends one request head and reads until `wanted` was seen or the connection ends.
pub async fn exchange(stream: &mut TcpStream, head: &str, wanted: &str) -> String {
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let count = tokio::time::timeout(LONG, stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        if count == 0 {
            break;
        }
        seen.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// Waits until the server has ended the connection.
pub async fn ends(stream: &mut TcpStream, what: &str) {
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
    // A reset is an end as well.
    let _ = ended.unwrap_or_else(|_| panic!("still open: {what}"));
}
