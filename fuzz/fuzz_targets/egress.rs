//! Whatever a policy is made of and whatever is asked of it: a rule reads back as it is written, a
//! name is one that no URL parser takes for an address, nothing but a rule (or `open`) allows, and
//! what is not public is never dialled.
//!
//! Input: a line of rules with spaces between them, `open` among them or not; then a destination a
//! line.
#![no_main]

use lazaret_domain::egress::{AddressGroup, DomainName, EgressPolicy, EgressRule};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use url::Host;

/// What a name could resolve to that nobody may reach.
const INSIDE: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V6(Ipv4Addr::new(192, 168, 0, 1).to_ipv6_mapped()),
];

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let rules: Vec<EgressRule> = words.iter().filter_map(|word| word.parse().ok()).collect();
    for rule in &rules {
        assert_eq!(rule.as_str().parse().as_ref(), Ok(rule));
    }
    let policy = EgressPolicy {
        rules,
        open: words.contains(&"open"),
        ..EgressPolicy::default()
    };
    policy.check().expect("nothing pinned, few rules");
    for destination in lines {
        judge(&policy, destination);
    }
});

fn judge(policy: &EgressPolicy, destination: &str) {
    assert!(!EgressPolicy::default().explain(destination).allowed);
    let answer = policy.explain(destination);
    assert_eq!(answer.allowed, answer.rule.is_some());
    if let Some(rule) = &answer.rule {
        let by_itself = EgressPolicy {
            rules: rule.parse().into_iter().collect(),
            open: rule == "open" && policy.open,
            ..EgressPolicy::default()
        };
        assert!(by_itself.explain(destination).allowed, "not by {rule}");
    }
    let address = destination
        .parse()
        .or_else(|_| destination.parse().map(|to: SocketAddr| to.ip()));
    if let Ok(address) = address {
        assert!(!answer.allowed || AddressGroup::of(address) == AddressGroup::Public);
    }
    if let Ok(name) = destination.parse::<DomainName>() {
        assert_eq!(name.as_str().parse::<DomainName>().as_ref(), Ok(&name));
        let read = Host::parse(name.as_str());
        assert_eq!(read, Ok(Host::Domain(name.as_str().to_owned())));
        for port in [443, 80, 22] {
            if let Ok(permit) = policy.permit(&name, port) {
                assert!(INSIDE.iter().all(|inside| permit.dial(*inside).is_err()));
            }
        }
    }
}
