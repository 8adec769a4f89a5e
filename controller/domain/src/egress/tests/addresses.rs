//! Which addresses are reached, in whatever spelling they come.

use super::*;

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

proptest! {
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
