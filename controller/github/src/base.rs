//! The base URL of repositories, checked once.

use crate::path::GitRequest;
use lazaret_domain::{Denial, DenialCode, RepoName};
use reqwest::Url;
use std::str::FromStr;

/// `https://…/`, or `http://…/` on loopback. Holds no user name, query or fragment, and ends in a
/// slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitBase(Url);

impl GitBase {
    /// Where a request is forwarded to.
    #[must_use]
    pub fn url_of(&self, git: &GitRequest) -> String {
        self.endpoint(&git.repo, git.kind.tail())
    }

    /// The URL of a repository's smart-HTTP endpoint.
    fn endpoint(&self, repo: &RepoName, tail: &str) -> String {
        format!("{}{}/{}.git/{tail}", self.0, repo.owner(), repo.name())
    }

    /// The URL as text, ending in a slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for GitBase {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let refuse = |why: &str| {
            Denial::new(
                DenialCode::InvalidRequest,
                format!("the base URL of repositories {why}"),
            )
            .at("github.git_url")
        };
        let mut url: Url = text.parse().map_err(|_| refuse("is not a URL"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse("holds a credential: those come from files"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refuse("has a query or fragment"));
        }
        match url.scheme() {
            "https" => {}
            "http" if is_loopback(&url) => {}
            _ => return Err(refuse("is https, or http on loopback")),
        }
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(Self(url))
    }
}

/// An address, not a name: what `localhost` means is for the resolver to say.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    bare.parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_https_or_loopback_and_holds_no_credential() {
        for (text, url) in [
            (
                "https://github.com",
                "https://github.com/acme/demo.git/info/refs",
            ),
            (
                "https://git.example/scm/",
                "https://git.example/scm/acme/demo.git/info/refs",
            ),
            (
                "http://127.0.0.1:8080",
                "http://127.0.0.1:8080/acme/demo.git/info/refs",
            ),
            ("http://[::1]:1/", "http://[::1]:1/acme/demo.git/info/refs"),
        ] {
            let base: GitBase = text.parse().unwrap();
            assert_eq!(
                base.endpoint(&"acme/demo".parse().unwrap(), "info/refs"),
                url
            );
        }
        for text in [
            "",
            "github.com",
            "ftp://x/",
            "file:///etc",
            "http://github.com",
            "http://localhost/",
            "http://10.0.0.1/",
            "https://user:pw@github.com/",
            "https://token@github.com/",
            "https://github.com/?a",
            "https://github.com/#b",
        ] {
            assert!(text.parse::<GitBase>().is_err(), "{text:?}");
        }
    }
}
