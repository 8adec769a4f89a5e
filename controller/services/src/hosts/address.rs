//! A host's address as an operator writes it, and the key that is pinned for it.

use crate::ports::host_link::HostAddress;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use lazaret_domain::{Denial, DenialCode, HostName};
use std::net::Ipv6Addr;

const SSH_PORT: &str = "22";

/// Reads `user@host[:port]` (an IPv6 address in brackets) and `SHA256:…`.
pub(crate) fn parse(address: &str, host_key: &str) -> Result<HostAddress, Denial> {
    let refuse = |why: &str| {
        Denial::new(
            DenialCode::InvalidRequest,
            format!("a host's address {why}"),
        )
        .at("address")
    };
    let (user, place) = address
        .split_once('@')
        .ok_or_else(|| refuse("is user@host or user@host:port"))?;
    let word = |text: &str, extra: &[u8]| {
        !text.is_empty()
            && !text.starts_with('-')
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
    };
    if user.len() > 32 || !word(user, b"_-.") {
        return Err(refuse(
            "has an account of at most 32 letters, digits, '_', '-' and '.'",
        ));
    }
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest
                .split_once(']')
                .ok_or_else(|| refuse("closes its bracket"))?;
            inside
                .parse::<Ipv6Addr>()
                .map_err(|_| refuse("has an IPv6 address in its brackets"))?;
            (
                inside,
                after
                    .strip_prefix(':')
                    .or(after.is_empty().then_some(SSH_PORT)),
            )
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some(SSH_PORT)),
        },
    };
    if !place.starts_with('[') && (host.len() > 253 || !word(host, b"-.")) {
        return Err(refuse("has a host name or an address"));
    }
    let port = port
        .and_then(|port| port.parse::<u16>().ok())
        .filter(|port| *port > 0);
    let port = port.ok_or_else(|| refuse("has a port from 1 to 65535"))?;
    let digest = host_key
        .strip_prefix("SHA256:")
        .and_then(|text| STANDARD_NO_PAD.decode(text).ok());
    if digest.is_none_or(|digest| digest.len() != 32) {
        let why = "a host key is 'SHA256:' and 43 characters, as ssh-keygen -lf prints it";
        return Err(Denial::new(DenialCode::InvalidRequest, why).at("host_key"));
    }
    Ok(HostAddress {
        user: user.to_owned(),
        host: host.to_owned(),
        port,
        host_key: host_key.to_owned(),
    })
}

/// A name for a host that got none: its address with what a name cannot hold made a dash.
pub(crate) fn name_for(host: &str) -> Result<HostName, Denial> {
    let lower = host.to_ascii_lowercase();
    let dashed: String = lower
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(63)
        .collect();
    dashed
        .trim_matches('-')
        .parse()
        .map_err(|denial: Denial| denial.at("name"))
}

/// The host as it stands before a port.
pub(crate) fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";

    #[test]
    fn an_address_is_user_host_and_perhaps_a_port() {
        let place = parse("lazaret@box-1.example.org", KEY).unwrap();
        assert_eq!(
            (place.user.as_str(), place.host.as_str(), place.port),
            ("lazaret", "box-1.example.org", 22)
        );
        assert_eq!(parse("a@127.0.0.1:2222", KEY).unwrap().port, 2222);
        let v6 = parse("a@[::1]:2222", KEY).unwrap();
        assert_eq!((bracketed(&v6.host).as_str(), v6.port), ("[::1]", 2222));
        assert_eq!(parse("a@[::1]", KEY).unwrap().port, 22);
        for text in [
            "",
            "host",
            "@host",
            "a@",
            "a@h:0",
            "a@h:65536",
            "a@h:x",
            "a@-oProxyCommand=x",
            "-l@h",
            "a b@h",
            "a@h h",
            "a@[::1",
            "a@[x]:1",
            "a@h\n",
            "a@[::1]x",
            "a@::1",
        ] {
            assert_eq!(
                parse(text, KEY).unwrap_err().field.as_deref(),
                Some("address"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_host_key_is_a_whole_sha256_fingerprint() {
        for text in [
            "",
            "SHA256:",
            "MD5:aa",
            &KEY[..KEY.len() - 1],
            &format!("{KEY}="),
        ] {
            assert_eq!(
                parse("a@h", text).unwrap_err().field.as_deref(),
                Some("host_key"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_host_without_a_name_is_called_after_its_address() {
        assert_eq!(
            name_for("Box.example.org").unwrap().as_str(),
            "box-example-org"
        );
        assert_eq!(name_for("127.0.0.1").unwrap().as_str(), "127-0-0-1");
    }
}
