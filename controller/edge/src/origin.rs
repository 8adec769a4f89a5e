//! Foreign `Host` and `Origin` are refused before anything else is looked at, so that neither DNS
//! rebinding nor a page of another site can make a browser talk to this server.
//!
//! A request without `Origin` is a program, not a page, and passes. `Origin: null` is foreign.

use crate::problem::Refusal;
use crate::state::Edge;
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Uri};
use axum::middleware::Next;
use axum::response::Response;
use lazaret_domain::{Denial, DenialCode};
use std::str::FromStr;

/// A host and a port, as they are compared: lower case, and the port always there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    host: String,
    port: u16,
}

impl Authority {
    /// An authority; `host` may be in any case, an IPv6 address stands in brackets.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_ascii_lowercase(),
            port,
        }
    }

    /// Reads `host[:port]`.
    #[must_use]
    pub fn parse(text: &str, default_port: u16) -> Option<Self> {
        let authority: http::uri::Authority = text.parse().ok()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        // The URI parser takes an absent and an empty port for the same thing.
        if authority.port_u16().is_none() && authority.as_str().len() != authority.host().len() {
            return None;
        }
        Some(Self::new(
            authority.host(),
            authority.port_u16().unwrap_or(default_port),
        ))
    }

    /// The host alone, an IPv6 address without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// `host:port`.
    #[must_use]
    pub fn with_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// A web origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    secure: bool,
    authority: Authority,
}

impl Origin {
    /// An origin without TLS.
    #[must_use]
    pub fn plain(authority: Authority) -> Self {
        Self {
            secure: false,
            authority,
        }
    }

    /// Its host and port.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The origin as text, with its port.
    #[must_use]
    pub fn with_port(&self) -> String {
        format!(
            "{}://{}",
            if self.secure { "https" } else { "http" },
            self.authority.with_port()
        )
    }
}

impl FromStr for Origin {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (scheme, rest) = text.split_once("://").ok_or(())?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(()),
        };
        if rest.contains(['/', '?', '#']) {
            return Err(());
        }
        let authority = Authority::parse(rest, if secure { 443 } else { 80 }).ok_or(())?;
        Ok(Self { secure, authority })
    }
}

/// Refuses requests that name another host than ours, or come from a page of another origin.
pub(crate) async fn check(
    State(edge): State<Edge>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let named = named_host(request.headers(), request.uri());
    // A name without a port means a default port; which one depends on what stands before us.
    let ours = named.is_some_and(|text| {
        let read = |port| Authority::parse(text, port);
        [read(80), read(443)]
            .into_iter()
            .flatten()
            .any(|host| edge.settings.hosts.contains(&host))
    });
    if !ours {
        return Err(Denial::new(
            DenialCode::ForeignHost,
            "this server is not known under the name in Host",
        )
        .into());
    }
    match single(request.headers(), &ORIGIN) {
        Ok(None) => {}
        Ok(Some(text))
            if text
                .parse()
                .is_ok_and(|origin| edge.settings.origins.contains(&origin)) => {}
        _ => {
            return Err(Denial::new(
                DenialCode::ForeignOrigin,
                "requests from other sites are refused",
            )
            .into());
        }
    }
    Ok(next.run(request).await)
}

/// The host a request names: `:authority` (or the absolute form) if it is there, else the one
/// `Host` header. Two that differ are no name at all.
fn named_host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let header = single(headers, &HOST).ok()?;
    match (uri.authority().map(http::uri::Authority::as_str), header) {
        (Some(authority), Some(header)) if !authority.eq_ignore_ascii_case(header) => None,
        (Some(authority), _) => Some(authority),
        (None, header) => header,
    }
}

/// The only value of a header; none is `Ok(None)`, several or unreadable ones are an error.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_by_scheme_host_and_port() {
        let origin = |text: &str| text.parse::<Origin>();
        assert_eq!(
            origin("https://Example.com"),
            origin("https://example.com:443")
        );
        assert_ne!(origin("https://example.com"), origin("http://example.com"));
        assert_ne!(origin("http://[::1]:80"), origin("http://[::1]:81"));
        for text in [
            "null",
            "",
            "example.com",
            "ftp://x",
            "http://",
            "http://x/",
            "http://a@b",
            "http://x:",
            "http://x:99999",
        ] {
            assert!(origin(text).is_err(), "{text:?}");
        }
    }
}
