//! Why a destination is allowed or refused, in words, without resolving or dialling anything.

use super::rule::parse_port;
use super::{DomainName, EgressPolicy, Verdict};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The verdict on one destination, as `lazaret egress explain` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The destination as it was asked about.
    pub destination: String,
    /// The port it was judged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether it is allowed.
    pub allowed: bool,
    /// The rule that allows it, or none.
    pub rule: Option<String>,
    /// Why, for people.
    pub reason: String,
}

impl EgressPolicy {
    /// Judges a destination as a person writes it: `HOST`, `HOST:PORT`, `ADDRESS`, `ADDRESS:PORT` or
    /// `[IPV6]:PORT`; without a port, 443. What is not a destination is refused like any other.
    #[must_use]
    pub fn explain(&self, destination: &str) -> Explanation {
        let answer = |port, verdict| match verdict {
            Verdict::Allow { rule } => Explanation {
                destination: destination.to_owned(),
                port,
                allowed: true,
                reason: format!("allowed by {rule}"),
                rule: Some(rule),
            },
            Verdict::Deny { reason } => Explanation {
                destination: destination.to_owned(),
                port,
                allowed: false,
                rule: None,
                reason,
            },
        };
        if let Some((address, port)) = parse_address(destination) {
            return answer(Some(port), self.verdict_on_address(address, port));
        }
        let (host, port) = match destination.split_once(':') {
            Some((host, port)) => (host, parse_port(port)),
            None => (destination, Ok(DEFAULT_PORT)),
        };
        let port = match port {
            Ok(port) => port,
            Err(denial) => {
                return answer(
                    None,
                    Verdict::Deny {
                        reason: denial.message,
                    },
                );
            }
        };
        match host.parse::<DomainName>() {
            Err(denial) => answer(
                Some(port),
                Verdict::Deny {
                    reason: denial.message,
                },
            ),
            Ok(host) => {
                let mut explanation = answer(Some(port), self.verdict_on_name(&host, port));
                if explanation.allowed {
                    explanation.reason.push_str(self.address_condition(&host));
                }
                explanation
            }
        }
    }

    /// What is still to be said about an allowed host's addresses.
    fn address_condition(&self, host: &DomainName) -> &'static str {
        if self.pinned.iter().any(|pin| pin.host == *host) {
            ", at the addresses it is pinned to"
        } else {
            ", if it resolves to a public address"
        }
    }
}

/// The port of a destination without one.
const DEFAULT_PORT: u16 = 443;

fn parse_address(text: &str) -> Option<(IpAddr, u16)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((address.ip(), address.port()));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match bare {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse::<IpAddr>().ok(),
    };
    address.map(|address| (address, DEFAULT_PORT))
}
