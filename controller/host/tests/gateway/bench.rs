//! A gateway with its guest, and what is beyond it.

use crate::test_guest::TestGuest;
use lazaret_api::host::EgressRecord;
use lazaret_domain::egress::{EgressPolicy, Pinned};
use lazaret_host::gateway::{EgressLog, GatewayConfig, GatewayEnd, serve};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const SANDBOX: &str = "s0000000000000000";

/// A gateway with its guest.
pub(crate) struct Bench {
    pub(crate) guest: TestGuest,
    pub(crate) log: EgressLog,
    pub(crate) stop: CancellationToken,
    pub(crate) gateway: JoinHandle<GatewayEnd>,
}

impl Bench {
    pub(crate) fn new(policy: EgressPolicy) -> Self {
        Self::with_uplink(policy, PathBuf::from("/nonexistent/uplink.sock"))
    }

    pub(crate) fn with_uplink(policy: EgressPolicy, uplink: PathBuf) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (log, stop) = (EgressLog::new(), CancellationToken::new());
        let config = GatewayConfig {
            sandbox: SANDBOX.parse().unwrap(),
            policy,
            uplink,
        };
        let gateway = tokio::spawn(serve(theirs, config, log.clone(), stop.clone()));
        Self {
            guest: TestGuest::new(ours),
            log,
            stop,
            gateway,
        }
    }

    /// The records so far, without what is said about names.
    pub(crate) fn records(&self) -> Vec<EgressRecord> {
        self.log
            .after(0)
            .records
            .into_iter()
            .filter(|record| record.kind != "dns")
            .collect()
    }

    /// Waits until there is a record of this kind, while the guest's stack goes on.
    pub(crate) async fn record(&mut self, kind: &str) -> EgressRecord {
        loop {
            if let Some(record) = self
                .log
                .after(0)
                .records
                .into_iter()
                .find(|record| record.kind == kind)
            {
                return record;
            }
            // The gateway answers queries in the order of the frames: after one, all before it is done.
            self.guest.query("gateway.lazaret", 1).await;
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn policy(rules: &[String]) -> EgressPolicy {
    EgressPolicy {
        rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..EgressPolicy::default()
    }
}

pub(crate) fn pinned(host: &str, port: u16) -> EgressPolicy {
    let pin = Pinned {
        host: host.parse().unwrap(),
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
    };
    EgressPolicy {
        pinned: vec![pin],
        ..policy(&[format!("{host}:{port}")])
    }
}

pub(crate) async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Shows that nobody has connected: the first connection to be accepted is one made here.
pub(crate) async fn assert_untouched(listener: &TcpListener) {
    let own = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert_eq!(
        listener.accept().await.unwrap().1,
        own.local_addr().unwrap(),
        "somebody got through"
    );
}
