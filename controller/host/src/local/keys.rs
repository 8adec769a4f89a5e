//! The host key and the controller's key.

use super::LocalError;
use super::tool::SSH_KEYGEN;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::path::Path;

/// The public half of a key.
pub(super) struct PublicKey {
    /// `ssh-ed25519` and the key in base64, without a comment.
    pub(super) line: String,
    /// `SHA256:…`
    pub(super) fingerprint: String,
}

/// Reads the public half of a key, which is made if it is missing.
pub(super) async fn ensure(private: &Path) -> Result<PublicKey, LocalError> {
    if !private.exists() {
        let args = ["-q", "-t", "ed25519", "-N", "", "-C", "lazaret", "-f"].map(OsStr::new);
        SSH_KEYGEN
            .run(args.into_iter().chain([private.as_os_str()]))
            .await?;
    }
    // Derived from the private half: a `.pub` file beside it could be another key's.
    let said = SSH_KEYGEN
        .run([OsStr::new("-y"), OsStr::new("-f"), private.as_os_str()])
        .await?;
    public_key(&said.stdout).ok_or_else(|| LocalError::path(private, "it is not an ed25519 key"))
}

fn public_key(text: &str) -> Option<PublicKey> {
    let mut words = text.split_whitespace();
    let (kind, encoded) = (words.next()?, words.next()?);
    let blob = STANDARD.decode(encoded).ok()?;
    (kind == "ssh-ed25519").then(|| PublicKey {
        line: format!("{kind} {encoded}"),
        fingerprint: format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_fingerprint_is_the_one_ssh_keygen_shows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = ensure(&path).await.unwrap();
        let shown = SSH_KEYGEN
            .run([OsStr::new("-l"), OsStr::new("-f"), path.as_os_str()])
            .await
            .unwrap();
        assert_eq!(
            shown.stdout.split_whitespace().nth(1),
            Some(key.fingerprint.as_str())
        );
        assert_eq!(
            ensure(&path).await.unwrap().line,
            key.line,
            "a key that is there is kept"
        );
    }
}
