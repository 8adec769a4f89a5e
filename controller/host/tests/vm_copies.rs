//! Copies of sandboxes that run, in real QEMU guests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use host::{Session, TestHost, command, exec_id, new_id, say, spec};
use lazaret_api::guest::ExecEnd;
use lazaret_api::host::{Sandbox, SandboxSpec};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{ByteSize, DenialCode, SandboxId};
use std::collections::BTreeSet;

/// Copies that are ready.
async fn copies<const N: usize>(session: &Session, source: &SandboxId) -> [Sandbox; N] {
    let ids = [(); N].map(|()| new_id());
    let copied = session.copies(source, &ids).await.unwrap();
    assert!(copied.pause_ms.is_some());
    let mut ready = Vec::new();
    for id in &ids {
        let sandbox = session.settled(id).await;
        assert_eq!(sandbox.state, SandboxState::Ready, "{:?}", sandbox.end);
        ready.push(sandbox);
    }
    ready.try_into().unwrap()
}

/// How many layers of disks the host holds.
fn layers(host: &TestHost) -> usize {
    std::fs::read_dir(host.state().join("layers"))
        .unwrap()
        .count()
}

#[tokio::test]
async fn t30_copies_are_of_one_moment_and_the_source_goes_on() {
    let host = TestHost::new("templates = true\nmax_sandboxes = 16");
    let session = host.session().await;
    let source = &session.ready(&spec()).await;
    let write = "echo disk > /workspace/a; echo memory > /dev/shm/a; head -c 2000000 /dev/urandom > /workspace/b; sha256sum < /workspace/b";
    let digest = say(&session, &source.id, write).await;
    // Something is at work while it is copied, with a connection to the outside of it.
    let work = command([
        "sh",
        "-c",
        "n=0; until test -e /workspace/enough; do n=$((n+1)); echo $n > /workspace/n; done; echo $n",
    ]);
    session
        .start(&source.id, &exec_id("turn-1"), &work)
        .await
        .unwrap();

    let [one, two] = copies(&session, &source.id).await;
    let shown = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1";
    let mut said = BTreeSet::new();
    for sandbox in [source, &one, &two] {
        let text = say(&session, &sandbox.id, shown).await;
        assert_eq!(text.lines().next(), Some(sandbox.id.as_str()));
        assert!(text.contains(sandbox.boot_id.as_deref().unwrap()), "{text}");
        for line in text.lines() {
            assert!(said.insert(line.to_owned()), "{line} was said before");
        }
        let before = jiff::Timestamp::now().as_nanosecond();
        let clock = say(&session, &sandbox.id, "date +%s%N").await;
        let clock: i128 = clock.trim().parse().unwrap();
        let after = jiff::Timestamp::now().as_nanosecond();
        let off = (clock.clamp(before, after) - clock).abs();
        assert!(off < 1_000_000_000, "the clock is off by {off} ns");
        let same = "cat /workspace/a /dev/shm/a; sha256sum < /workspace/b";
        assert_eq!(
            say(&session, &sandbox.id, same).await,
            format!("disk\nmemory\n{digest}")
        );
    }
    for copy in [&one, &two] {
        assert_eq!(copy.spec.copy_of.as_ref(), Some(&source.id));
        assert!(copy.stages.forked);
        // What ran belongs to the source, and stands still in the copy.
        let still = "a=$(cat /workspace/n); sleep 0.3; test $a = $(cat /workspace/n); ps -u agent -o comm= | grep -cx sleep || true";
        say(&session, &copy.id, still).await;
    }
    // Each has a disk of its own from here on.
    say(&session, &one.id, "echo one > /workspace/a; sync").await;
    say(&session, &source.id, "echo source > /workspace/a; sync").await;
    assert_eq!(say(&session, &two.id, "cat /workspace/a").await, "disk\n");
    assert_eq!(say(&session, &one.id, "cat /workspace/a").await, "one\n");
    // The source did not notice.
    say(&session, &source.id, "touch /workspace/enough").await;
    let done = host::ran(&session.output(&source.id, &exec_id("turn-1"), true).await);
    assert_eq!((done.exit.end, done.exit.code), (ExecEnd::Exited, Some(0)));

    // Without its source a copy goes on, sleeps and wakes; the layers go with the last of them.
    session.destroy(&source.id).await.unwrap();
    session.sleep(&one.id).await.unwrap();
    session.wake(&one.id, "memory").await.unwrap();
    assert_eq!(
        say(
            &session,
            &one.id,
            "cat /workspace/a; sha256sum < /workspace/b"
        )
        .await,
        format!("one\n{digest}")
    );
    session.destroy(&one.id).await.unwrap();
    assert!(layers(&host) > 0);
    session.destroy(&two.id).await.unwrap();
    host.quiet().await;
    session.get::<Vec<Sandbox>>("/v1/sandboxes").await.unwrap();
    assert_eq!(layers(&host), 0);
}

