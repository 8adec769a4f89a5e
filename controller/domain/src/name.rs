//! Names, parsed once at the door. The field is private, so whoever holds a value holds a checked
//! one, and no unchecked name can reach a path, a command or a URL.

use crate::id::{id_traits, is_identifier};
use crate::{Denial, DenialCode, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// A repository, `owner/name`, in GitHub's alphabet. A trailing `.git` is dropped; a second one would
/// make the name another one each time it is read, so it is refused, as GitHub does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct RepoName(String);

impl RepoName {
    /// The repository as `owner/name`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the slash.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.0.split_once('/').map_or("", |(owner, _)| owner)
    }

    /// The part after the slash.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }
}

impl FromStr for RepoName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let trimmed = text.strip_suffix(".git").unwrap_or(text);
        let refuse = || {
            let rule = match text.contains("://") || text.contains('@') {
                true => {
                    "a repository is named as owner/name, such as acme/demo, and not by its address"
                }
                false => {
                    "a repository is owner/name: two parts of 1 to 100 characters of A-Z a-z 0-9 _ . -, \
                     not starting with '-' or '.', the second not ending in '.git'"
                }
            };
            Denial::new(DenialCode::InvalidRepo, rule)
        };
        let (owner, name) = trimmed.split_once('/').ok_or_else(refuse)?;
        let part_ok =
            |part: &str| part.len() <= 100 && is_identifier(part) && !part.starts_with(['-', '.']);
        if part_ok(owner) && part_ok(name) && !name.ends_with(".git") {
            Ok(Self(trimmed.to_owned()))
        } else {
            Err(refuse())
        }
    }
}
id_traits!(RepoName);

/// Whether a text is a ref name by the rules of git-check-ref-format(1), and not an option.
fn is_ref_name(text: &str) -> bool {
    (1..=200).contains(&text.len())
        && !text.starts_with(['-', '/', '.'])
        && !text.ends_with(['/', '.'])
        && text != "@"
        && !text.contains("..")
        && !text.contains("//")
        && !text.contains("@{")
        && text
            .split('/')
            .all(|part| !part.starts_with('.') && !part.ends_with(".lock"))
        && text.bytes().all(|b| {
            b > b' ' && b != 0x7f && b.is_ascii() && !b"~^:?*[\\'\"`$;&|<>(){}!#".contains(&b)
        })
}

/// What to check out: a branch, a tag or a commit id. Stricter than git: no shell metacharacter is
/// accepted, though none would ever reach a shell.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct GitRef(String);

impl GitRef {
    /// The ref as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GitRef {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        if is_ref_name(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Denial::new(
                DenialCode::InvalidRef,
                "a ref is a branch, tag or commit id of at most 200 characters, without spaces, '..', or any of \
                 ~ ^ : ? * [ \\ and shell metacharacters, not starting with '-'",
            ))
        }
    }
}
id_traits!(GitRef);

/// The branch a run works on: `lazaret/<run>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct BranchName(String);

impl BranchName {
    /// The branch of a run.
    #[must_use]
    pub fn of(run: &RunId) -> Self {
        Self(format!("lazaret/{run}"))
    }

    /// The branch as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BranchName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        text.parse::<GitRef>().map(|git_ref| Self(git_ref.0))
    }
}
id_traits!(BranchName);

/// The name an operator gave a host: lower-case letters, digits and dashes, 1 to 63, as a DNS label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct HostName(String);

impl HostName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let ok = (1..=63).contains(&text.len())
            && !text.starts_with('-')
            && !text.ends_with('-')
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(Denial::new(
                DenialCode::InvalidName,
                "a host name is 1 to 63 characters of a-z 0-9 and dashes, with no dash at either end",
            ))
        }
    }
}
id_traits!(HostName);

/// The name of an uploaded file: one plain segment, never a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct UploadName(String);

impl UploadName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UploadName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        if is_identifier(text) && !text.starts_with(['-', '.']) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Denial::new(
                DenialCode::InvalidName,
                "an upload's name is 1 to 128 characters of A-Z a-z 0-9 _ . -, not starting with '-' or '.'",
            ))
        }
    }
}
id_traits!(UploadName);

/// A path below the workspace of a sandbox, relative, with `/` between segments. The empty path is
/// the workspace itself. No segment is `.`, `..` or empty; none holds NUL or a control character.
/// That a path resolves inside the workspace *in fact* (symbolic links) is the guest agent's to
/// enforce, by `openat2` with `RESOLVE_BENEATH`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct GuestPath(String);

impl GuestPath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the workspace itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The last segment, if there is one.
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.0.rsplit('/').next().filter(|name| !name.is_empty())
    }
}

