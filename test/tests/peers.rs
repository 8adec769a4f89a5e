//! The peers are what they stand for: the real clients accept them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

use lazaret_test::peers::{GitServer, NpmRegistry, PyIndex};
use std::path::Path;
use tokio::process::Command;

async fn run(program: &str, args: &[&str], cwd: &Path) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(cwd)
        .env("HOME", cwd)
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test]
async fn git_clones_from_the_git_server_what_was_committed() {
    let (server, dir) = (
        GitServer::start().await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let first = server
        .commit("acme/demo", &[("README.md", "one\n")])
        .await
        .unwrap();
    let second = server
        .commit("acme/demo", &[("src/lib.rs", "two\n")])
        .await
        .unwrap();
    let url = format!("{}acme/demo.git", server.base_url());
    run("git", &["clone", "--quiet", &url, "demo"], dir.path()).await;
    let log = run("git", &["-C", "demo", "log", "--format=%H"], dir.path()).await;
    assert_eq!(log.lines().collect::<Vec<_>>(), [second, first]);
    assert_eq!(
        std::fs::read_to_string(dir.path().join("demo/src/lib.rs")).unwrap(),
        "two\n"
    );
}

#[tokio::test]
async fn npm_installs_from_the_registry() {
    let (registry, dir) = (
        NpmRegistry::start().await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let url = format!("http://{}/", registry.address());
    run(
        "npm",
        &[
            "install",
            "--no-audit",
            "--no-fund",
            "--registry",
            &url,
            NpmRegistry::PACKAGE,
        ],
        dir.path(),
    )
    .await;
    assert_eq!(
        run("node", &["-p", "require('lazaret-demo')"], dir.path()).await,
        "42"
    );
}

#[tokio::test]
async fn pip_installs_from_the_index() {
    let (index, dir) = (
        PyIndex::start().await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let url = format!("http://{}/simple/", index.address());
    let args = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--target",
        "site",
        "--index-url",
        &url,
    ];
    run(
        "python3",
        &[&args[..], &[PyIndex::PACKAGE]].concat(),
        dir.path(),
    )
    .await;
    let program =
        "import sys; sys.path.insert(0, 'site'); import lazaret_demo; print(lazaret_demo.ANSWER)";
    assert_eq!(run("python3", &["-c", program], dir.path()).await, "42");
}
