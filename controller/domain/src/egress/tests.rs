//! The field cases that the policy alone can show. Those that need a network are in the gateway.

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

/// One address of each group, and the ways to write metadata addresses.
const WITNESSES: &[(&str, AddressGroup)] = &[
    ("93.184.215.14", AddressGroup::Public),
    ("2606:4700::6810:84e5", AddressGroup::Public),
    ("::ffff:93.184.215.14", AddressGroup::Public),
    ("64:ff9b::5db8:d70e", AddressGroup::Public),
    ("169.254.169.254", AddressGroup::Metadata),
    ("100.100.100.200", AddressGroup::Metadata),
    ("192.0.0.192", AddressGroup::Metadata),
    ("168.63.129.16", AddressGroup::Metadata),
    ("fd00:ec2::254", AddressGroup::Metadata),
    ("::ffff:a9fe:a9fe", AddressGroup::Metadata),
    ("::169.254.169.254", AddressGroup::Metadata),
    ("::ffff:0:a9fe:a9fe", AddressGroup::Metadata),
    ("64:ff9b::a9fe:a9fe", AddressGroup::Metadata),
    ("64:ff9b:1::a9fe:a9fe", AddressGroup::Metadata),
    ("64:ff9b:1:a9fe:a9:fe00::", AddressGroup::Metadata),
    ("2002:a9fe:a9fe::", AddressGroup::Metadata),
    ("2001:0:5db8:d70e:0:0:5601:5601", AddressGroup::Metadata),
    ("2606:4700::5efe:a9fe:a9fe", AddressGroup::Metadata),
    ("127.0.0.1", AddressGroup::Loopback),
    ("127.255.255.254", AddressGroup::Loopback),
    ("::1", AddressGroup::Loopback),
    ("::ffff:127.0.0.1", AddressGroup::Loopback),
    ("10.0.0.1", AddressGroup::Private),
    ("172.16.0.1", AddressGroup::Private),
    ("172.31.255.255", AddressGroup::Private),
    ("192.168.1.1", AddressGroup::Private),
    ("fec0::1", AddressGroup::Private),
    ("2002:c0a8:101::1", AddressGroup::Private),
    ("fc00::1", AddressGroup::UniqueLocal),
    ("fdff::1", AddressGroup::UniqueLocal),
    ("169.254.0.1", AddressGroup::LinkLocal),
    ("fe80::1", AddressGroup::LinkLocal),
    ("100.64.0.1", AddressGroup::SharedNat),
    ("100.127.255.255", AddressGroup::SharedNat),
    ("224.0.0.1", AddressGroup::Multicast),
    ("ff02::1", AddressGroup::Multicast),
    ("0.0.0.0", AddressGroup::Unspecified),
    ("0.1.2.3", AddressGroup::Unspecified),
    ("::", AddressGroup::Unspecified),
    ("198.18.0.1", AddressGroup::Synthetic),
    ("198.19.255.1", AddressGroup::Synthetic),
    ("2001:2::1", AddressGroup::Synthetic),
    ("192.0.2.1", AddressGroup::Documentation),
    ("198.51.100.1", AddressGroup::Documentation),
    ("203.0.113.1", AddressGroup::Documentation),
    ("2001:db8::1", AddressGroup::Documentation),
    ("3fff::1", AddressGroup::Documentation),
    ("240.0.0.1", AddressGroup::Reserved),
    ("255.255.255.255", AddressGroup::Reserved),
    ("192.0.0.1", AddressGroup::Reserved),
    ("100::1", AddressGroup::Reserved),
    ("5f00::1", AddressGroup::Reserved),
    ("2002:5db8:d70e::", AddressGroup::Reserved),
    ("64:ff9b:1::5db8:d70e", AddressGroup::Reserved),
];

#[test]
fn every_address_group_has_a_witness() {
    for (text, group) in WITNESSES {
        assert_eq!(AddressGroup::of(address(text)), *group, "{text}");
    }
    for group in AddressGroup::ALL {
        assert!(
            WITNESSES.iter().any(|(_, witness)| *witness == group),
            "no witness for {group:?}"
        );
    }
}

