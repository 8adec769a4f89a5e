//! Who may talk to whom, and what may be said: against a real OpenSSH server.

use crate::common::{PATIENCE, address, ground, lines, link, links, name, quick, set_mode};
use lazaret_domain::DenialCode;
use lazaret_services::ports::host_link::{HostLinks, LinkState};
use std::path::Path;
use tokio::process::Command;

async fn keygen(path: &Path) {
    let done = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .status()
        .await
        .unwrap();
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_key_is_refused_and_nothing_is_asked_of_that_host() {
    let ground = ground().await;
    let mut address = address(&ground);
    let log = ground.host().unwrap().sshd.log().to_owned();
    let pinned = address.host_key.clone();
    let other = ground.dir().join("other");
    keygen(&other).await;
    let shown = Command::new("ssh-keygen")
        .arg("-lf")
        .arg(&other)
        .output()
        .await
        .unwrap();
    address.host_key = String::from_utf8(shown.stdout)
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    assert_ne!(address.host_key, pinned);

    let link = links(&ground.host().unwrap().client_key, quick()).connect(&name(), &address);
    let denial = link.sandboxes().await.unwrap_err();
    assert_eq!(denial.code, DenialCode::HostKeyMismatch, "{denial}");
    assert!(
        matches!(&*link.state().borrow(), LinkState::Down { reason, .. } if reason.code == DenialCode::HostKeyMismatch)
    );
    drop(link);
    // Our key was not even offered, and nothing was run.
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("publickey"), "{log}");
    assert!(!ground.state().join("commands").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_wellformed_pin_nothing_is_dialled() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    keygen(&key).await;
    for pin in ["", "*", "SHA256:", "MD5:00:11"] {
        let address = lazaret_services::ports::host_link::HostAddress {
            user: "nobody".into(),
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
            host_key: pin.into(),
        };
        let link = links(&key, quick()).connect(&name(), &address);
        assert_eq!(
            link.info().await.unwrap_err().code,
            DenialCode::HostKeyMismatch,
            "{pin:?}"
        );
    }
    assert!(futures::FutureExt::now_or_never(listener.accept()).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_the_host_does_not_know_is_refused_by_name() {
    let ground = ground().await;
    let stranger = ground.dir().join("stranger");
    keygen(&stranger).await;
    let link = links(&stranger, quick()).connect(&name(), &address(&ground));
    assert_eq!(
        link.sandboxes().await.unwrap_err().code,
        DenialCode::HostRefused
    );
    assert!(!ground.state().join("commands").exists());
}

/// SSH-13: the same key that runs the two programs runs nothing else, and opens nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_key_runs_the_forced_command_and_nothing_else() {
    let ground = ground().await;
    let host = ground.host().unwrap();
    let ssh = |more: &[&str]| {
        let mut command = Command::new("ssh");
        command
            .args([
                "-F",
                "/dev/null",
                "-o",
                "BatchMode=yes",
                "-o",
                "StrictHostKeyChecking=no",
            ])
            .args([
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "IdentitiesOnly=yes",
                "-o",
                "LogLevel=ERROR",
                "-i",
            ])
            .arg(&host.client_key)
            .arg("-p")
            .arg(ground.port().to_string())
            .arg(format!("{}@127.0.0.1", host.account.name))
            .args(more)
            .stdin(std::process::Stdio::null());
        command
    };
    for hostile in [
        "id",
        "session; id",
        "session id",
        "sh -c id",
        "$(id)",
        "../session",
        "scp -f /etc/passwd",
    ] {
        let output = ssh(&[hostile]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(126), "{hostile}");
        assert!(
            !String::from_utf8_lossy(&output.stdout).contains("uid="),
            "{hostile}"
        );
    }
    let shell = ssh(&[]).output().await.unwrap();
    assert_eq!(shell.status.code(), Some(126));
    let commands = lines(&ground, "commands", |lines| lines.len() == 8).await;
    assert!(
        commands[1].starts_with("\"session; id\""),
        "the text arrived whole: {commands:?}"
    );
    // The same key opens no port, and no subsystem.
    let forward = ssh(&[
        "-N",
        "-o",
        "ExitOnForwardFailure=yes",
        "-R",
        "0:127.0.0.1:1",
    ])
    .output()
    .await
    .unwrap();
    assert!(!forward.status.success());
    // It does run what it is for.
    assert_eq!(link(&ground).sandboxes().await.unwrap(), []);
}

/// SSH-09: the account is no root, and in no group but its own and `kvm`.
#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_account_is_unprivileged() {
    let ground = ground().await;
    let account = &ground.host().unwrap().account;
    assert_ne!(account.uid, 0);
    if !account.is_ours() {
        let groups = Command::new("id")
            .args(["-nG", &account.name])
            .output()
            .await
            .unwrap();
        for group in String::from_utf8(groups.stdout).unwrap().split_whitespace() {
            assert!(group == account.name || group == "kvm", "{group}");
        }
        // It can run its program and not change it, nor let another key in.
        for path in ["bin", "bin/lazaret", "ssh", "ssh/authorized_keys", "keys"] {
            let path = ground.state().parent().unwrap().join(path);
            let metadata = std::fs::metadata(&path).unwrap();
            let mode = std::os::unix::fs::MetadataExt::mode(&metadata);
            assert_eq!(
                std::os::unix::fs::MetadataExt::uid(&metadata),
                0,
                "{path:?}"
            );
            assert_eq!(mode & 0o022, 0, "{path:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_hosts_program_says_when_it_fails_is_in_the_reason() {
    let ground = ground().await;
    set_mode(&ground, "die");
    let link = link(&ground);
    let denial = tokio::time::timeout(PATIENCE, link.sandboxes())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::HostRefused);
    assert!(
        denial
            .message
            .contains("status 3: the state directory is damaged"),
        "{denial}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_another_generation_is_refused_by_name() {
    let ground = ground().await;
    set_mode(&ground, "old");
    let denial = link(&ground).sandboxes().await.unwrap_err();
    assert_eq!(denial.code, DenialCode::HostVersion);
    assert!(denial.message.contains("generation 99"), "{denial}");
}