impl FromStr for GuestPath {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let refuse = |why: &str| {
            Err(Denial::new(
                DenialCode::InvalidPath,
                format!("a path in the workspace {why}"),
            ))
        };
        if text.is_empty() {
            return Ok(Self::default());
        }
        if text.len() > 4096 {
            return refuse("is at most 4096 bytes long");
        }
        if text.starts_with('/') {
            return refuse("is relative: leave out the leading '/'");
        }
        if text.chars().any(char::is_control) {
            return refuse("holds no control character");
        }
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        for segment in trimmed.split('/') {
            match segment {
                "" | "." => return refuse("has no empty or '.' segment"),
                ".." => return refuse("has no '..' segment"),
                _ if segment.len() > 255 => return refuse("has segments of at most 255 bytes"),
                _ => {}
            }
        }
        Ok(Self(trimmed.to_owned()))
    }
}
id_traits!(GuestPath);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn repositories_are_owner_slash_name() {
        assert_eq!("acme/demo".parse::<RepoName>().unwrap().name(), "demo");
        assert_eq!(
            "acme/demo.git".parse::<RepoName>().unwrap().as_str(),
            "acme/demo"
        );
        for text in [
            "/etc",
            "a",
            "a/b/c",
            "a/..",
            "../../user",
            "https://evil/x",
            "-o/x",
            "a/-b",
            ".git/x",
            "a/b c",
            "a/",
            "/b",
            "a/b\0",
            "a/.git",
            "",
            "a/$(id)",
            "a/b;c",
            "bt/h.git.git",
        ] {
            assert_eq!(
                text.parse::<RepoName>().unwrap_err().code,
                DenialCode::InvalidRepo,
                "{text:?}"
            );
        }
    }

    #[test]
    fn refs_cannot_be_options_or_expressions() {
        for text in [
            "main",
            "release/1.2",
            "v1.0.0",
            "0123456789abcdef0123456789abcdef01234567",
        ] {
            assert!(text.parse::<GitRef>().is_ok(), "{text}");
        }
        for text in [
            "--upload-pack=x",
            "-x",
            "a..b",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "$(id)",
            "`id`",
            "a;b",
            "a\nb",
            "",
            "a.lock",
            "@",
            "/a",
            "a/",
            "a//b",
            "@{u}",
            "x@{1}",
            ".a",
            "a/.b",
            "main\0",
        ] {
            assert_eq!(
                text.parse::<GitRef>().unwrap_err().code,
                DenialCode::InvalidRef,
                "{text:?}"
            );
        }
    }

    #[test]
    fn guest_paths_stay_below_the_workspace() {
        assert_eq!(
            "a/b.txt".parse::<GuestPath>().unwrap().file_name(),
            Some("b.txt")
        );
        assert!("".parse::<GuestPath>().unwrap().is_root());
        for text in [
            "/etc/passwd",
            "..",
            "a/..",
            "a/../../x",
            "./a",
            "a//b",
            "a\0b",
            "a\nb",
        ] {
            assert_eq!(
                text.parse::<GuestPath>().unwrap_err().code,
                DenialCode::InvalidPath,
                "{text:?}"
            );
        }
        assert!("x".repeat(256).parse::<GuestPath>().is_err());
        assert!("x/".repeat(4096).parse::<GuestPath>().is_err());
    }

    proptest! {
        #[test]
        fn no_accepted_path_climbs(text in "[a./~\\\\%0-9 -]{0,24}|\\PC{0,24}") {
            if let Ok(path) = text.parse::<GuestPath>() {
                prop_assert!(Path::new(path.as_str()).components().all(|c| matches!(c, Component::Normal(_))));
            }
        }

        #[test]
        fn a_name_read_again_is_the_same_name(text in "[a.]{1,3}/?[a.]{0,3}(\\.git){0,3}/?") {
            if let Ok(repo) = text.parse::<RepoName>() {
                prop_assert_eq!(repo.as_str().parse::<RepoName>().unwrap(), repo);
            }
            if let Ok(path) = text.parse::<GuestPath>() {
                prop_assert_eq!(path.as_str().parse::<GuestPath>().unwrap(), path);
            }
        }

        #[test]
        fn no_accepted_ref_or_repo_is_an_option(text in "[-a-z./@{}~^:]{0,16}") {
            if let Ok(git_ref) = text.parse::<GitRef>() {
                prop_assert!(!git_ref.as_str().starts_with('-') && !git_ref.as_str().contains(".."));
            }
            if let Ok(repo) = text.parse::<RepoName>() {
                prop_assert_eq!(repo.as_str().matches('/').count(), 1);
                prop_assert!(!repo.owner().starts_with(['-', '.']) && !repo.name().starts_with(['-', '.']));
            }
        }
    }
}
