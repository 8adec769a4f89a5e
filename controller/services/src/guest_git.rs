//! Git in the guest: three constant scripts whose arguments are positional parameters, and the
//! environment they run in. Nothing that came from a caller is ever part of a script's text.
//!
//! They run as the agent's user, so a turned agent can lie in all three; what it can lie about is
//! its own diff, and every reader treats that as untrusted text.

use lazaret_api::guest::{ExecLimits, ExecSpec, WORKSPACE};
use lazaret_api::host::{ExecRequest, default_output_cap};
use lazaret_domain::{Argv, BranchName, Denial, EnvName, GitRef, RepoName, RunId, Span};
use std::collections::BTreeMap;

/// The longest diff that is kept, in bytes.
pub(crate) const DIFF_CAP: usize = 4 << 20;

/// $1 URL, $2 directory, $3 ref or nothing, $4 branch. Standard output is the base commit alone;
/// what git says goes to standard error. A ref is a branch first, then a tag, then a commit, and a
/// commit that no branch holds is fetched by itself.
const CLONE: &str = r#"
exec 3>&1 1>&2
git clone --no-recurse-submodules -- "$1" "$2"
cd -- "$2"
if [ -n "$3" ]; then
    base=$(git rev-parse --verify --quiet "refs/remotes/origin/$3^{commit}") ||
    base=$(git rev-parse --verify --quiet "refs/tags/$3^{commit}") ||
    base=$(git rev-parse --verify --quiet "$3^{commit}") || {
        git fetch --quiet --no-recurse-submodules origin "$3"
        base=$(git rev-parse --verify "FETCH_HEAD^{commit}")
    }
else
    base=$(git rev-parse --verify "HEAD^{commit}")
fi
git config user.name "Lazaret agent"
git config user.email "agent@lazaret.invalid"
git -c advice.detachedHead=false switch --quiet --no-track --create "$4" "$base"
printf '%s\n' "$base" >&3
"#;

/// $1 base commit, $2 the most bytes. The index and the objects it needs are temporary, so the
/// user's index, staged or not, stays as it is. One byte more than allowed says that it was cut.
const DIFF: &str = r#"
umask 077
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
objects=$(git rev-parse --path-format=absolute --git-path objects)
mkdir -- "$scratch/objects"
export GIT_INDEX_FILE="$scratch/index" GIT_OBJECT_DIRECTORY="$scratch/objects"
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects"
git read-tree "$1"
git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c advice.addEmbeddedRepo=false add --all --ignore-errors . || :
git -c core.fsmonitor=false diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames \
    --src-prefix=a/ --dst-prefix=b/ "$1" -- > "$scratch/diff"
head -c "$(($2 + 1))" < "$scratch/diff"
"#;

/// Where the work of a run lies in the guest.
pub(crate) fn directory(repo: Option<&RepoName>) -> String {
    repo.map_or_else(
        || WORKSPACE.to_owned(),
        |repo| format!("{WORKSPACE}/{}", repo.name()),
    )
}

