//! The system-wide settings of git in a guest: repositories are reached through the gateway, and
//! nothing that a repository brings along is run by git itself.
//!
//! A settings file of the system yields to one of the repository, so these are the defaults of an
//! honest run and no wall. The walls are the sandbox and its gateway.

use lazaret_api::guest::net;
use lazaret_domain::{Denial, DenialCode};

/// Below the address of the gateway's git service. Everything here has its reason:
/// hooks are looked for where there are none; pager and editor are git's own words for "none"; a
/// prompt for a credential would wait for nobody; `ext::` remotes are commands; what git leaves in
/// the background would be killed with its command; and a commit needs an author.
const SETTINGS: &str = "\
[core]
\thooksPath = /dev/null
\tfsmonitor = false
\tpager = cat
\teditor = :
\taskPass =
[sequence]
\teditor = :
[credential]
\thelper =
\tinteractive = false
[protocol \"ext\"]
\tallow = never
[http]
\tproxy =
[gc]
\tautoDetach = false
[maintenance]
\tautoDetach = false
[init]
\tdefaultBranch = main
[advice]
\tdetachedHead = false
[user]
\tname = Lazaret agent
\temail = agent@sandbox.invalid
";

/// The settings for repositories below this URL.
pub(super) fn text(base: &str) -> Result<String, Denial> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/._~%-[]@".contains(&byte);
    let scheme = base.starts_with("https://") || base.starts_with("http://");
    if !scheme || !base.ends_with('/') || base.len() > 512 || !base.bytes().all(plain) {
        return Err(Denial::new(
            DenialCode::InvalidRequest,
            "the base of repositories is an http or https URL that ends in '/'",
        )
        .at("git_base_url"));
    }
    Ok(format!(
        "[url \"http://{}/git/\"]\n\tinsteadOf = {base}\n{SETTINGS}",
        net::GATEWAY_NAME
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn git_reads_the_settings_as_they_are_meant() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gitconfig");
        std::fs::write(&file, text("https://github.com/").unwrap()).unwrap();
        let git = |args: &[&str]| {
            let output = Command::new("git")
                .args(args)
                .env("GIT_CONFIG_SYSTEM", &file)
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .current_dir(dir.path())
                .output()
                .unwrap();
            (
                output.status.success(),
                String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            )
        };
        assert_eq!(
            git(&["config", "url.http://gateway.lazaret/git/.insteadOf"]),
            (true, "https://github.com/".into())
        );
        assert_eq!(
            git(&["ls-remote", "--get-url", "https://github.com/acme/demo"]).1,
            "http://gateway.lazaret/git/acme/demo"
        );
        assert!(!git(&["ls-remote", "ext::sh -c touch% owned"]).0);

        // A hook of the repository does not run, and a commit works without anybody to ask.
        assert!(git(&["init", "-q", "repo"]).0);
        let hook = dir.path().join("repo/.git/hooks/pre-commit");
        std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
        std::fs::write(&hook, "#!/bin/sh\ntouch owned\n").unwrap();
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        assert!(git(&["-C", "repo", "commit", "-q", "--allow-empty", "-m", "one"]).0);
        assert!(!dir.path().join("repo/owned").exists());
    }

    #[test]
    fn a_base_cannot_smuggle_settings_in() {
        for base in [
            "",
            "https://x",
            "ssh://x/",
            "https://x/\n",
            "https://x/\"]\n[core]/",
            "https://x/ /",
            "file:///",
        ] {
            assert!(text(base).is_err(), "{base:?}");
        }
    }
}