#[tokio::test]
async fn a_copy_of_a_copy_and_a_second_copy_hold_what_was_there_then() {
    let host = TestHost::new("max_sandboxes = 16");
    let session = host.session().await;
    let source = session.ready(&spec()).await.id;
    say(&session, &source, "echo 1 > /workspace/1; sync").await;
    let [first] = copies(&session, &source).await;
    say(&session, &source, "echo 2 > /workspace/2; sync").await;
    let [second] = copies(&session, &source).await;
    say(&session, &first.id, "echo 3 > /workspace/3; sync").await;
    let [child] = copies(&session, &first.id).await;
    // The source sleeps and boots from a disk that has layers now.
    session.sleep(&source).await.unwrap();
    let refused = session.copies(&source, &[new_id()]).await.unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxAsleep);
    session.wake(&source, "disk").await.unwrap();
    session.destroy(&first.id).await.unwrap();
    for (id, files) in [
        (&source, "1\n2\n"),
        (&second.id, "1\n2\n"),
        (&child.id, "1\n3\n"),
    ] {
        let there = say(&session, id, "ls /workspace").await;
        assert_eq!(there, files, "{id}");
        session.destroy(id).await.unwrap();
    }
    host.quiet().await;
    assert_eq!(layers(&host), 0);
}

#[tokio::test]
async fn what_cannot_be_copied_is_refused_and_the_source_goes_on() {
    let host = TestHost::new("max_sandboxes = 2");
    let session = host.session().await;
    let wanted = SandboxSpec {
        disk: ByteSize::mebibytes(64),
        ..spec()
    };
    let sandbox = session.ready(&wanted).await;
    let (id, copy) = (&sandbox.id, new_id());
    let cases: [(&SandboxId, Vec<SandboxId>, DenialCode); 5] = [
        (id, vec![], DenialCode::InvalidRequest),
        (
            id,
            vec![copy.clone(), copy.clone()],
            DenialCode::InvalidRequest,
        ),
        (id, vec![id.clone()], DenialCode::InvalidRequest),
        (&copy, vec![new_id()], DenialCode::SandboxNotFound),
        // None are made where not all have a place.
        (id, vec![new_id(), new_id()], DenialCode::SandboxCap),
    ];
    for (source, into, code) in cases {
        let denial = session.copies(source, &into).await.unwrap_err();
        assert_eq!(denial.code, code, "{into:?}: {denial}");
    }
    assert_eq!(
        session
            .get::<Vec<Sandbox>>("/v1/sandboxes")
            .await
            .unwrap()
            .len(),
        1
    );
    // A disk lies in so many layers at most.
    let layers = host.sandbox_dir(id).join("layers");
    std::fs::create_dir(&layers).unwrap();
    for number in 0..32 {
        std::fs::write(layers.join(number.to_string()), "").unwrap();
    }
    let denial = session.copies(id, &[new_id()]).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::TooManyLayers);
    std::fs::remove_dir_all(&layers).unwrap();
    // A copy comes into being in no other way, and asking again finds it.
    let denial = session.create(&copy, &wanted.copied(id)).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::SandboxGone);
    session
        .copies(id, std::slice::from_ref(&copy))
        .await
        .unwrap();
    let again = session
        .copies(id, std::slice::from_ref(&copy))
        .await
        .unwrap();
    assert_eq!(again.pause_ms, None, "the source is not disturbed again");
    assert_eq!(
        session.create(&copy, &wanted.copied(id)).await.unwrap().id,
        copy
    );
    assert_eq!(session.settled(&copy).await.state, SandboxState::Ready);
    assert_eq!(say(&session, id, "echo on").await, "on\n");
    for id in [id, &copy] {
        session.destroy(id).await.unwrap();
    }
    host.quiet().await;
}
