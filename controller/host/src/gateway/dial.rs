//! From a permission to a connection: resolve, judge each address, dial that very address, and judge
//! once more where the connection ended up. Nothing here can be called without a permission.

use futures::future::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::proto::rr::Name;
use lazaret_domain::egress::{Dialable, DomainName, Permit, Refusal};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long resolving a name may take.
const RESOLVE: Duration = Duration::from_secs(10);
/// How long connecting to one address may take.
const CONNECT: Duration = Duration::from_secs(10);
/// The most addresses of a host that are tried.
const MAX_TRIED: usize = 4;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DialError {
    /// The policy refuses every address of the host.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The address is one of this machine's own.
    #[error("the address is the host's own")]
    OwnAddress,
    /// The name has no address.
    #[error("the name does not resolve")]
    Unresolved,
    /// Nobody answers there.
    #[error("could not connect: {0}")]
    Unreachable(std::io::ErrorKind),
}

impl DialError {
    /// Whether it was decided here that there be none.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::OwnAddress)
    }
}

/// What is beyond the gateway, as connections see it.
pub(super) trait Outside: Send + Sync {
    /// Connects to the host of a permission.
    fn dial<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<TcpStream, DialError>>;

    /// Connects to an address that was asked for as such.
    fn connect<'a>(&'a self, to: &'a Dialable) -> BoxFuture<'a, Result<TcpStream, DialError>>;
}

/// The internet, by way of this machine's own resolvers.
pub(super) struct Internet(SystemResolver);

impl Internet {
    /// The internet as this machine is set up to reach it.
    pub(super) fn new() -> Self {
        Self(SystemResolver::new())
    }
}

impl Outside for Internet {
    fn dial<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        Box::pin(dial(permit, &self.0))
    }

    fn connect<'a>(&'a self, to: &'a Dialable) -> BoxFuture<'a, Result<TcpStream, DialError>> {
        Box::pin(connect(to))
    }
}

/// Where the addresses of an allowed host come from.
trait Resolve: Send + Sync {
    /// The addresses of a host, in the order in which to try them.
    fn resolve<'a>(&'a self, host: &'a DomainName) -> BoxFuture<'a, Vec<IpAddr>>;
}

/// The resolvers that this machine is set up with.
struct SystemResolver(Option<TokioResolver>);

impl SystemResolver {
    /// Reads the machine's settings. Without usable ones no name resolves.
    fn new() -> Self {
        let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        if let Err(error) = &resolver {
            tracing::warn!(%error, "this machine has no usable DNS settings: only pinned hosts can be reached");
        }
        Self(resolver.ok())
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a DomainName) -> BoxFuture<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let Some(resolver) = &self.0 else {
                return Vec::new();
            };
            let Ok(mut name) = Name::from_ascii(host.as_str()) else {
                return Vec::new();
            };
            // The name is meant as it stands; no search domain is added to it.
            name.set_fqdn(true);
            let found = timeout(RESOLVE, resolver.lookup_ip(name)).await;
            let mut addresses: Vec<_> = found
                .ok()
                .and_then(Result::ok)
                .iter()
                .flat_map(|found| found.iter())
                .collect();
            addresses.sort_by_key(IpAddr::is_ipv6);
            addresses
        })
    }
}

/// Connects to the host of a permission.
async fn dial(permit: &Permit, resolver: &dyn Resolve) -> Result<TcpStream, DialError> {
    let addresses = match permit.pinned() {
        Some(addresses) => addresses.to_vec(),
        None => resolver.resolve(permit.host()).await,
    };
    let mut error = DialError::Unresolved;
    for address in addresses.into_iter().take(MAX_TRIED) {
        let attempt = match permit.dial(address) {
            Ok(dialable) => connect(&dialable).await,
            Err(refusal) => Err(refusal.into()),
        };
        match attempt {
            Ok(stream) => return Ok(stream),
            // What was refused matters more than what could not be reached.
            Err(next) if error == DialError::Unresolved || next.is_refusal() => error = next,
            Err(_) => {}
        }
    }
    Err(error)
}

/// Connects to just this address.
async fn connect(dialable: &Dialable) -> Result<TcpStream, DialError> {
    let address = dialable.address();
    if !dialable.is_pinned() && is_own(address) {
        return Err(DialError::OwnAddress);
    }
    let unreachable = |error: std::io::Error| DialError::Unreachable(error.kind());
    let stream = match timeout(CONNECT, TcpStream::connect(address)).await {
        Ok(stream) => stream.map_err(unreachable)?,
        Err(_) => return Err(DialError::Unreachable(std::io::ErrorKind::TimedOut)),
    };
    dialable.confirm(stream.peer_addr().map_err(unreachable)?)?;
    // Small segments are passed on as they come.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Whether an address is this machine's own: then it is also the one the kernel would talk to it
/// from. No packet is sent to find out.
fn is_own(address: SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_domain::egress::{AddressGroup, EgressPolicy, Pinned};
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use tokio::net::TcpListener;

    /// Answers with one list after another, and remembers what it was asked.
    #[derive(Default)]
    struct Scripted {
        answers: Mutex<VecDeque<Vec<IpAddr>>>,
        asked: Mutex<Vec<String>>,
    }

    impl Resolve for Scripted {
        fn resolve<'a>(&'a self, host: &'a DomainName) -> BoxFuture<'a, Vec<IpAddr>> {
            self.asked.lock().unwrap().push(host.to_string());
            let answer = self.answers.lock().unwrap().pop_front().unwrap_or_default();
            Box::pin(async move { answer })
        }
    }

    fn policy(port: u16, pinned: Vec<Pinned>) -> EgressPolicy {
        EgressPolicy {
            rules: vec![format!("rebind.example:{port}").parse().unwrap()],
            pinned,
            open: false,
        }
    }

    #[tokio::test]
    async fn t40_a_name_that_comes_to_mean_this_machine_is_refused_at_each_dial() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let permit = policy(port, Vec::new())
            .permit(&"rebind.example".parse().unwrap(), port)
            .unwrap();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let resolver = Scripted::default();
        *resolver.answers.lock().unwrap() = [
            vec![loopback],
            vec!["::1".parse().unwrap(), "::ffff:127.0.0.1".parse().unwrap()],
        ]
        .into();
        for _ in 0..2 {
            let error = dial(&permit, &resolver).await.unwrap_err();
            assert_eq!(
                error,
                DialError::Refused(Refusal::Group(AddressGroup::Loopback))
            );
        }
        assert_eq!(
            dial(&permit, &resolver).await.unwrap_err(),
            DialError::Unresolved
        );
        assert_eq!(
            resolver.asked.lock().unwrap().len(),
            3,
            "each dial looks again"
        );
        // Nothing has arrived: the first to be accepted is the connection made here.
        let own = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(
            listener.accept().await.unwrap().1,
            own.local_addr().unwrap()
        );
    }

    #[tokio::test]
    async fn t36_a_pinned_host_is_dialled_at_its_address_and_never_resolved() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host: DomainName = "rebind.example".parse().unwrap();
        let pin = Pinned {
            host: host.clone(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
        };
        let resolver = Scripted::default();
        let stream = dial(
            &policy(port, vec![pin]).permit(&host, port).unwrap(),
            &resolver,
        )
        .await
        .unwrap();
        assert_eq!(
            listener.accept().await.unwrap().1,
            stream.local_addr().unwrap()
        );
        assert!(resolver.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn the_machines_own_addresses_are_known() {
        assert!(is_own("127.0.0.1:1".parse().unwrap()));
        assert!(!is_own("192.0.2.1:1".parse().unwrap()));
    }
}
