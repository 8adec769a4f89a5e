//! One rule, parsed once. Its text is kept in canonical form, for logs and for the wire.

use super::DomainName;
use crate::{Denial, DenialCode};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use utoipa::ToSchema;

/// The ports a rule without a port means.
pub const DEFAULT_PORTS: [u16; 2] = [443, 80];

/// One rule of an egress policy: `HOST`, `*.HOST` (subdomains only, HOST of two labels or more),
/// `HOST:PORT`, `CIDR` or `CIDR:PORT`. Without a port 443 and 80 are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct EgressRule(#[schemars(with = "String")] Parsed);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Parsed {
    text: String,
    target: Target,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Target {
    Host(DomainName),
    Below(DomainName),
    Network(IpNet),
}

impl Serialize for Parsed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl EgressRule {
    /// The rule as text, in canonical form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Whether the rule covers this host on this port.
    #[must_use]
    pub fn covers_host(&self, host: &DomainName, port: u16) -> bool {
        self.covers_port(port) && self.covers_name(host)
    }

    /// Whether the rule covers this host on any port.
    #[must_use]
    pub fn covers_name(&self, host: &DomainName) -> bool {
        match &self.0.target {
            Target::Host(name) => name == host,
            Target::Below(parent) => host.is_below(parent),
            Target::Network(_) => false,
        }
    }

    /// Whether the rule covers this address on this port.
    #[must_use]
    pub fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        self.covers_port(port)
            && matches!(&self.0.target, Target::Network(network) if network.contains(&address))
    }

    /// Whether it is a network so large that naming it names nobody: of more than 65,536 IPv4
    /// addresses, or wider than what a provider gives one site (/32 of IPv6).
    #[must_use]
    pub fn is_wide(&self) -> bool {
        match &self.0.target {
            Target::Network(IpNet::V4(network)) => network.prefix_len() < 16,
            Target::Network(IpNet::V6(network)) => network.prefix_len() < 32,
            Target::Host(_) | Target::Below(_) => false,
        }
    }

    fn covers_port(&self, port: u16) -> bool {
        self.0
            .port
            .map_or(DEFAULT_PORTS.contains(&port), |only| only == port)
    }
}

impl FromStr for EgressRule {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let (target, port) = if text.contains('/') {
            parse_network(text)?
        } else {
            parse_host(text)?
        };
        let mut canonical = match &target {
            Target::Host(host) => host.to_string(),
            Target::Below(parent) => format!("*.{parent}"),
            Target::Network(network) => network.to_string(),
        };
        if let Some(port) = port {
            canonical.push_str(&format!(":{port}"));
        }
        Ok(Self(Parsed {
            text: canonical,
            target,
            port,
        }))
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EgressRule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

fn refuse<T>(why: impl fmt::Display) -> Result<T, Denial> {
    Err(Denial::new(
        DenialCode::InvalidEgress,
        format!("not an egress rule (HOST, *.HOST, HOST:PORT, CIDR or CIDR:PORT): {why}"),
    ))
}

fn parse_network(text: &str) -> Result<(Target, Option<u16>), Denial> {
    let Some((address, rest)) = text.split_once('/') else {
        return refuse("a network has a prefix length");
    };
    let (prefix, port) = match rest.split_once(':') {
        Some((prefix, port)) => (prefix, Some(parse_port(port)?)),
        None => (rest, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return refuse("the network is not an IP address");
    };
    let Some(prefix) = parse_number(prefix).and_then(|number| u8::try_from(number).ok()) else {
        return refuse("the prefix length is not a number");
    };
    let Ok(network) = IpNet::new(address, prefix) else {
        return refuse("the prefix length is too long");
    };
    if network.trunc() != network {
        return refuse(format!(
            "{network} has bits set beyond its prefix; did you mean {}?",
            network.trunc()
        ));
    }
    Ok((Target::Network(network), port))
}

fn parse_host(text: &str) -> Result<(Target, Option<u16>), Denial> {
    if text.parse::<IpAddr>().is_ok() {
        return refuse("write a single address as a network, with /32 or /128");
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(parse_port(port)?)),
        None => (text, None),
    };
    let (wildcard, host) = match host.strip_prefix("*.") {
        Some(parent) => (true, parent),
        None => (false, host),
    };
    let name: DomainName = host
        .parse()
        .or_else(|denial: Denial| refuse(denial.message))?;
    if wildcard && name.labels() < 2 {
        return refuse("below *. at least two labels are needed");
    }
    Ok((
        if wildcard {
            Target::Below(name)
        } else {
            Target::Host(name)
        },
        port,
    ))
}

/// A number in plain decimal digits: no sign, no leading zero.
fn parse_number(text: &str) -> Option<u16> {
    let plain = text == "0"
        || (!text.starts_with('0') && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| text.parse().ok()).flatten()
}

/// A port: 1 to 65535.
pub(super) fn parse_port(text: &str) -> Result<u16, Denial> {
    match parse_number(text) {
        Some(port) if port > 0 => Ok(port),
        _ => refuse("the port is not a number from 1 to 65535"),
    }
}
