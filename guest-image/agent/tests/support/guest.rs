//! A guest in this process, reached over HTTP/2 on a stream in memory.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test program uses a part, and a failing test is the report"
)]

use crate::client::Client;
use http::StatusCode;
use lazaret_api::guest::{Adopt, Adopted, Clock, Health, Wake};
use lazaret_domain::Denial;
use lazaret_guest::api::Guest;
use lazaret_guest::exec::Engine;
use lazaret_guest::files::Areas;
use lazaret_guest::machine::Machine;
use lazaret_guest::serve;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A machine that counts what was done to it.
#[derive(Clone, Default)]
struct PaperMachine(Arc<AtomicU32>);

impl Machine for PaperMachine {
    fn health(&self) -> io::Result<Health> {
        Ok(Health {
            version: "0".into(),
            protocol: 1,
            kernel: "k".into(),
            boot_id: None,
            uptime_ms: 1,
            adopted: false,
            napping: false,
        })
    }

    fn adopt(&self, adopt: &Adopt) -> Result<Adopted, Denial> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Adopted {
            boot_id: "b".into(),
            kernel: "k".into(),
            wall_clock_ns: adopt.wall_clock_ns,
        })
    }

    fn adopt_again(&self, adopt: &Adopt) -> Result<Adopted, Denial> {
        let adopted = self.adopt(adopt)?;
        Ok(Adopted {
            boot_id: "another".into(),
            ..adopted
        })
    }

    fn wake(&self, wake: &Wake) -> Result<Clock, Denial> {
        Ok(Clock {
            wall_clock_ns: wake.wall_clock_ns,
        })
    }

    fn set_clock(&self, clock: Clock) -> Result<Clock, Denial> {
        Ok(clock)
    }

    fn sync(&self) -> fn() {
        || {}
    }
}

/// A guest, its directories, and a client of it.
pub struct TestGuest {
    dir: tempfile::TempDir,
    machine: PaperMachine,
    client: Client,
    server: JoinHandle<()>,
    wire: JoinHandle<()>,
}

impl TestGuest {
    /// A guest that nobody adopted yet.
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["workspace", "uploads", "outside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let machine = PaperMachine::default();
        let areas = Areas {
            workspace: dir.path().join("workspace"),
            uploads: dir.path().join("uploads"),
            owner: None,
        };
        let guest = Arc::new(Guest::new(machine.clone(), Engine::ordinary(), areas));
        let (ours, mut near) = tokio::io::duplex(64 * 1024);
        let (mut far, theirs) = tokio::io::duplex(64 * 1024);
        let server = tokio::spawn(async move {
            let _ = serve::connection(theirs, &guest).await;
        });
        let wire = tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
        let client = Client::connect(ours).await;
        Self {
            dir,
            machine,
            client,
            server,
            wire,
        }
    }

    /// A guest that is ready for work.
    pub async fn adopted() -> Self {
        let guest = Self::new().await;
        assert_eq!(guest.adopt().await.status, StatusCode::OK);
        guest
    }

    pub fn adoptions(&self) -> u32 {
        self.machine.0.load(Ordering::SeqCst)
    }

    pub fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    pub fn uploads(&self) -> PathBuf {
        self.dir.path().join("uploads")
    }

    pub fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// Breaks the connection.
    pub fn cut(&self) {
        self.wire.abort();
    }

    /// Waits until the guest has ended the connection.
    pub async fn ended(self) {
        self.server.await.unwrap();
    }
}

impl Deref for TestGuest {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Whether a process is there and not a zombie.
pub fn still_runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next())
        .is_some_and(|state| state != 'Z')
}

/// Waits until something holds; a minute without it is a failure.
pub async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("it never came to hold");
}