#[test]
fn t39_metadata_and_private_addresses_are_refused_in_every_spelling() {
    let open = EgressPolicy {
        open: true,
        ..policy(&["0.0.0.0/0", "::/0"])
    };
    let host = name("innocent.example.com");
    for (text, group) in WITNESSES
        .iter()
        .filter(|(_, group)| *group != AddressGroup::Public)
    {
        let address = address(text);
        let permit = open.permit(&host, 443).unwrap();
        assert_eq!(
            permit.dial(address),
            Err(Refusal::Group(*group)),
            "{text} after resolution"
        );
        assert!(
            matches!(
                open.verdict_on_resolved(&host, 443, address),
                Verdict::Deny { .. }
            ),
            "{text} as a verdict"
        );
        assert_eq!(
            open.permit_address(address, 443),
            Err(Refusal::Group(*group)),
            "{text} as a raw address"
        );
        let public = permit.dial("93.184.215.14".parse().unwrap()).unwrap();
        assert_eq!(
            public.confirm(SocketAddr::new(address, 443)),
            Err(Refusal::Group(*group)),
            "{text} at connect"
        );
        assert!(!open.explain(text).allowed, "{text} explained");
    }
    for text in [
        "2852039166",
        "0xA9FEA9FE",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "0xa9.0xfe.0xa9.0xfe",
        "169.254.43518",
        "127.1",
        "1.1.1.1",
        "0x",
        "a.0x",
        "example.123",
    ] {
        assert!(
            text.parse::<DomainName>().is_err(),
            "{text} is no host name"
        );
        assert!(
            !open.explain(text).allowed || text == "1.1.1.1",
            "{text} explained"
        );
    }
}

#[test]
fn t37_a_name_that_can_be_read_in_two_ways_is_refused_before_matching() {
    let long = format!("{}.example.com", "a.".repeat(125));
    let hostile = [
        "attacker\0.example.com",
        "attacker%00.example.com",
        "a%2eexample.com",
        "a\r\n.example.com",
        "a\n.example.com",
        "a b.example.com",
        "example.com.",
        "example.com..",
        ".example.com",
        "a..example.com",
        "a_b.example.com",
        "user@example.com",
        "user:pw@example.com",
        "https://example.com",
        "example.com/",
        "example.com\\",
        "example.com#",
        "example.com?",
        "[::1]",
        "::1",
        "*.example.com",
        "-a.example.com",
        "a-.example.com",
        "",
        ".",
        "*",
        &long,
        "xn--a.example.com",
        "example.com\u{3002}",
        "a\u{fffd}.example.com",
        "\u{202e}moc.elpmaxe",
    ];
    let allow_all = EgressPolicy {
        open: true,
        ..policy(&["*.example.com", "example.com"])
    };
    for text in hostile {
        assert_eq!(
            text.parse::<DomainName>().unwrap_err().code,
            DenialCode::InvalidEgress,
            "{text:?}"
        );
        assert!(!allow_all.explain(text).allowed, "{text:?} explained");
    }
    let label = format!("{}.example.com", "a".repeat(64));
    assert!(label.parse::<DomainName>().is_err(), "a label over 63");
}

#[test]
fn t37_spellings_of_one_name_are_one_value() {
    for text in [
        "EXAMPLE.com",
        "Example.Com",
        "example\u{3002}com",
        "\u{ff45}xample.com",
    ] {
        assert_eq!(name(text).as_str(), "example.com", "{text}");
    }
    assert_eq!(
        name("b\u{fc}cher.example").as_str(),
        "xn--bcher-kva.example"
    );
    assert_eq!(name("B\u{dc}CHER.example"), name("xn--bcher-kva.example"));
    assert_eq!(
        name("r3---sn-abc.googlevideo.com").as_str(),
        "r3---sn-abc.googlevideo.com"
    );
    // A look-alike stays another name.
    assert_ne!(name("ex\u{430}mple.com"), name("example.com"));
}

