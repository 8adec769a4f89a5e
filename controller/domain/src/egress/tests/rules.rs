//! Rules and policies: what they cover, and what they say of it.

use super::*;

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
    fn t44_a_network_covers_what_arithmetic_says(base in any::<u32>(), prefix in 0u8..=32, other in any::<u32>()) {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let rule: EgressRule = format!("{}/{prefix}", Ipv4Addr::from(base & mask)).parse().unwrap();
        for candidate in [other, base, base ^ 1, (base & mask).wrapping_sub(1), base | !mask] {
            prop_assert_eq!(rule.covers_address(Ipv4Addr::from(candidate).into(), 443), candidate & mask == base & mask);
        }
    }
}
