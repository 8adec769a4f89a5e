//! The field cases that the policy alone can show. Those that need a network are in the gateway.

mod addresses;
mod names;
mod rules;

use super::*;
use crate::DenialCode;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn policy(rules: &[&str]) -> EgressPolicy {
    EgressPolicy {
        rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..EgressPolicy::default()
    }
}
