//! Who a client is, for counting failures, requests, connections and streams.
//!
//! The socket's address, unless the peer is a configured proxy. Then `X-Forwarded-For` is read from
//! the right: each hop that is itself a configured proxy is passed over, and the first that is not
//! is the client. What stands further left was written by whoever that client is, and counts for
//! nothing.

use crate::places::too_many;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A client as it is counted: an IPv4 address, or the /64 network of an IPv6 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client(IpAddr);

impl Client {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self(IpAddr::V6(Ipv6Addr::from(
                u128::from(v6) & (u128::MAX << 64),
            ))),
            v4 => Self(v4),
        }
    }
}

/// Marks the requests of a connection beyond its client's part of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surplus;

/// Notes the client in the request. One that holds its part of the connections is refused further.
pub(crate) async fn identify(
    State(edge): State<Edge>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    if request.extensions().get::<Surplus>().is_some() {
        return Err(too_many("connections", "of this client").into());
    }
    // Without a peer address all share one count: never is anybody uncounted.
    let peer = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |info| info.0.ip());
    let client = client_of(peer, request.headers(), &edge.settings.trusted_proxies);
    request.extensions_mut().insert(client);
    Ok(next.run(request).await)
}

/// Whether this is the address of a configured proxy.
pub(crate) fn is_proxy(address: IpAddr, proxies: &[IpNet]) -> bool {
    let address = address.to_canonical();
    proxies.iter().any(|net| net.contains(&address))
}

fn client_of(peer: IpAddr, headers: &HeaderMap, proxies: &[IpNet]) -> Client {
    let mut client = peer;
    if !is_proxy(client, proxies) {
        return Client::of(client);
    }
    let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
    let hops = values
        .iter()
        .rev()
        .flat_map(|value| value.to_str().unwrap_or("?").rsplit(','));
    for hop in hops {
        let hop = hop.trim();
        let parsed = hop
            .parse::<IpAddr>()
            .ok()
            .or_else(|| hop.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
        let Some(address) = parsed else { break };
        client = address;
        if !is_proxy(client, proxies) {
            break;
        }
    }
    Client::of(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(peer: &str, forwarded: &[&str], proxies: &[&str]) -> Client {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", value.parse().unwrap());
        }
        let proxies: Vec<IpNet> = proxies.iter().map(|net| net.parse().unwrap()).collect();
        client_of(peer.parse().unwrap(), &headers, &proxies)
    }

    fn client(address: &str) -> Client {
        Client::of(address.parse().unwrap())
    }

    #[test]
    fn a_direct_client_cannot_name_itself() {
        assert_eq!(seen("9.9.9.9", &["1.2.3.4"], &[]), client("9.9.9.9"));
        assert_eq!(
            seen("9.9.9.9", &["1.2.3.4"], &["10.0.0.0/8"]),
            client("9.9.9.9")
        );
    }

    #[test]
    fn behind_proxies_the_rightmost_foreign_hop_counts() {
        let proxies = ["10.0.0.0/8"];
        assert_eq!(seen("10.0.0.1", &["1.2.3.4"], &proxies), client("1.2.3.4"));
        assert_eq!(
            seen("10.0.0.1", &["6.6.6.6, 1.2.3.4, 10.0.0.2"], &proxies),
            client("1.2.3.4")
        );
        assert_eq!(
            seen("10.0.0.1", &["6.6.6.6", "1.2.3.4"], &proxies),
            client("1.2.3.4")
        );
        assert_eq!(
            seen("10.0.0.1", &["7.7.7.7, 1.2.3.4:5678"], &proxies),
            client("1.2.3.4")
        );
        assert_eq!(
            seen("10.0.0.1", &["1.2.3.4, forged"], &proxies),
            client("10.0.0.1")
        );
        assert_eq!(seen("10.0.0.1", &[], &proxies), client("10.0.0.1"));
    }

    #[test]
    fn one_ipv6_network_is_one_client() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:2"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:1.2.3.4"), client("1.2.3.4"));
    }
}
