//! Where Debian comes from: the mirrors that this machine's apt uses, if it uses any of the release,
//! else those of the recipe. So a machine that reaches nothing but its own mirror can build.

use super::tools::{APT_CONFIG, APT_GET};
use crate::ImageError;
use crate::recipe::Recipe;

/// Archives and the way to them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sources {
    /// Lines of a sources.list.
    pub(super) lines: Vec<String>,
    /// The proxy that apt is set to, if any. May hold a password: it goes into the environment of
    /// the one program that needs it, and nowhere else.
    pub(super) proxy: Option<String>,
}

impl Sources {
    pub(super) fn of_this_machine(recipe: &Recipe) -> Result<Self, ImageError> {
        let mut command = APT_GET.command();
        command.args([
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Identifier: Packages",
        ]);
        let targets = APT_GET.output(command)?;
        let mut command = APT_CONFIG.command();
        command.args(["shell", "PROXY", "Acquire::http::Proxy"]);
        let proxy = APT_CONFIG.output(command)?;
        Ok(Self {
            lines: lines(recipe, &targets),
            proxy: quoted(&proxy),
        })
    }
}

fn lines(recipe: &Recipe, targets: &str) -> Vec<String> {
    let find = |suite: &str| {
        targets.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words.len() == 3 && words[1] == suite && words[2] == "main")
                .then(|| words[0].trim_end_matches('/').to_owned())
        })
    };
    let suite = &recipe.suite;
    [
        (suite.clone(), &recipe.mirror),
        (format!("{suite}-updates"), &recipe.mirror),
        (format!("{suite}-security"), &recipe.security_mirror),
    ]
    .into_iter()
    .map(|(suite, default)| {
        format!(
            "deb {} {suite} main",
            find(&suite).unwrap_or_else(|| default.clone())
        )
    })
    .collect()
}

/// The value of `PROXY='value'`.
fn quoted(text: &str) -> Option<String> {
    let value = text.trim().strip_prefix("PROXY='")?.strip_suffix('\'')?;
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_mirror_is_preferred_for_the_suites_it_has() {
        let recipe = Recipe::embedded().unwrap();
        let targets = "http://mirror.invalid/debian/ bookworm main\nhttp://mirror.invalid/debian/ bookworm contrib\nhttps://other.invalid/ nodistro main\n";
        assert_eq!(
            lines(&recipe, targets),
            [
                "deb http://mirror.invalid/debian bookworm main",
                "deb http://deb.debian.org/debian bookworm-updates main",
                "deb http://deb.debian.org/debian-security bookworm-security main",
            ]
        );
    }

    #[test]
    fn a_proxy_is_read_from_apts_own_words() {
        assert_eq!(
            quoted("PROXY='http://proxy.invalid:3128'\n").as_deref(),
            Some("http://proxy.invalid:3128")
        );
        assert_eq!(quoted(""), None);
    }
}
