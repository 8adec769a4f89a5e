//! The forced command: all that the controller's key can do on a host.
//!
//! `authorized_keys` holds `restrict,command="lazaret host gate --state DIR" ssh-ed25519 …`. What
//! the client asked for arrives as text and is compared whole with two words; it is never split,
//! expanded or passed on.

use std::process::ExitCode;

/// What may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The host API.
    Session,
    /// The gateways' way to the controller.
    Uplink,
}

/// The door that the client's command names, if it is exactly one of them.
#[must_use]
pub fn chosen(original: Option<&str>) -> Option<Door> {
    match original {
        Some("session") => Some(Door::Session),
        Some("uplink") => Some(Door::Uplink),
        _ => None,
    }
}

/// Says no on standard error, with the status shells use for "cannot execute".
pub(crate) fn refuse() -> ExitCode {
    let _ = std::io::Write::write_all(
        &mut std::io::stderr(),
        b"lazaret: this key opens \"session\" and \"uplink\" on this host and nothing else\n",
    );
    ExitCode::from(126)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_opens_two_doors_and_nothing_else() {
        assert_eq!(chosen(Some("session")), Some(Door::Session));
        assert_eq!(chosen(Some("uplink")), Some(Door::Uplink));
        for hostile in [
            "",
            "session ",
            " session",
            "session; id",
            "sh",
            "host session",
            "SESSION",
            "session\n",
            "$(id)",
        ] {
            assert_eq!(chosen(Some(hostile)), None, "{hostile:?}");
        }
        assert_eq!(chosen(None), None);
    }
}
