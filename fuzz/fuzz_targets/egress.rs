//! Whatever text is asked about, an answer comes, and a name that parses is canonical.
#![no_main]

use lazaret_domain::egress::{DomainName, EgressPolicy, EgressRule};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let open = EgressPolicy {
        open: true,
        rules: text.parse::<EgressRule>().into_iter().collect(),
        ..EgressPolicy::default()
    };
    open.explain(text);
    if let Ok(name) = text.parse::<DomainName>() {
        assert_eq!(name.as_str().parse::<DomainName>().as_ref(), Ok(&name));
    }
});