/// The environment of every command of a run: from scratch, the same each time.
pub(crate) fn environment(run: &RunId) -> Result<BTreeMap<EnvName, String>, Denial> {
    let fixed = [
        ("HOME", "/home/agent"),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        ("SHELL", "/bin/sh"),
        (
            "PATH",
            "/home/agent/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("LAZARET_RUN", run.as_str()),
    ];
    fixed
        .into_iter()
        .map(|(name, value)| Ok((name.parse()?, value.to_owned())))
        .collect()
}

/// A command of a run.
pub(crate) fn command(
    run: &RunId,
    argv: Argv,
    cwd: String,
    longest: Span,
) -> Result<ExecRequest, Denial> {
    let limits = ExecLimits {
        max_duration: longest,
        ..ExecLimits::default()
    };
    let spec = ExecSpec {
        argv,
        env: environment(run)?,
        cwd,
        limits,
    };
    Ok(ExecRequest {
        spec,
        stdin: String::new(),
        output_cap: default_output_cap(),
    })
}

fn script(text: &str, arguments: &[&str]) -> Result<Argv, Denial> {
    let mut words: Vec<String> = ["sh", "-eu", "-c", text, "lazaret"]
        .map(str::to_owned)
        .to_vec();
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    Argv::new(words)
}

/// Clones the repository and makes the run's branch. `base_url` ends in a slash.
pub(crate) fn clone(
    run: &RunId,
    base_url: &str,
    repo: &RepoName,
    git_ref: Option<&GitRef>,
    longest: Span,
) -> Result<ExecRequest, Denial> {
    let url = format!("{base_url}{repo}.git");
    let branch = BranchName::of(run);
    let git_ref = git_ref.map_or("", GitRef::as_str);
    let argv = script(
        CLONE,
        &[&url, &directory(Some(repo)), git_ref, branch.as_str()],
    )?;
    let mut request = command(run, argv, WORKSPACE.to_owned(), longest)?;
    request
        .spec
        .env
        .insert("GIT_ALLOW_PROTOCOL".parse()?, "http:https".to_owned());
    request.output_cap = 1 << 20;
    Ok(request)
}

/// Shows what was changed since the base commit.
pub(crate) fn diff(run: &RunId, repo: &RepoName, base: &str) -> Result<ExecRequest, Denial> {
    let argv = script(DIFF, &[base, &DIFF_CAP.to_string()])?;
    command(run, argv, directory(Some(repo)), Span::seconds(120))
}

/// Reads the base commit from the clone's standard output: one line of 40 or 64 hexadecimal digits.
pub(crate) fn commit_id(output: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(output).ok()?.strip_suffix('\n')?;
    let hex = text
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (hex && matches!(text.len(), 40 | 64)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::{Command, Output};

    fn run_in(dir: &Path, request: &ExecRequest) -> Output {
        let words = request.spec.argv.words();
        let command = Command::new(&words[0])
            .args(&words[1..])
            .current_dir(dir)
            .output();
        command.unwrap()
    }

    fn git(dir: &Path, words: &[&str]) -> String {
        let output = Command::new("git")
            .args(words)
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "git {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// A repository with one commit on main and a tag, and the id of the commit.
    fn repository(dir: &Path) -> String {
        git(dir, &["init", "--quiet", "--initial-branch=main"]);
        git(dir, &["config", "user.name", "t"]);
        git(dir, &["config", "user.email", "t@example.org"]);
        std::fs::write(dir.join("kept.txt"), "one\n").unwrap();
        std::fs::write(dir.join("gone.txt"), "two\n").unwrap();
        git(dir, &["add", "."]);
        git(dir, &["commit", "--quiet", "-m", "first"]);
        git(dir, &["tag", "v1"]);
        git(dir, &["rev-parse", "HEAD"]).trim().to_owned()
    }

    fn id() -> RunId {
        RunId::make(jiff::Timestamp::UNIX_EPOCH, 1)
    }

    #[test]
    fn the_clone_script_resolves_branch_tag_and_commit_to_the_same_base() {
        let origin = tempfile::tempdir().unwrap();
        let base = repository(origin.path());
        for git_ref in ["", "main", "v1", &base] {
            let place = tempfile::tempdir().unwrap();
            let target = place.path().join("demo");
            let url = format!("file://{}", origin.path().display());
            let argv = script(
                CLONE,
                &[&url, target.to_str().unwrap(), git_ref, "lazaret/r1"],
            )
            .unwrap();
            let request = command(&id(), argv, "/".to_owned(), Span::seconds(60)).unwrap();
            let output = run_in(place.path(), &request);
            assert!(
                output.status.success(),
                "{git_ref:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert_eq!(commit_id(&output.stdout).as_deref(), Some(base.as_str()));
            assert_eq!(
                git(&target, &["branch", "--show-current"]).trim(),
                "lazaret/r1"
            );
        }
    }

    #[test]
    fn a_ref_that_does_not_exist_fails_the_clone_and_names_no_base() {
        let origin = tempfile::tempdir().unwrap();
        repository(origin.path());
        let place = tempfile::tempdir().unwrap();
        let url = format!("file://{}", origin.path().display());
        let target = place.path().join("demo");
        let argv = script(
            CLONE,
            &[&url, target.to_str().unwrap(), "no-such-ref", "lazaret/r1"],
        )
        .unwrap();
        let output = run_in(
            place.path(),
            &command(&id(), argv, "/".to_owned(), Span::seconds(60)).unwrap(),
        );
        assert!(!output.status.success());
        assert_eq!(commit_id(&output.stdout), None);
    }

    #[test]
    fn the_diff_holds_all_changes_and_leaves_the_index_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        let base = repository(dir);
        std::fs::write(dir.join("kept.txt"), "one\nmore\n").unwrap();
        std::fs::remove_file(dir.join("gone.txt")).unwrap();
        std::fs::write(dir.join("new.txt"), "new\n").unwrap();
        std::fs::write(dir.join("bytes.bin"), [0, 159, 146, 150, 0, 1]).unwrap();
        git(dir, &["add", "kept.txt"]);
        git(dir, &["config", "diff.noprefix", "true"]);
        git(dir, &["config", "color.ui", "always"]);
        git(dir, &["config", "diff.external", "/bin/false"]);
        let staged = git(dir, &["status", "--porcelain"]);
        let index = std::fs::read(dir.join(".git/index")).unwrap();
        let objects = git(dir, &["count-objects"]);
        let request = diff(&id(), &"acme/demo".parse().unwrap(), &base).unwrap();
        let output = run_in(dir, &request);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for part in [
            "a/kept.txt b/kept.txt",
            "+more",
            "deleted file",
            "+new",
            "GIT binary patch",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert_eq!(std::fs::read(dir.join(".git/index")).unwrap(), index);
        assert_eq!(git(dir, &["status", "--porcelain"]), staged);
        assert_eq!(git(dir, &["count-objects"]), objects);
        // What it shows can be applied to the base.
        git(dir, &["config", "--unset", "diff.external"]);
        git(dir, &["reset", "--quiet", "--hard", &base]);
        git(dir, &["clean", "--quiet", "-fd"]);
        std::fs::write(dir.join(".git/the.diff"), text).unwrap();
        git(dir, &["apply", "--check", ".git/the.diff"]);
    }

    #[test]
    fn a_base_is_a_whole_commit_id_and_nothing_else() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(commit_id(format!("{id}\n").as_bytes()).as_deref(), Some(id));
        for wrong in [
            "",
            "\n",
            id,
            &format!("{id}\n{id}\n"),
            &format!("{}\n", id.to_uppercase()),
            "main\n",
        ] {
            assert_eq!(commit_id(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
