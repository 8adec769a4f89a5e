//! A policy: ordered rules, pinned hosts, and the verdict on a destination.

use super::{AddressGroup, DEFAULT_PORTS, DomainName, EgressRule};
use crate::{Denial, DenialCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use utoipa::ToSchema;

/// A host whose addresses the operator named: the only way to a private address. The pin says where
/// the host is; whether it may be reached is still for the rules (or `open`) to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// The host.
    pub host: DomainName,
    /// The addresses that are dialled for it, instead of resolving it.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<IpAddr>,
}

/// What a sandbox may reach besides the gateway's own services. The default is sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressPolicy {
    /// Ordered; the first match allows; nothing matches means deny.
    #[serde(default)]
    pub rules: Vec<EgressRule>,
    /// Hosts with addresses given by the operator.
    #[serde(default)]
    pub pinned: Vec<Pinned>,
    /// Whether any public host may be reached on ports 443 and 80.
    #[serde(default)]
    pub open: bool,
}

/// The answer to "may this sandbox reach that".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may, by this rule.
    Allow {
        /// The rule as written.
        rule: String,
    },
    /// It may not.
    Deny {
        /// Why, for people.
        reason: String,
    },
}

/// Why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The policy is empty.
    #[error("the sandbox is sealed")]
    Sealed,
    /// No rule names the host with this port.
    #[error("no rule allows this host and port")]
    NoRule,
    /// No rule names the host at all.
    #[error("no rule allows this host")]
    NoRuleForName,
    /// No rule names a network around the address.
    #[error("no rule allows this address")]
    NoRuleForAddress,
    /// The address is not public, and not pinned to the host.
    #[error("the address is {} and not pinned to this host", .0.words())]
    Group(AddressGroup),
    /// The operator pinned the host to other addresses.
    #[error("the operator pinned this host to other addresses")]
    NotPinned,
    /// The connection ended up somewhere else than it was dialled to.
    #[error("connected to another address than was dialled")]
    PeerMismatch,
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Self {
        Self::Deny {
            reason: refusal.to_string(),
        }
    }
}

/// The permission to reach a host by name on one port. Only [`EgressPolicy::permit`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    host: DomainName,
    port: u16,
    rule: String,
    pinned: Option<Vec<IpAddr>>,
}

/// The permission to connect to one address and port. Only a [`Permit`] or
/// [`EgressPolicy::permit_address`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialable {
    address: SocketAddr,
    pinned: bool,
}

/// What is said to have allowed a host when no rule but the `open` flag did.
const OPEN: &str = "open";

impl EgressPolicy {
    /// The most rules a policy may have.
    pub const MAX_RULES: usize = 1_000;
    /// The most pinned hosts a policy may have.
    pub const MAX_PINNED: usize = 1_000;
    /// The most addresses one host may be pinned to.
    pub const MAX_PIN_ADDRESSES: usize = 16;

