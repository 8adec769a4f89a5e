//! Which controller, and with what token: `LAZARET_URL` and `LAZARET_TOKEN`, or the client file that
//! `lazaret up` writes. The file holds a secret, so one that others can read is refused.

use crate::failure::Failure;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The longest secret file that is read.
const MAX_FILE: u64 = 64 * 1024;

/// A controller's address and the token for it. It has no `Debug`: the token is a secret.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// The base URL.
    pub url: String,
    /// The bearer token.
    pub token: String,
}

/// What the environment says.
#[derive(Clone, Default)]
pub struct Environment {
    /// `LAZARET_URL`.
    pub url: Option<String>,
    /// `LAZARET_TOKEN`.
    pub token: Option<String>,
    /// `XDG_CONFIG_HOME`.
    pub config_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl Environment {
    /// The process' environment. Empty variables count as absent.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            url: text("LAZARET_URL"),
            token: text("LAZARET_TOKEN"),
            config_home: text("XDG_CONFIG_HOME").map(PathBuf::from),
            home: text("HOME").map(PathBuf::from),
        }
    }

    /// Where the client's files are.
    #[must_use]
    pub fn config_dir(&self) -> Option<PathBuf> {
        let base = self
            .config_home
            .clone()
            .or_else(|| self.home.as_ref().map(|home| home.join(".config")))?;
        base.is_absolute().then(|| base.join("lazaret"))
    }

    /// Where the client file is.
    #[must_use]
    pub fn client_file(&self) -> Option<PathBuf> {
        self.config_dir().map(|dir| dir.join("client.toml"))
    }

    /// The controller to use.
    ///
    /// # Errors
    /// Where neither the environment nor the client file names one, or the file is not private.
    pub fn endpoint(&self) -> Result<Endpoint, Failure> {
        if let (Some(url), Some(token)) = (&self.url, &self.token) {
            return Ok(Endpoint {
                url: url.clone(),
                token: token.clone(),
            });
        }
        let none = || {
            Failure::Usage(
                "no controller is known. Run 'lazaret up' first, or set LAZARET_URL and LAZARET_TOKEN.".into(),
            )
        };
        let file = self.client_file().ok_or_else(none)?;
        if !file.exists() {
            return Err(match (&self.url, &self.token) {
                (Some(_), None) => {
                    Failure::Usage("LAZARET_URL is set, but LAZARET_TOKEN is not.".into())
                }
                (None, Some(_)) => {
                    Failure::Usage("LAZARET_TOKEN is set, but LAZARET_URL is not.".into())
                }
                _ => none(),
            });
        }
        let mut endpoint = Endpoint::read(&file)?;
        // The file's token is for the file's controller: it goes to no other address.
        match (&self.url, &self.token) {
            (Some(url), None)
                if url.trim_end_matches('/') != endpoint.url.trim_end_matches('/') =>
            {
                return Err(Failure::Usage(format!(
                    "LAZARET_URL is {url}, but the token in {} is for {}. Set LAZARET_TOKEN too.",
                    file.display(),
                    endpoint.url
                )));
            }
            (None, Some(token)) => endpoint.token.clone_from(token),
            _ => {}
        }
        Ok(endpoint)
    }
}

/// Reads a file that holds a secret; one that is not a private file of ours is refused.
///
/// # Errors
/// Where it cannot be read, is no regular file, belongs to somebody else, or is open to others.
pub fn read_private(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?;
    let file = File::from(file);
    let meta = file
        .metadata()
        .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?;
    if !meta.is_file() {
        return Err(Failure::Usage(format!("{name} is not a regular file")));
    }
    let mode = meta.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Failure::Usage(format!(
            "{name} holds a secret and others can read it (mode {mode:04o}). Run: chmod 600 {name}"
        )));
    }
    let own = rustix::process::geteuid();
    if meta.uid() != own.as_raw() && !own.is_root() {
        return Err(Failure::Usage(format!(
            "{name} holds a secret and belongs to another user"
        )));
    }
    let mut text = String::new();
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?;
    Ok(text)
}