#[test]
fn a_wildcard_covers_subdomains_only_and_on_label_boundaries() {
    let rule: EgressRule = "*.example.com".parse().unwrap();
    assert!(rule.covers_name(&name("a.example.com")) && rule.covers_name(&name("a.b.example.com")));
    assert!(!rule.covers_name(&name("example.com")));
    assert!(!rule.covers_name(&name("notexample.com")));
    assert!(!rule.covers_name(&name("example.com.attacker.net")));
}

#[test]
fn rules_are_kept_in_canonical_form_and_refused_when_ambiguous() {
    for (text, canonical) in [
        ("Example.com", "example.com"),
        ("*.Example.com:8443", "*.example.com:8443"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("2001:DB8::/32:443", "2001:db8::/32:443"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("255.255.255.255/32:1", "255.255.255.255/32:1"),
    ] {
        let rule: EgressRule = text.parse().unwrap();
        assert_eq!(rule.as_str(), canonical);
        assert_eq!(serde_json::to_value(&rule).unwrap(), canonical);
        assert_eq!(
            serde_json::from_value::<EgressRule>(canonical.into()).unwrap(),
            rule
        );
    }
    for text in [
        "",
        "*",
        "*.com",
        "*.",
        "a.*.com",
        "**.example.com",
        "example.com:0",
        "example.com:65536",
        "example.com:+1",
        "example.com:080",
        "example.com:443:443",
        "example.com:",
        ":443",
        "https://example.com",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/",
        "/8",
        "10.0.0.0/08",
        "010.0.0.0/8",
        "10.0.0/8",
        "2001:db8::1/32",
        "1.2.3.4",
        "::1",
        "2852039166",
        "example.com/24",
        "10.0.0.0/8:0",
        "ex ample.com",
        "example.com,evil.net",
    ] {
        assert_eq!(
            text.parse::<EgressRule>().unwrap_err().code,
            DenialCode::InvalidEgress,
            "{text:?}"
        );
    }
}

#[test]
fn t44_networks_are_applied_exactly() {
    let covers = |rule: &str, text: &str| {
        rule.parse::<EgressRule>()
            .unwrap()
            .covers_address(address(text), 443)
    };
    assert!(
        covers("255.255.255.0/24", "255.255.255.255")
            && covers("255.255.255.0/24", "255.255.255.0")
    );
    assert!(!covers("255.255.255.0/24", "255.255.254.255"));
    assert!(covers("0.0.0.0/0", "0.0.0.0") && covers("0.0.0.0/0", "255.255.255.255"));
    assert!(
        !covers("0.0.0.0/0", "::1"),
        "an IPv4 network says nothing about IPv6"
    );
    assert!(
        covers("8.8.8.8/32", "8.8.8.8")
            && !covers("8.8.8.8/32", "8.8.8.9")
            && !covers("8.8.8.8/32", "8.8.8.7")
    );
    assert!(
        covers("2606:4700::/32", "2606:4700:ffff:ffff:ffff:ffff:ffff:ffff")
            && !covers("2606:4700::/32", "2606:4701::")
    );
    assert!(covers("::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
    let overlapping = policy(&["8.8.8.0/24:53", "8.8.0.0/16", "8.0.0.0/8:53"]);
    assert_eq!(
        overlapping
            .permit_address(address("8.8.8.8"), 53)
            .unwrap()
            .1,
        "8.8.8.0/24:53"
    );
    assert_eq!(
        overlapping
            .permit_address(address("8.8.8.8"), 443)
            .unwrap()
            .1,
        "8.8.0.0/16"
    );
    assert_eq!(
        overlapping.permit_address(address("8.9.0.1"), 443),
        Err(Refusal::NoRuleForAddress)
    );
    assert_eq!(
        overlapping
            .permit_address(address("8.9.0.1"), 53)
            .unwrap()
            .1,
        "8.0.0.0/8:53"
    );
}

#[test]
fn t44_a_policy_that_cannot_be_read_is_an_error_and_never_allows() {
    for text in [
        r#"{"rules":["10.0.0.0/33"]}"#,
        r#"{"rules":["a b"]}"#,
        r#"{"rules":null}"#,
        r#"{"open":"yes"}"#,
        r#"{"opne":true}"#,
        r#"{"rules":["example.com"],"extra":1}"#,
        r#"{"pinned":[{"host":"example.com","addresses":["999.1.1.1"]}]}"#,
        r#"{"pinned":[{"host":"1.2.3.4","addresses":[]}]}"#,
        "[1]",
        "",
    ] {
        assert!(
            serde_json::from_str::<EgressPolicy>(text).is_err(),
            "{text}"
        );
    }
}

#[test]
fn t45_an_empty_policy_denies_everything_and_removing_the_last_host_opens_nothing() {
    let mut sealed = policy(&["example.com"]);
    assert!(sealed.permit(&name("example.com"), 443).is_ok());
    sealed.rules.clear();
    for policy in [
        sealed,
        EgressPolicy::default(),
        serde_json::from_str("{}").unwrap(),
    ] {
        assert!(policy.is_sealed());
        assert_eq!(
            policy.permit(&name("example.com"), 443),
            Err(Refusal::Sealed)
        );
        assert_eq!(
            policy.permit_name(&name("example.com")),
            Err(Refusal::Sealed)
        );
        assert_eq!(
            policy.permit_address(address("93.184.215.14"), 443),
            Err(Refusal::Sealed)
        );
    }
}

#[test]
fn the_first_matching_rule_is_the_one_that_is_named() {
    let policy = policy(&[
        "*.example.com:8443",
        "*.example.com",
        "a.example.com",
        "db.example.net:5432",
    ]);
    assert_eq!(
        policy.permit(&name("a.example.com"), 443).unwrap().rule(),
        "*.example.com"
    );
    assert_eq!(
        policy.permit(&name("a.example.com"), 8443).unwrap().rule(),
        "*.example.com:8443"
    );
    assert_eq!(
        policy.permit(&name("db.example.net"), 443),
        Err(Refusal::NoRule)
    );
    assert_eq!(
        policy.permit_name(&name("db.example.net")).unwrap(),
        "db.example.net:5432"
    );
    assert_eq!(
        policy.permit(&name("a.example.com"), 22),
        Err(Refusal::NoRule)
    );
}

#[test]
fn open_means_public_hosts_on_443_and_80() {
    let open = EgressPolicy {
        open: true,
        ..EgressPolicy::default()
    };
    let host = name("anything.example.org");
    assert!(
        open.permit(&host, 443)
            .unwrap()
            .dial(address("93.184.215.14"))
            .is_ok()
    );
    assert!(open.permit(&host, 80).is_ok());
    assert_eq!(open.permit(&host, 22), Err(Refusal::NoRule));
    assert_eq!(
        open.permit(&host, 443).unwrap().dial(address("10.0.0.1")),
        Err(Refusal::Group(AddressGroup::Private))
    );
    assert_eq!(
        open.permit_address(address("93.184.215.14"), 443),
        Err(Refusal::NoRuleForAddress)
    );
}

#[test]
fn a_pin_leads_to_its_addresses_only_and_allows_nothing_by_itself() {
    let pin = Pinned {
        host: name("mirror.internal"),
        addresses: vec![address("10.1.2.3"), address("169.254.169.254")],
    };
    let policy = EgressPolicy {
        pinned: vec![pin.clone()],
        ..policy(&["mirror.internal:8081", "other.internal:8081"])
    };
    let permit = policy.permit(&name("mirror.internal"), 8081).unwrap();
    let dialable = permit.dial(address("10.1.2.3")).unwrap();
    assert!(dialable.confirm("10.1.2.3:8081".parse().unwrap()).is_ok());
    assert_eq!(
        dialable.confirm("10.1.2.4:8081".parse().unwrap()),
        Err(Refusal::PeerMismatch)
    );
    assert_eq!(
        permit.dial(address("93.184.215.14")),
        Err(Refusal::NotPinned)
    );
    assert_eq!(
        permit.dial(address("169.254.169.254")),
        Err(Refusal::Group(AddressGroup::Metadata))
    );
    let other = policy.permit(&name("other.internal"), 8081).unwrap();
    assert_eq!(
        other.dial(address("10.1.2.3")),
        Err(Refusal::Group(AddressGroup::Private))
    );
    assert_eq!(
        policy.check().unwrap_err().code,
        DenialCode::InvalidEgress,
        "metadata can't be pinned"
    );
    let alone = EgressPolicy {
        pinned: vec![pin],
        ..EgressPolicy::default()
    };
    assert_eq!(
        alone.permit(&name("mirror.internal"), 443),
        Err(Refusal::Sealed)
    );
}

#[test]
fn explanations_read_alone() {
    let policy = EgressPolicy {
        pinned: vec![Pinned {
            host: name("mirror.internal"),
            addresses: vec![address("10.1.2.3")],
        }],
        ..policy(&["pypi.org", "mirror.internal:8081", "8.8.8.0/24"])
    };
    let reason = |destination: &str| policy.explain(destination).reason;
    assert_eq!(
        reason("PyPI.org"),
        "allowed by pypi.org, if it resolves to a public address"
    );
    assert_eq!(
        reason("mirror.internal:8081"),
        "allowed by mirror.internal:8081, at the addresses it is pinned to"
    );
    assert_eq!(reason("pypi.org:22"), "no rule allows this host and port");
    assert_eq!(reason("8.8.8.8"), "allowed by 8.8.8.0/24");
    assert_eq!(reason("10.0.0.1:80"), "no rule allows this address");
    assert_eq!(policy.explain("[::1]:80").port, Some(80));
    assert_eq!(
        EgressPolicy::default().explain("pypi.org").reason,
        "the sandbox is sealed"
    );
}

proptest! {
    #[test]
    fn t37_no_text_becomes_a_name_that_is_not_canonical(text in "\\PC{0,60}") {
        if let Ok(name) = text.parse::<DomainName>() {
            prop_assert!(name.as_str().len() <= 253);
            prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
            prop_assert!(name.as_str().parse::<IpAddr>().is_err());
            prop_assert_eq!(name.as_str().parse::<DomainName>().unwrap(), name);
        }
    }

    #[test]
    fn t39_an_ipv4_address_is_judged_alike_however_it_is_wrapped(bits in any::<u32>()) {
        let plain = AddressGroup::of(Ipv4Addr::from(bits).into());
        let bits = u128::from(bits);
        for (wrapped, exact) in [
            (bits | (0xffff_u128 << 32), true), (bits | (0xffff_u128 << 48), true), (bits | (0x0064_ff9b_u128 << 96), true),
            (bits | (0x0064_ff9b_0001_u128 << 80), false), ((0x2002_u128 << 112) | (bits << 80), false),
            ((0x2001_u128 << 112) | (u128::from(!u32::try_from(bits).unwrap_or(0))), false),
        ] {
            let group = AddressGroup::of(Ipv6Addr::from(wrapped).into());
            prop_assert!(if exact { group == plain } else { group != AddressGroup::Public }, "{}", Ipv6Addr::from(wrapped));
        }
    }

    #[test]
    fn t44_a_network_covers_what_arithmetic_says(base in any::<u32>(), prefix in 0u8..=32, other in any::<u32>()) {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let rule: EgressRule = format!("{}/{prefix}", Ipv4Addr::from(base & mask)).parse().unwrap();
        for candidate in [other, base, base ^ 1, (base & mask).wrapping_sub(1), base | !mask] {
            prop_assert_eq!(rule.covers_address(Ipv4Addr::from(candidate).into(), 443), candidate & mask == base & mask);
        }
    }

    #[test]
    fn no_address_outside_the_public_group_is_ever_dialable_without_a_pin(bits in any::<u128>(), short in any::<u32>()) {
        let policy = EgressPolicy { open: true, ..policy(&["0.0.0.0/0", "::/0"]) };
        let permit = policy.permit(&name("example.com"), 443).unwrap();
        for address in [IpAddr::from(Ipv6Addr::from(bits)), IpAddr::from(Ipv4Addr::from(short))] {
            let public = AddressGroup::of(address) == AddressGroup::Public;
            prop_assert_eq!(permit.dial(address).is_ok(), public);
            prop_assert_eq!(policy.permit_address(address, 443).is_ok(), public);
        }
    }
}
