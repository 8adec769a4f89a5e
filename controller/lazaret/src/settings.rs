//! The settings: `lazaret.toml`, each key also as `LAZARET_SECTION_KEY` in the environment, which
//! wins. A key that is unknown or malformed refuses to start and names itself; nothing is ignored.
//!
//! Secrets are never in here: keys name files, and those files must be private (mode 0600).

mod keys;
mod value;

use crate::failure::Failure;
use ipnet::IpNet;
use keys::KEYS;
use lazaret_domain::Span;
use lazaret_services::ServicesSettings;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Value;

/// Environment variables with our prefix that are no settings.
const NOT_SETTINGS: &[&str] = &["LAZARET_URL", "LAZARET_TOKEN", "LAZARET_LOG", "LAZARET_BIN"];
/// Prefixes of environment variables of the build and the tests.
const NOT_OURS: &[&str] = &["LAZARET_TEST_", "LAZARET_BENCH_", "LAZARET_BUILD_"];

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// All settings, with their defaults filled in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the controller listens.
    pub listen: SocketAddr,
    /// The URL under which callers reach it; derived from `listen` where absent.
    pub public_url: Option<String>,
    /// Proxies whose forwarded headers are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How long an orderly stop may take.
    pub stop_grace: Span,
    /// The file of the SQLite database.
    pub store: PathBuf,
    /// The file of the key with which the controller logs in on hosts.
    pub ssh_key: PathBuf,
    /// What the use cases need to know.
    pub services: ServicesSettings,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Which log lines are written, in the syntax of `RUST_LOG`.
    pub log_filter: String,
}

impl Settings {
    /// The defaults, for files in this directory.
    #[must_use]
    pub fn defaults(dir: &Path) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7717)),
            public_url: None,
            trusted_proxies: Vec::new(),
            stop_grace: Span::seconds(10),
            store: dir.join("lazaret.db"),
            ssh_key: dir.join("host/keys/client_ed25519"),
            services: ServicesSettings {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..ServicesSettings::default()
            },
            log_format: LogFormat::Text,
            log_filter: "info".into(),
        }
    }

    /// Reads the settings file and the environment.
    ///
    /// # Errors
    /// Where the file cannot be read, or a key in either is unknown or malformed; it is named.
    pub fn load(file: &Path, environment: &BTreeMap<String, String>) -> Result<Self, Failure> {
        let name = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::Usage(format!("cannot read the settings file {name}: {error}"))
        })?;
        let dir = file.parent().map(Path::to_path_buf).unwrap_or_default();
        let dir = std::path::absolute(&dir)
            .map_err(|error| Failure::Usage(format!("cannot tell where {name} is: {error}")))?;
        Self::read(&text, &dir, environment)
            .map_err(|why| Failure::Usage(format!("settings in {name}: {why}")))
    }

    /// The settings that this text and this environment mean; relative paths are below `dir`.
    ///
    /// # Errors
    /// What is wrong, naming the key.
    pub fn read(
        text: &str,
        dir: &Path,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| error.to_string())?;
        let mut settings = Self::defaults(dir);
        for (key, value) in flatten(table)? {
            let Some((_, set)) = KEYS.iter().find(|(name, _)| *name == key) else {
                return Err(unknown(&key));
            };
            set(&mut settings, &value).map_err(|why| format!("{key}: {why}"))?;
        }
        for (name, text) in environment {
            let Some(key) = key_of(name)? else { continue };
            let Some((_, set)) = KEYS.iter().find(|(known, _)| *known == key) else {
                return Err(format!("{name}: {}", unknown(&key)));
            };
            set(&mut settings, &Value::String(text.clone()))
                .map_err(|why| format!("{name} ({key}): {why}"))?;
        }
        settings.ssh_key = dir.join(&settings.ssh_key);
        settings.store = dir.join(&settings.store);
        settings.check()?;
        Ok(settings)
    }

    /// What no key shows by itself.
    fn check(&self) -> Result<(), String> {
        if self.listen.ip().is_unspecified() && self.public_url.is_none() {
            return Err(format!(
                "server.public_url: with server.listen = \"{}\" it must say what callers use, \
                 such as http://lazaret.example.com:{}; every other name is refused",
                self.listen,
                self.listen.port()
            ));
        }
        Ok(())
    }

    /// The URL under which callers reach the controller.
    #[must_use]
    pub fn url(&self) -> String {
        self.public_url
            .clone()
            .unwrap_or_else(|| format!("http://{}", self.listen))
    }
}

/// The process' environment, as far as it is text.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        })
        .collect()
}

/// Tables become dotted keys, two levels deep; a table deeper down is a value.
fn flatten(table: toml::Table) -> Result<Vec<(String, Value)>, String> {
    let mut all = Vec::new();
    for (section, value) in table {
        match value {
            Value::Table(keys) => {
                all.extend(
                    keys.into_iter()
                        .map(|(key, value)| (format!("{section}.{key}"), value)),
                );
            }
            _ => return Err(unknown(&section)),
        }
    }
    Ok(all)
}

/// The dotted key that a variable means; none where it is no setting of ours.
fn key_of(name: &str) -> Result<Option<String>, String> {
    let Some(rest) = name.strip_prefix("LAZARET_") else {
        return Ok(None);
    };
    if NOT_SETTINGS.contains(&name) || NOT_OURS.iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(None);
    }
    match rest.split_once('_') {
        Some((section, key)) => Ok(Some(format!(
            "{}.{}",
            section.to_lowercase(),
            key.to_lowercase()
        ))),
        None => Err(format!("{name}: {}", unknown(&rest.to_lowercase()))),
    }
}

/// Says that a key is unknown, and which one may have been meant.
fn unknown(key: &str) -> String {
    let near = KEYS
        .iter()
        .map(|(name, _)| (distance(key, name), *name))
        .min();
    match near {
        Some((distance, name)) if distance <= 3 => format!("{key}: no such key; is {name} meant?"),
        _ => format!("{key}: no such key"),
    }
}

/// How many letters must be added, removed or changed to turn one text into the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = corner + usize::from(a != *b);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests;
