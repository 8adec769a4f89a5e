//! Every key there is, and what it sets.

use super::value::{flag, list, number, parsed, structure, text};
use super::{LogFormat, Settings};
use lazaret_api::host::AccelChoice;
use lazaret_api::public::EgressMode;
use lazaret_domain::{ByteSize, Cpus};
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
        s.public_url = Some(url(v, false)?);
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
        s.store_url = store(v)?;
        Ok(())
    }),
    ("host.accel", |s, v| {
        s.services.accel = accel(v)?;
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
        Ok(())
    }),
    ("egress.pinned", |s, v| {
        s.services.egress.pinned = structure(v)?;
        if s.services
            .egress
            .pinned
            .iter()
            .any(|pinned| pinned.addresses.is_empty())
        {
            return Err("each entry has at least one address".into());
        }
        Ok(())
    }),
    ("egress.allow_open", |s, v| {
        s.services.egress.open_allowed = flag(v)?;
        Ok(())
    }),
    ("github.git_url", |s, v| {
        s.services.git_base_url = url(v, true)?;
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

/// An http or https URL without credentials, query or fragment; with `dir` it ends in a slash.
fn url(value: &Value, dir: bool) -> Result<String, String> {
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
    let trimmed = url.as_str().trim_end_matches('/');
    Ok(if dir {
        format!("{trimmed}/")
    } else {
        trimmed.to_owned()
    })
}

fn store(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    match text.split_once(':') {
        Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => Ok(text),
        Some(("postgres" | "postgresql", _)) => {
            Err("PostgreSQL is not in this version; it is sqlite:PATH".into())
        }
        _ => Err("it is sqlite:PATH".into()),
    }
}

fn accel(value: &Value) -> Result<AccelChoice, String> {
    match text(value)?.as_str() {
        "kvm" => Ok(AccelChoice::Kvm),
        "tcg" => Ok(AccelChoice::Tcg),
        "auto" => Ok(AccelChoice::Auto),
        _ => Err("it is kvm, tcg or auto".into()),
    }
}

fn at_least(size: ByteSize, least: ByteSize) -> Result<(), String> {
    if size < least {
        Err(format!("it is at least {least}"))
    } else {
        Ok(())
    }
}
