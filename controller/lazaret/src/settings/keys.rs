//! Every key there is, and what it sets.

use super::value::{flag, list, number, parsed, structure, text};
use super::{LogFormat, Settings};
use crate::accel;
use lazaret_api::public::EgressMode;
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::{ByteSize, Cpus, Denial};
use std::path::PathBuf;
use toml::Value;

type Set = fn(&mut Settings, &Value) -> Result<(), String>;

/// The keys by name.
pub(super) const KEYS: &[(&str, Set)] = &[
    ("server.listen", |s, v| {
        s.listen =
            parsed(v).map_err(|_| "it is ADDRESS:PORT, such as 127.0.0.1:7717".to_owned())?;
        Ok(())
    }),
    ("server.public_url", |s, v| {
        let url = url(v)?;
        if url.path() != "/" {
            return Err("it is http(s)://HOST[:PORT], without a path".into());
        }
        s.public_url = Some(url.as_str().trim_end_matches('/').to_owned());
        Ok(())
    }),
    ("server.trusted_proxies", |s, v| {
        s.trusted_proxies = list::<Network>(v)?
            .into_iter()
            .map(|network| network.0)
            .collect();
        Ok(())
    }),
    ("server.stop_grace", |s, v| {
        s.stop_grace = parsed(v)?;
        Ok(())
    }),
    ("store.url", |s, v| {
        s.store = store(v)?;
        Ok(())
    }),
    ("host.accel", |s, v| {
        s.services.accel = accel::parse(&text(v)?)?;
        Ok(())
    }),
    ("host.ssh_key", |s, v| {
        s.ssh_key = PathBuf::from(text(v)?);
        Ok(())
    }),
    ("host.boot_deadline", |s, v| {
        s.services.boot_deadline = parsed(v)?;
        Ok(())
    }),
    ("host.boot_tries", |s, v| {
        let tries = number(v)?;
        s.services.boot_tries = u8::try_from(tries)
            .ok()
            .filter(|n| (1..=10).contains(n))
            .ok_or("it is from 1 to 10")?;
        Ok(())
    }),
    ("sandbox.memory", |s, v| {
        s.services.memory = parsed(v)?;
        at_least(s.services.memory, ByteSize::mebibytes(128))
    }),
    ("sandbox.cpus", |s, v| {
        s.services.cpus = Cpus::try_from(number(v)?).map_err(|denial| denial.to_string())?;
        Ok(())
    }),
    ("sandbox.disk", |s, v| {
        s.services.disk = parsed(v)?;
        at_least(s.services.disk, ByteSize::mebibytes(64))
    }),
    ("sandbox.max_duration", |s, v| {
        s.services.max_duration = parsed(v)?;
        Ok(())
    }),
    ("sandbox.idle_sleep", |s, v| {
        s.services.idle_sleep = match text(v)?.as_str() {
            "never" => None,
            span => Some(
                span.parse()
                    .map_err(|denial: Denial| format!("{}; or it is 'never'", denial.message))?,
            ),
        };
        Ok(())
    }),
    ("sandbox.sleep_ttl", |s, v| {
        s.services.sleep_ttl = parsed(v)?;
        Ok(())
    }),
    ("sandbox.max_sandboxes", |s, v| {
        let most = number(v)?;
        s.services.max_sandboxes = u32::try_from(most)
            .ok()
            .filter(|n| (1..=10_000).contains(n))
            .ok_or("it is from 1 to 10000")?;
        Ok(())
    }),
    ("egress.default", |s, v| {
        s.services.egress.default = match text(v)?.as_str() {
            "sealed" => EgressMode::Sealed,
            "open" => EgressMode::Open,
            _ => return Err("it is sealed or open".into()),
        };
        Ok(())
    }),
    ("egress.domains", |s, v| {
        s.services.egress.domains = list(v)?;
        egress(&EgressPolicy {
            rules: s.services.egress.domains.clone(),
            ..EgressPolicy::default()
        })
    }),
    ("egress.pinned", |s, v| {
        s.services.egress.pinned = structure(v)?;
        egress(&EgressPolicy {
            pinned: s.services.egress.pinned.clone(),
            ..EgressPolicy::default()
        })
    }),
    ("egress.allow_open", |s, v| {
        s.services.egress.open_allowed = flag(v)?;
        Ok(())
    }),
    ("github.git_url", |s, v| {
        s.services.git_base_url = format!("{}/", url(v)?.as_str().trim_end_matches('/'));
        Ok(())
    }),
    ("auth.mode", |_, v| match text(v)?.as_str() {
        "operator" => Ok(()),
        "users" => Err("users is not in this version; it is operator".into()),
        _ => Err("it is operator".into()),
    }),
    ("log.format", |s, v| {
        s.log_format = match text(v)?.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            _ => return Err("it is text or json".into()),
        };
        Ok(())
    }),
    ("log.filter", |s, v| {
        s.log_filter = text(v)?;
        tracing_subscriber::EnvFilter::try_new(&s.log_filter)
            .map(drop)
            .map_err(|error| error.to_string())
    }),
];

/// A network, or one address.
struct Network(ipnet::IpNet);

impl std::str::FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<ipnet::IpNet>()
            .or_else(|_| text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from))
            .map(Self)
            .map_err(|_| "it is an address or a network, such as 10.0.0.0/8")
    }
}

/// An http or https URL without credentials, query or fragment.
fn url(value: &Value) -> Result<reqwest::Url, String> {
    let text = text(value)?;
    let refuse = "it is an http or https URL without credentials, query or fragment";
    let url = reqwest::Url::parse(&text).map_err(|_| refuse)?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !plain {
        return Err(refuse.into());
    }
    Ok(url)
}

/// The path in `sqlite:PATH`. Parameters, which other programs take there, would become a part of
/// the file's name.
fn store(value: &Value) -> Result<PathBuf, String> {
    let text = text(value)?;
    let path = match text.split_once(':') {
        Some(("sqlite", path)) => path.strip_prefix("//").unwrap_or(path),
        Some(("postgres" | "postgresql", _)) => {
            return Err("PostgreSQL is not in this version; it is sqlite:PATH".into());
        }
        _ => return Err("it is sqlite:PATH".into()),
    };
    if path.contains('?') {
        return Err("it is sqlite:PATH, without parameters after a '?'".into());
    }
    if path.starts_with(':') || path.ends_with('/') || path.is_empty() {
        return Err("it is sqlite:PATH, the path of a file".into());
    }
    Ok(PathBuf::from(path))
}

/// Refuses here what would otherwise end each run that it is meant for.
fn egress(policy: &EgressPolicy) -> Result<(), String> {
    policy.check().map_err(|denial| denial.message)
}

fn at_least(size: ByteSize, least: ByteSize) -> Result<(), String> {
    if size < least {
        Err(format!("it is at least {least}"))
    } else {
        Ok(())
    }
}
