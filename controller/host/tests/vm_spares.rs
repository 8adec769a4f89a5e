//! Spares: forks that are up before a sandbox is asked for, in real QEMU guests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use host::{Session, TestHost, new_id, say, signal, spec, until};
use lazaret_api::host::{Sandbox, Template, TemplateSpec};
use lazaret_domain::sandbox::SandboxState;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::PathBuf;

const SPARES: &str = "templates = true\nspares = 1\nmax_sandboxes = 16";

/// The spares that can be claimed.
fn spares(host: &TestHost) -> Vec<PathBuf> {
    std::fs::read_dir(host.state().join("spares"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|dir| dir.join("offer.json").exists())
        .collect()
}

/// A host with a template, a first sandbox forked from it, and a spare that is ready since.
async fn with_spare() -> (TestHost, Session, Sandbox) {
    let host = TestHost::new(SPARES);
    let session = host.session().await;
    let _: Template = session
        .put("/v1/templates", &TemplateSpec::of(&spec()))
        .await
        .unwrap();
    let first = session.ready(&spec()).await;
    assert!(
        first.stages.forked && !first.stages.spare,
        "{:?}",
        first.stages
    );
    until("a spare", || spares(&host).len() == 1).await;
    (host, session, first)
}

/// Processes of spares.
fn processes(host: &TestHost) -> Vec<i32> {
    let all = host.processes().into_iter();
    all.filter(|(_, line)| line.contains("--spare") || line.contains("/spares/"))
        .map(|(pid, _)| pid)
        .collect()
}

#[tokio::test]
async fn a_spare_becomes_a_sandbox_like_any_other_and_another_takes_its_place() {
    let (host, session, first) = with_spare().await;
    let spare = spares(&host).remove(0);
    let second = session.ready(&spec()).await;
    assert!(
        second.stages.spare && second.stages.forked,
        "{:?}",
        second.stages
    );
    assert!(!spare.exists(), "it moved");

    // It has an identity and a network of its own, and nothing that runs from before.
    let shown = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1; \
                 python3 -c 'import uuid; print(uuid.uuid4())'";
    let said = [
        say(&session, &first.id, shown).await,
        say(&session, &second.id, shown).await,
    ];
    assert_eq!(said[1].lines().next(), Some(second.id.as_str()));
    assert!(said[1].contains(second.boot_id.as_deref().unwrap()));
    let lines: BTreeSet<_> = said.iter().flat_map(|text| text.lines()).collect();
    assert_eq!(
        lines.len(),
        said.iter().map(|text| text.lines().count()).sum::<usize>()
    );
    let resolved = say(&session, &second.id, "getent hosts gateway.lazaret").await;
    assert!(resolved.contains("198.19.255.1"), "{resolved}");
    let agents = say(
        &session,
        &second.id,
        "ps -u agent -o args= | grep -v -e ps -e sh -e grep || true",
    )
    .await;
    assert_eq!(agents, "");

    // Its disk and memory survive a nap, and it can be copied: nothing holds on to where it was.
    say(
        &session,
        &second.id,
        "echo kept > /workspace/a; echo kept > /dev/shm/a",
    )
    .await;
    session.sleep(&second.id).await.unwrap();
    session.wake(&second.id, "memory").await.unwrap();
    let both = "cat /workspace/a /dev/shm/a";
    assert_eq!(say(&session, &second.id, both).await, "kept\nkept\n");
    until("another spare", || spares(&host).len() == 1).await;
    let third = session.ready(&spec()).await;
    assert!(third.stages.spare, "{:?}", third.stages);
    say(
        &session,
        &third.id,
        "echo copied > /workspace/a; echo copied > /dev/shm/a",
    )
    .await;
    let copy = new_id();
    session
        .copies(&third.id, std::slice::from_ref(&copy))
        .await
        .unwrap();
    let copied = session.settled(&copy).await;
    assert_eq!(copied.state, SandboxState::Ready, "{:?}", copied.end);
    assert_eq!(say(&session, &copy, both).await, "copied\ncopied\n");
    assert_eq!(say(&session, &third.id, both).await, "copied\ncopied\n");

    for id in [first.id, second.id, third.id, copy] {
        session.destroy(&id).await.unwrap();
    }
    // A spare is its session's, and a sandbox that was one is not.
    assert!(session.close().await.success());
    host.quiet().await;
    until("the spare's directory is gone", || spares(&host).is_empty()).await;
}

#[tokio::test]
async fn of_many_that_are_asked_for_at_once_one_gets_the_spare() {
    let (_host, session, first) = with_spare().await;
    let wanted = spec();
    let all = futures::future::join_all((0..4).map(|_| session.ready(&wanted))).await;
    assert_eq!(all.iter().filter(|sandbox| sandbox.stages.spare).count(), 1);
    let boots: BTreeSet<_> = all
        .iter()
        .chain([&first])
        .map(|one| one.boot_id.clone().unwrap())
        .collect();
    assert_eq!(boots.len(), 5);
    for sandbox in all.iter().chain([&first]) {
        assert_eq!(
            say(&session, &sandbox.id, "hostname").await.trim(),
            sandbox.id.as_str()
        );
        session.destroy(&sandbox.id).await.unwrap();
    }
}

#[tokio::test]
async fn spares_end_with_their_session_and_the_sandbox_of_one_does_not() {
    let (host, session, first) = with_spare().await;
    let second = session.ready(&spec()).await;
    assert!(second.stages.spare, "{:?}", second.stages);
    until("another spare", || spares(&host).len() == 1).await;
    session.kill().await;
    until("the spare's processes are gone", || {
        processes(&host).is_empty()
            || processes(&host).iter().all(|pid| {
                [host.pid(&second.id, "shim"), host.pid(&second.id, "vmm")].contains(pid)
            })
    })
    .await;
    until("the spare's directory is gone", || spares(&host).is_empty()).await;
    let next = host.session().await;
    for sandbox in [first, second] {
        assert_eq!(say(&next, &sandbox.id, "echo fine").await, "fine\n");
        next.destroy(&sandbox.id).await.unwrap();
    }
    assert!(next.close().await.success());
    host.quiet().await;
}

#[tokio::test]
async fn a_spare_that_does_not_confirm_its_adoption_is_destroyed_and_the_sandbox_forked() {
    let (host, session, first) = with_spare().await;
    let dir = spares(&host).remove(0);
    let vmm: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("vmm.json")).unwrap()).unwrap();
    let vmm = i32::try_from(vmm["pid"].as_i64().unwrap()).unwrap();
    signal(vmm, Signal::STOP);
    let second = session.ready(&spec()).await;
    assert!(
        second.stages.forked && !second.stages.spare,
        "{:?}",
        second.stages
    );
    assert_eq!(say(&session, &second.id, "echo fine").await, "fine\n");
    assert!(!host::runs(vmm));
    for sandbox in [first, second] {
        session.destroy(&sandbox.id).await.unwrap();
    }
    assert!(session.close().await.success());
    host.quiet().await;
}

#[tokio::test]
async fn a_spare_that_was_killed_is_passed_over_and_cleared_away() {
    let (host, session, first) = with_spare().await;
    let dir = spares(&host).remove(0);
    let shim: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("shim.json")).unwrap()).unwrap();
    signal(
        i32::try_from(shim["pid"].as_i64().unwrap()).unwrap(),
        Signal::KILL,
    );
    until("it is dead", || processes(&host).is_empty()).await;
    let second = session.ready(&spec()).await;
    assert!(
        second.stages.forked && !second.stages.spare,
        "{:?}",
        second.stages
    );
    for sandbox in [first, second] {
        session.destroy(&sandbox.id).await.unwrap();
    }
    assert!(session.close().await.success());
    let next = host.session().await;
    next.get::<serde_json::Value>("/v1/info").await.unwrap();
    until("its directory is gone", || !dir.exists()).await;
    drop(next);
}
