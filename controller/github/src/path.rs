//! The requests of git smart HTTP, parsed strictly.

use http::Method;
use lazaret_domain::{Denial, DenialCode, RepoName};

/// A request that may be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitRequest {
    /// The repository.
    pub repo: RepoName,
    /// Which of the two.
    pub kind: GitRequestKind,
}

/// The two requests of a clone or fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitRequestKind {
    /// `GET info/refs?service=git-upload-pack`
    Advertisement,
    /// `POST git-upload-pack`
    UploadPack,
}

impl GitRequestKind {
    pub(crate) fn method(self) -> Method {
        match self {
            Self::Advertisement => Method::GET,
            Self::UploadPack => Method::POST,
        }
    }

    pub(crate) fn tail(self) -> &'static str {
        match self {
            Self::Advertisement => "info/refs?service=git-upload-pack",
            Self::UploadPack => "git-upload-pack",
        }
    }

    /// The content type of a git host's answer; anything else is not one.
    pub(crate) fn answer_type(self) -> &'static str {
        match self {
            Self::Advertisement => "application/x-git-upload-pack-advertisement",
            Self::UploadPack => "application/x-git-upload-pack-result",
        }
    }
}

impl GitRequest {
    /// Parses method, path and query. Nothing is decoded: a name that would need it is not one.
    ///
    /// # Errors
    /// `invalid_repo`, `push_refused`, `method_not_allowed` or `no_such_route`.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Result<Self, Denial> {
        let no_route = || {
            Denial::new(
                DenialCode::NoSuchRoute,
                "git is served below /git/owner/name.git/",
            )
        };
        let rest = path.strip_prefix("/git/").ok_or_else(no_route)?;
        let mut segments = rest.splitn(3, '/');
        let (Some(owner), Some(name), Some(tail)) =
            (segments.next(), segments.next(), segments.next())
        else {
            return Err(no_route());
        };
        let repo: RepoName = format!("{owner}/{name}").parse()?;
        let push_refused = || {
            Denial::new(
                DenialCode::PushRefused,
                "pushing from a sandbox is not allowed: the result of a run is its diff",
            )
        };
        let kind = match (tail, query) {
            ("info/refs", Some("service=git-upload-pack")) => GitRequestKind::Advertisement,
            ("git-upload-pack", None) => GitRequestKind::UploadPack,
            ("info/refs", Some("service=git-receive-pack")) | ("git-receive-pack", _) => {
                return Err(push_refused());
            }
            _ => return Err(no_route()),
        };
        if *method == kind.method() {
            Ok(Self { repo, kind })
        } else {
            Err(Denial::new(
                DenialCode::MethodNotAllowed,
                format!("{} is what git sends here", kind.method()),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, target: &str) -> Result<GitRequest, DenialCode> {
        let (path, query) = target
            .split_once('?')
            .map_or((target, None), |(path, query)| (path, Some(query)));
        GitRequest::parse(&method.parse().unwrap(), path, query).map_err(|denial| denial.code)
    }

    #[test]
    fn the_two_requests_of_a_clone_are_known_with_and_without_git_suffix() {
        for name in ["acme/demo", "acme/demo.git"] {
            let refs = parse(
                "GET",
                &format!("/git/{name}/info/refs?service=git-upload-pack"),
            )
            .unwrap();
            assert_eq!(
                (refs.repo.as_str(), refs.kind),
                ("acme/demo", GitRequestKind::Advertisement)
            );
            let pack = parse("POST", &format!("/git/{name}/git-upload-pack")).unwrap();
            assert_eq!(
                (pack.repo.as_str(), pack.kind),
                ("acme/demo", GitRequestKind::UploadPack)
            );
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        use DenialCode::{InvalidRepo, MethodNotAllowed, NoSuchRoute, PushRefused};
        for (method, target, code) in [
            (
                "GET",
                "/git/a/b/info/refs?service=git-receive-pack",
                PushRefused,
            ),
            ("POST", "/git/a/b.git/git-receive-pack", PushRefused),
            ("GET", "/git/a/b.git/git-receive-pack?x", PushRefused),
            ("GET", "/git/a/b/info/refs", NoSuchRoute),
            (
                "GET",
                "/git/a/b/info/refs?service=git-upload-pack&x=1",
                NoSuchRoute,
            ),
            (
                "GET",
                "/git/a/b/info/refs?service=git-upload-archive",
                NoSuchRoute,
            ),
            ("POST", "/git/a/b/git-upload-pack?x", NoSuchRoute),
            ("GET", "/git/a/b/HEAD", NoSuchRoute),
            ("GET", "/git/a/b/objects/info/packs", NoSuchRoute),
            ("GET", "/git/a/b", NoSuchRoute),
            ("GET", "/git/", NoSuchRoute),
            (
                "GET",
                "/other/a/b/info/refs?service=git-upload-pack",
                NoSuchRoute,
            ),
            (
                "GET",
                "//git/a/b/info/refs?service=git-upload-pack",
                NoSuchRoute,
            ),
            (
                "GET",
                "/git/../b/info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git/a/../info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git/a/b%2fc/info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git/%2e%2e/b/info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git/a@evil/b/info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git//b/info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git/a/-b/info/refs?service=git-upload-pack",
                InvalidRepo,
            ),
            (
                "GET",
                "/git/a/b/c/info/refs?service=git-upload-pack",
                NoSuchRoute,
            ),
            (
                "POST",
                "/git/a/b/info/refs?service=git-upload-pack",
                MethodNotAllowed,
            ),
            ("GET", "/git/a/b/git-upload-pack", MethodNotAllowed),
            ("DELETE", "/git/a/b/git-upload-pack", MethodNotAllowed),
        ] {
            assert_eq!(parse(method, target), Err(code), "{method} {target}");
        }
    }
}
