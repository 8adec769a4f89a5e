//! The scripts, run by the git of this machine.

use super::*;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a script here as a guest would: with its environment and nothing else, but for files as
/// repositories.
fn run_in(dir: &Path, request: &ExecRequest) -> Output {
    run_over("file", dir, request)
}

/// The same over another protocol.
fn run_over(protocol: &str, dir: &Path, request: &ExecRequest) -> Output {
    let words = request.spec.argv.words();
    let command = Command::new(&words[0])
        .args(&words[1..])
        .stdin(std::process::Stdio::null())
        .env_clear()
        .envs(
            request
                .spec
                .env
                .iter()
                .map(|(name, value)| (name.as_str(), value)),
        )
        .env("GIT_ALLOW_PROTOCOL", protocol)
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
        let request = git_command(&id(), argv, "/".to_owned(), Span::seconds(60)).unwrap();
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
        &git_command(&id(), argv, "/".to_owned(), Span::seconds(60)).unwrap(),
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

#[test]
fn nothing_that_a_repository_brings_along_is_executed() {
    let outside = tempfile::tempdir().unwrap();
    let marks = outside.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    let trap = |name: &str| {
        let file = outside.path().join(name);
        let text = format!("#!/bin/sh\ntouch {}/{name}\ncat\n", marks.display());
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        file.display().to_string()
    };
    let sprung = || -> Vec<_> {
        let files = std::fs::read_dir(&marks).unwrap();
        files.map(|file| file.unwrap().file_name()).collect()
    };

    // The origin: attributes that name drivers, and a submodule whose URL is a command.
    let origin = tempfile::tempdir().unwrap();
    repository(origin.path());
    std::fs::write(
        origin.path().join(".gitattributes"),
        "* filter=trap diff=trap\n",
    )
    .unwrap();
    let modules = format!(
        "[submodule \"sub\"]\n\tpath = sub\n\turl = ext::{}\n",
        trap("submodule")
    );
    std::fs::write(origin.path().join(".gitmodules"), modules).unwrap();
    git(origin.path(), &["add", "."]);
    let link = format!("160000,{},sub", "1".repeat(40));
    git(
        origin.path(),
        &["update-index", "--add", "--cacheinfo", &link],
    );
    git(origin.path(), &["commit", "--quiet", "-m", "hostile"]);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("demo");
    let url = format!("file://{}", origin.path().display());
    let argv = script(CLONE, &[&url, dir.to_str().unwrap(), "", "lazaret/r1"]).unwrap();
    let output = run_in(
        place.path(),
        &git_command(&id(), argv, "/".to_owned(), Span::seconds(60)).unwrap(),
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let base = commit_id(&output.stdout).unwrap();
    assert!(sprung().is_empty(), "{:?}", sprung());

    // What a turned agent then writes into the clone.
    for (name, value) in [
        ("core.fsmonitor", trap("fsmonitor")),
        ("core.pager", trap("pager")),
        ("core.sshCommand", trap("ssh")),
        ("core.askPass", trap("askpass")),
        ("core.editor", trap("editor")),
        ("credential.helper", trap("credential")),
        ("diff.external", trap("external")),
        ("diff.trap.command", trap("driver")),
        ("diff.trap.textconv", trap("textconv")),
        ("filter.trap.clean", trap("clean")),
        ("filter.trap.process", trap("process")),
        ("core.hooksPath", outside.path().display().to_string()),
        ("core.alternateRefsCommand", trap("alternates")),
    ] {
        git(&dir, &["config", name, &value]);
    }
    for hook in [
        "post-index-change",
        "post-checkout",
        "reference-transaction",
    ] {
        trap(hook);
    }
    std::fs::write(dir.join("kept.txt"), "one\nmore\n").unwrap();
    let nested = dir.join("nested");
    std::fs::create_dir(&nested).unwrap();
    repository(&nested);
    git(&nested, &["config", "core.fsmonitor", &trap("nested")]);
    // Into the settings of its user, too.
    let home = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join(".git/config"), home.path().join(".gitconfig")).unwrap();
    let elsewhere = outside.path().display().to_string();
    git(&dir, &["config", "core.worktree", &elsewhere]);
    let mut request = diff(&id(), &"acme/demo".parse().unwrap(), &base).unwrap();
    let path = &request.spec.env[&"PATH".parse().unwrap()];
    assert!(!path.contains("/home"), "a git of the run's own: {path}");
    request.spec.env.insert(
        "HOME".parse().unwrap(),
        home.path().to_str().unwrap().to_owned(),
    );
    let output = run_in(&dir, &request);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("+more"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(sprung().is_empty(), "{:?}", sprung());
    assert!(!text.contains("touch "), "what lies elsewhere: {text}");

    git(&dir, &["config", "--unset", "core.worktree"]);
    // The traps do work: git without these settings runs them.
    let _ = Command::new("git")
        .args(["add", "--all"])
        .current_dir(&dir)
        .output();
    assert!(!sprung().is_empty());
}

#[test]
fn a_missing_credential_fails_the_clone_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/acme/demo.git", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let answer = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("demo");
    let argv = script(CLONE, &[&url, target.to_str().unwrap(), "", "lazaret/r1"]).unwrap();
    let mut request = git_command(&id(), argv, "/".to_owned(), Span::seconds(60)).unwrap();
    request
        .spec
        .env
        .insert("no_proxy".parse().unwrap(), "127.0.0.1".to_owned());
    let output = run_over("http", place.path(), &request);
    server.join().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("unable to get password from user"), "{said}");
}
