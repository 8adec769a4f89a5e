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
git clone --template= --no-recurse-submodules -- "$1" "$2"
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

/// $1 base commit, $2 the most bytes. Git works in a directory of its own that only borrows the
/// repository's objects: the repository's settings, which the run may have written (filters, an
/// external diff, a file system monitor, hooks), are not read, and its index, staged or not, and
/// its objects stay as they are. One byte more than allowed says that it was cut.
const DIFF: &str = r#"
umask 077
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
format=$(git rev-parse --show-object-format)
objects=$(git rev-parse --path-format=absolute --git-path objects)
exclude=$(git rev-parse --path-format=absolute --git-path info/exclude)
root=$(pwd -P)
git init --quiet --bare --template= --object-format="$format" "$scratch/git"
printf '%s\n' "$objects" > "$scratch/git/objects/info/alternates"
export GIT_DIR="$scratch/git" GIT_WORK_TREE="$root"
cd -- "$root"
git read-tree "$1"
git -c core.bare=false -c core.excludesFile="$exclude" -c advice.addEmbeddedRepo=false add --all --ignore-errors . || :
git -c core.bare=false diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames --submodule=short \
    --src-prefix=a/ --dst-prefix=b/ "$1" -- > "$scratch/diff"
head -c "$(($2 + 1))" < "$scratch/diff"
"#;

/// $1 branch. The work tree and the index stay as they are.
const BRANCH: &str = r#"git switch --quiet --create "$1""#;

/// What git is told over every settings file when this program runs it: nothing that a repository
/// or the run's user brings along is executed, and nobody is asked for a credential.
const GIT_SETTINGS: [(&str, &str); 10] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.sshCommand", "false"),
    ("core.pager", "cat"),
    ("core.editor", ":"),
    ("core.askPass", ""),
    ("credential.helper", ""),
    ("credential.interactive", "false"),
    ("protocol.ext.allow", "never"),
    ("submodule.recurse", "false"),
];

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

/// A script of this module as a request. Settings in the environment win over those in files.
fn git_command(run: &RunId, argv: Argv, cwd: String, longest: Span) -> Result<ExecRequest, Denial> {
    let mut request = command(run, argv, cwd, longest)?;
    let env = &mut request.spec.env;
    let mut set = |name: &str, value: &str| -> Result<(), Denial> {
        env.insert(name.parse()?, value.to_owned());
        Ok(())
    };
    // The run's own programs are not ours.
    set("PATH", "/usr/local/bin:/usr/bin:/bin")?;
    set("GIT_CONFIG_GLOBAL", "/dev/null")?;
    set("GIT_ALLOW_PROTOCOL", "http:https")?;
    set("GIT_CONFIG_COUNT", &GIT_SETTINGS.len().to_string())?;
    for (nth, (name, value)) in GIT_SETTINGS.iter().enumerate() {
        set(&format!("GIT_CONFIG_KEY_{nth}"), name)?;
        set(&format!("GIT_CONFIG_VALUE_{nth}"), value)?;
    }
    Ok(request)
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
    let mut request = git_command(run, argv, WORKSPACE.to_owned(), longest)?;
    request.output_cap = 1 << 20;
    Ok(request)
}

/// Gives a copy of a run a branch of its own, from where its parent stood.
pub(crate) fn branch(run: &RunId, repo: &RepoName) -> Result<ExecRequest, Denial> {
    let argv = script(BRANCH, &[BranchName::of(run).as_str()])?;
    let mut request = git_command(run, argv, directory(Some(repo)), Span::seconds(60))?;
    request.output_cap = 1 << 20;
    Ok(request)
}

/// Shows what was changed since the base commit.
pub(crate) fn diff(run: &RunId, repo: &RepoName, base: &str) -> Result<ExecRequest, Denial> {
    let argv = script(DIFF, &[base, &DIFF_CAP.to_string()])?;
    git_command(run, argv, directory(Some(repo)), Span::seconds(120))
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
mod tests;
