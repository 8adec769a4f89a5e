//! Names: one spelling each, or none.

use super::*;

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
}