    /// Whether nothing at all may be reached.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.rules.is_empty() && !self.open
    }

    /// Checks what the form of a policy can't show: its size, and that each pin can have an effect.
    ///
    /// # Errors
    /// `invalid_egress`, naming the first fault.
    pub fn check(&self) -> Result<(), Denial> {
        let refuse = |why: String| Err(Denial::new(DenialCode::InvalidEgress, why));
        if self.rules.len() > Self::MAX_RULES || self.pinned.len() > Self::MAX_PINNED {
            return refuse(
                "an egress policy has at most 1,000 rules and 1,000 pinned hosts".to_owned(),
            );
        }
        for pin in &self.pinned {
            if pin.addresses.is_empty() || pin.addresses.len() > Self::MAX_PIN_ADDRESSES {
                return refuse(format!(
                    "{} must be pinned to 1 to {} addresses",
                    pin.host,
                    Self::MAX_PIN_ADDRESSES
                ));
            }
            for address in &pin.addresses {
                let group = AddressGroup::of(*address);
                if !group.may_be_pinned() {
                    return refuse(format!(
                        "{} can't be pinned to {address}: it is {}",
                        pin.host,
                        group.words()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Judges a host and port, before anything is resolved.
    ///
    /// # Errors
    /// Why it may not be reached.
    pub fn permit(&self, host: &DomainName, port: u16) -> Result<Permit, Refusal> {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.covers_host(host, port))
            .map(EgressRule::as_str);
        let rule = match rule {
            Some(rule) => rule,
            None if self.open && DEFAULT_PORTS.contains(&port) => OPEN,
            None => return Err(self.unless_sealed(Refusal::NoRule)),
        };
        let pinned = self
            .pinned
            .iter()
            .find(|pin| pin.host == *host)
            .map(|pin| pin.addresses.clone());
        Ok(Permit {
            host: host.clone(),
            port,
            rule: rule.to_owned(),
            pinned,
        })
    }

    /// Judges a host without a port: whether some port of it may be reached, so that its name may be
    /// answered. Says by which rule.
    ///
    /// # Errors
    /// Why not.
    pub fn permit_name(&self, host: &DomainName) -> Result<&str, Refusal> {
        match self.rules.iter().find(|rule| rule.covers_name(host)) {
            Some(rule) => Ok(rule.as_str()),
            None if self.open => Ok(OPEN),
            None => Err(self.unless_sealed(Refusal::NoRuleForName)),
        }
    }

    /// Judges an address that was asked for as such, without a name. Only a rule with a network
    /// around it allows it, and only if it is public; says by which rule.
    ///
    /// # Errors
    /// Why it may not be reached.
    pub fn permit_address(&self, address: IpAddr, port: u16) -> Result<(Dialable, &str), Refusal> {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.covers_address(address, port));
        let rule = rule.ok_or_else(|| self.unless_sealed(Refusal::NoRuleForAddress))?;
        match AddressGroup::of(address) {
            AddressGroup::Public => Ok((
                Dialable {
                    address: SocketAddr::new(address, port),
                    pinned: false,
                },
                rule.as_str(),
            )),
            group => Err(Refusal::Group(group)),
        }
    }

    /// [`Self::permit`] as a verdict.
    #[must_use]
    pub fn verdict_on_name(&self, host: &DomainName, port: u16) -> Verdict {
        self.permit(host, port)
            .map_or_else(Verdict::from, |permit| Verdict::Allow { rule: permit.rule })
    }

    /// [`Self::permit`] and [`Permit::dial`] as a verdict: a name that resolved to this address.
    #[must_use]
    pub fn verdict_on_resolved(&self, host: &DomainName, port: u16, address: IpAddr) -> Verdict {
        let judged = self
            .permit(host, port)
            .and_then(|permit| permit.dial(address).map(|_| permit));
        judged.map_or_else(Verdict::from, |permit| Verdict::Allow { rule: permit.rule })
    }

    /// [`Self::permit_address`] as a verdict.
    #[must_use]
    pub fn verdict_on_address(&self, address: IpAddr, port: u16) -> Verdict {
        self.permit_address(address, port)
            .map_or_else(Verdict::from, |(_, rule)| Verdict::Allow {
                rule: rule.to_owned(),
            })
    }

    fn unless_sealed(&self, refusal: Refusal) -> Refusal {
        if self.is_sealed() {
            Refusal::Sealed
        } else {
            refusal
        }
    }
}

impl Permit {
    /// The host.
    #[must_use]
    pub fn host(&self) -> &DomainName {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The rule that allowed it.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The addresses to dial instead of resolving the host, where the operator pinned it.
    #[must_use]
    pub fn pinned(&self) -> Option<&[IpAddr]> {
        self.pinned.as_deref()
    }

    /// Judges one address of the host, after resolution. A pinned host may only be dialled at its
    /// pinned addresses; any other host only at public ones.
    ///
    /// # Errors
    /// Why that address may not be dialled.
    pub fn dial(&self, address: IpAddr) -> Result<Dialable, Refusal> {
        let group = AddressGroup::of(address);
        let allowed = match &self.pinned {
            Some(addresses) if !addresses.contains(&address) => return Err(Refusal::NotPinned),
            Some(_) => group.may_be_pinned(),
            None => group == AddressGroup::Public,
        };
        if allowed {
            Ok(Dialable {
                address: SocketAddr::new(address, self.port),
                pinned: self.pinned.is_some(),
            })
        } else {
            Err(Refusal::Group(group))
        }
    }
}

impl Dialable {
    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the operator pinned this address to the host.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Judges where a connection really ended up.
    ///
    /// # Errors
    /// It is not where it was dialled to.
    pub fn confirm(&self, peer: SocketAddr) -> Result<(), Refusal> {
        match AddressGroup::of(peer.ip()) {
            group if !self.pinned && group != AddressGroup::Public => Err(Refusal::Group(group)),
            _ if peer.ip() != self.address.ip() || peer.port() != self.address.port() => {
                Err(Refusal::PeerMismatch)
            }
            _ => Ok(()),
        }
    }
}