/// Writes a private file whole or not at all: mode 0600 from the first byte on.
///
/// # Errors
/// Where it cannot be written.
pub fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    let doing =
        |error: std::io::Error| Failure::doing(format!("cannot write {}", path.display()), error);
    let dir = path
        .parent()
        .ok_or_else(|| doing(ErrorKind::InvalidInput.into()))?;
    std::fs::create_dir_all(dir).map_err(doing)?;
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(doing)?;
    file.write_all(text.as_bytes()).map_err(doing)?;
    file.as_file().sync_all().map_err(doing)?;
    file.persist(path).map_err(|error| doing(error.error))?;
    Ok(())
}

impl Endpoint {
    /// Reads a client file.
    ///
    /// # Errors
    /// Where it cannot be read, is not private, or is out of form.
    pub fn read(file: &Path) -> Result<Self, Failure> {
        let text = read_private(file)?;
        // The parser's message would quote the line at fault, and with it the token.
        toml::from_str(&text).map_err(|_| {
            let form = "it has the lines url = \"…\" and token = \"…\"";
            Failure::Usage(format!("{} is not a client file: {form}", file.display()))
        })
    }

    /// Writes the client file.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self)
            .map_err(|error| Failure::doing("cannot write the client file", error))?;
        write_private(path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(dir: &Path) -> Environment {
        Environment {
            config_home: Some(dir.to_owned()),
            ..Environment::default()
        }
    }

    fn endpoint() -> Endpoint {
        Endpoint {
            url: "http://127.0.0.1:7717".into(),
            token: "lzr_secret".into(),
        }
    }

    #[test]
    fn the_file_is_written_private_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let env = environment(dir.path());
        let file = env.client_file().unwrap();
        endpoint().write(&file).unwrap();
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(env.endpoint().ok().unwrap().token, "lzr_secret");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_fix() {
        let dir = tempfile::tempdir().unwrap();
        let env = environment(dir.path());
        let file = env.client_file().unwrap();
        endpoint().write(&file).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o644] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            let failure = env.endpoint().err().unwrap();
            assert!(failure.to_string().contains("chmod 600"), "{failure}");
            assert_eq!(failure.exit(), crate::failure::Exit::Usage);
        }
    }

    #[test]
    fn the_environment_wins_and_half_of_it_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let mut env = environment(dir.path());
        assert!(
            env.endpoint()
                .err()
                .unwrap()
                .to_string()
                .contains("lazaret up")
        );
        env.url = Some("http://example.com".into());
        assert!(
            env.endpoint()
                .err()
                .unwrap()
                .to_string()
                .contains("LAZARET_TOKEN")
        );
        env.token = Some("t".into());
        assert_eq!(env.endpoint().ok().unwrap().url, "http://example.com");
    }

    #[test]
    fn the_files_token_goes_to_no_other_address() {
        let dir = tempfile::tempdir().unwrap();
        let mut env = environment(dir.path());
        endpoint().write(&env.client_file().unwrap()).unwrap();
        env.url = Some("http://evil.example".into());
        let failure = env.endpoint().err().unwrap().to_string();
        assert!(
            failure.contains("LAZARET_TOKEN") && !failure.contains("lzr_secret"),
            "{failure}"
        );
        env.url = Some("http://127.0.0.1:7717/".into());
        assert!(env.endpoint().is_ok());
    }

    #[test]
    fn a_malformed_file_is_named_and_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let env = environment(dir.path());
        let file = env.client_file().unwrap();
        write_private(&file, "url = \"x\"\ntoken = lzr_secret\n").unwrap();
        let failure = env.endpoint().err().unwrap().to_string();
        assert!(
            failure.contains("client.toml") && !failure.contains("lzr_secret"),
            "{failure}"
        );
    }
}
