//! The two keys of a connection: the pinned key of the host, and the controller's own.

use lazaret_domain::{Denial, DenialCode};
use russh::keys::ssh_key::Fingerprint;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey, PublicKeyOrCertificate};
use std::fmt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// The fingerprint of the one key a host may present, `SHA256:…`. There is no value of this type
/// that stands for "any key" or "the first key seen".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostKeyPin(Fingerprint);

impl HostKeyPin {
    /// Whether the presented key is the pinned one. A certificate never is: the pin names a key.
    #[must_use]
    pub fn admits(&self, presented: &PublicKeyOrCertificate) -> bool {
        match presented {
            PublicKeyOrCertificate::PublicKey { key, .. } => Self::of(key) == *self,
            PublicKeyOrCertificate::Certificate(_) => false,
        }
    }

    /// The pin that admits just this key.
    #[must_use]
    pub fn of(key: &PublicKey) -> Self {
        Self(key.fingerprint(HashAlg::Sha256))
    }
}

impl FromStr for HostKeyPin {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        match text.parse::<Fingerprint>() {
            Ok(fingerprint) if fingerprint.is_sha256() => Ok(Self(fingerprint)),
            _ => Err(Denial::new(
                DenialCode::HostKeyMismatch,
                "a pinned host key is written SHA256: and 43 characters of base64; `ssh-keygen -lf` on the host's public \
                 key shows it",
            )
            .at("host_key")),
        }
    }
}

impl fmt::Display for HostKeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The controller's private key. `Debug` shows the public half's fingerprint only.
#[derive(Clone)]
pub struct ClientKey(Arc<PrivateKey>);

impl ClientKey {
    /// Reads an unencrypted ed25519 key in OpenSSH's format from a file that only its owner can
    /// read.
    ///
    /// # Errors
    /// The file is missing, readable by others, belongs to someone else, or holds another kind of
    /// key. No part of its content appears in the message.
    pub fn load(path: &Path) -> Result<Self, Denial> {
        let refuse = |why: String| {
            Denial::new(
                DenialCode::HostRefused,
                format!("the SSH key {} cannot be used: {why}", path.display()),
            )
        };
        let file = std::fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
        // The open file is examined, not the path: what is read below is what was checked.
        let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a regular file".to_owned()));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(refuse(format!(
                "its mode is {mode:04o}; others must not read it: chmod 600 it"
            )));
        }
        if metadata.len() > 16 * 1024 {
            return Err(refuse("it is too large to be an ed25519 key".to_owned()));
        }
        let owner = metadata.uid();
        let text = std::io::read_to_string(file)
            .map_err(|error| refuse(format!("{error} (owner uid {owner})")))?;
        let key = PrivateKey::from_openssh(&text)
            .map_err(|_| refuse("it is not a private key in OpenSSH's format".to_owned()))?;
        if key.is_encrypted() {
            return Err(refuse("it is encrypted with a passphrase".to_owned()));
        }
        if key.algorithm() != Algorithm::Ed25519 {
            return Err(refuse(format!(
                "it is a {} key; ed25519 is required",
                key.algorithm()
            )));
        }
        Ok(Self(Arc::new(key)))
    }

    pub(crate) fn private(&self) -> Arc<PrivateKey> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientKey")
            .field(&self.0.fingerprint(HashAlg::Sha256).to_string())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn keygen(dir: &Path, kind: &str, passphrase: &str) -> std::path::PathBuf {
        let path = dir.join(kind);
        let done = Command::new("ssh-keygen")
            .args(["-q", "-t", kind, "-N", passphrase, "-f"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(done.success());
        path
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = keygen(dir.path(), "ed25519", "");
        assert!(ClientKey::load(&path).is_ok());
        for mode in [0o640, 0o604, 0o660, 0o644, 0o610] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                ClientKey::load(&path).unwrap_err().code,
                DenialCode::HostRefused,
                "{mode:o}"
            );
        }
    }

    #[test]
    fn only_an_ed25519_key_without_passphrase_is_used_and_its_text_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ClientKey::load(&keygen(dir.path(), "ecdsa", "")).is_err());
        assert!(ClientKey::load(&keygen(dir.path(), "ed25519", "secret phrase")).is_err());
        assert!(ClientKey::load(&dir.path().join("missing")).is_err());
        let garbage = dir.path().join("garbage");
        std::fs::write(&garbage, "PLANTED-SECRET").unwrap();
        std::fs::set_permissions(&garbage, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(
            !ClientKey::load(&garbage)
                .unwrap_err()
                .message
                .contains("PLANTED")
        );
    }

    #[test]
    fn a_pin_is_one_sha256_fingerprint_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let key = ClientKey::load(&keygen(dir.path(), "ed25519", "")).unwrap();
        let pin = HostKeyPin::of(key.private().public_key());
        assert_eq!(pin.to_string().parse::<HostKeyPin>().unwrap(), pin);
        for text in [
            "",
            "*",
            "any",
            "SHA256:",
            "SHA256:abc",
            "MD5:aa:bb",
            "SHA512:abc",
            " SHA256:x",
        ] {
            assert_eq!(
                text.parse::<HostKeyPin>().unwrap_err().code,
                DenialCode::HostKeyMismatch,
                "{text:?}"
            );
        }
    }
}
