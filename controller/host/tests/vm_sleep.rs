//! Sandboxes that sleep and wake, in real QEMU guests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use host::{Session, TestHost, command, exec_id, new_id, runs, say, spec, until};
use lazaret_api::host::{Sandbox, SandboxSpec};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{ByteSize, DenialCode, SandboxId, Span};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

const MEMORY: &str = "memory.lz4";

async fn asleep(session: &Session, id: &SandboxId) -> Sandbox {
    let sandbox = session.sleep(id).await.unwrap();
    assert_eq!(sandbox.state, SandboxState::Asleep);
    assert!(sandbox.asleep_since.is_some());
    sandbox
}

/// By how much the guest's clock is off at least, in nanoseconds: it was read between two looks at ours.
async fn clock_off(session: &Session, id: &SandboxId) -> i128 {
    let before = jiff::Timestamp::now().as_nanosecond();
    let clock: i128 = say(session, id, "date +%s%N").await.trim().parse().unwrap();
    let after = jiff::Timestamp::now().as_nanosecond();
    (clock.clamp(before, after) - clock).abs()
}

#[tokio::test]
async fn t29_three_naps_in_a_row_lose_no_byte_of_memory_or_disk() {
    let host = TestHost::new("templates = true");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let id = &sandbox.id;
    let mut written = String::new();
    for nap in 1..=3 {
        // /dev/shm lies in memory, /workspace on the disk, and some of it in the page cache only.
        let write = format!(
            "for place in /dev/shm /workspace; do head -c 3000000 /dev/urandom > $place/{nap}; done; sha256sum /dev/shm/* /workspace/*"
        );
        written = say(&session, id, &write).await;
        assert_eq!(written.lines().count(), 2 * nap);
        let vmm = host.pid(id, "vmm");
        let shown = asleep(&session, id).await;
        assert!(!runs(vmm), "nothing of it runs");
        assert_eq!(shown.boot_id, sandbox.boot_id);
        assert!(shown.deadline.unwrap() > sandbox.deadline.unwrap());
        // Asking again changes nothing, and looking at it wakes nobody.
        assert_eq!(session.sleep(id).await.unwrap(), shown);
        for _ in 0..20 {
            assert_eq!(session.inspect(id).await.unwrap(), shown);
        }
        let refused = session.start(id, &exec_id("x-1"), &command(["true"])).await;
        assert_eq!(refused.unwrap_err().code, DenialCode::SandboxAsleep);
        let listing = format!("/v1/sandboxes/{id}/list?path=");
        let refused = session.get::<serde_json::Value>(&listing).await;
        assert_eq!(refused.unwrap_err().code, DenialCode::SandboxAsleep);

        let woken = session.wake(id, "memory").await.unwrap();
        assert_eq!(woken.state, SandboxState::Ready);
        assert_eq!(
            (woken.asleep_since, &woken.boot_id),
            (None, &sandbox.boot_id)
        );
        assert!(clock_off(&session, id).await < 1_000_000_000);
        assert!(!host.sandbox_dir(id).join(MEMORY).exists());
        assert_eq!(
            say(&session, id, "sha256sum /dev/shm/* /workspace/*").await,
            written
        );
    }
    assert!(!written.is_empty());
    session.destroy(id).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn t15_a_sandbox_at_work_does_not_fall_asleep_and_an_idle_one_does() {
    let host = TestHost::new("");
    let session = host.session().await;
    let wanted = SandboxSpec {
        idle_sleep: Some(Span::seconds(2)),
        ..spec()
    };
    let id = &session.ready(&wanted).await.id;
    let work = command([
        "sh",
        "-c",
        "until test -e /workspace/enough; do sleep 0.1; done",
    ]);
    session.start(id, &exec_id("turn-1"), &work).await.unwrap();
    let busy = session.sleep(id).await.unwrap_err();
    assert_eq!(busy.code, DenialCode::SandboxBusy);
    // It was not disturbed, and more may begin beside it.
    say(&session, id, "touch /workspace/enough").await;
    session.output(id, &exec_id("turn-1"), true).await;
    session.until(id, SandboxState::Asleep).await;
    // Whoever wakes it has it for a while.
    session.wake(id, "memory").await.unwrap();
    assert_eq!(say(&session, id, "echo here").await, "here\n");
    session.until(id, SandboxState::Asleep).await;
    session.destroy(id).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn vm06_vm07_vm09_the_ttl_counts_from_the_nap_and_not_for_one_that_is_kept() {
    let host = TestHost::new("");
    let session = host.session().await;
    let wanted = SandboxSpec {
        sleep_ttl: Span::seconds(2),
        ..spec()
    };
    let id = &session.ready(&wanted).await.id;
    assert!(session.keep(id, true).await.unwrap().kept);
    let shown = asleep(&session, id).await;
    assert_eq!(shown.deadline, None, "it may sleep for ever");
    let ttl = jiff::SignedDuration::from_secs(2);
    let nap = shown.asleep_since.unwrap();
    until("the TTL has passed", || jiff::Timestamp::now() > nap + ttl).await;
    assert_eq!(
        session.inspect(id).await.unwrap().state,
        SandboxState::Asleep
    );
    // Kept no longer, it is overdue.
    let shown = session.keep(id, false).await.unwrap();
    assert_eq!(shown.deadline, Some(nap + ttl));
    let gone = session.gone(id).await;
    assert_eq!(gone.end.unwrap().cause, EndCause::SleepTtl);
    assert!(!host.sandbox_dir(id).join(MEMORY).exists());
    assert_eq!(
        session.wake(id, "memory").await.unwrap_err().code,
        DenialCode::SandboxGone
    );
    session.destroy(id).await.unwrap();
    assert_eq!(
        session.wake(id, "memory").await.unwrap_err().code,
        DenialCode::SandboxNotFound
    );
    host.quiet().await;
}

#[tokio::test]
async fn being_asleep_does_not_use_up_the_longest_duration_and_being_kept_does_not_lengthen_it() {
    let host = TestHost::new("");
    let session = host.session().await;
    let wanted = SandboxSpec {
        max_duration: Span::seconds(40),
        ..spec()
    };
    let sandbox = session.ready(&wanted).await;
    let id = &sandbox.id;
    session.keep(id, true).await.unwrap();
    let nap = asleep(&session, id).await.asleep_since.unwrap();
    let pause = jiff::SignedDuration::from_secs(3);
    until("it has slept for a while", || {
        jiff::Timestamp::now() > nap + pause
    })
    .await;
    let woken = session.wake(id, "memory").await.unwrap();
    let later = woken
        .deadline
        .unwrap()
        .duration_since(sandbox.deadline.unwrap());
    assert!(later >= pause, "only {later} later");
    let gone = session.gone(id).await;
    let end = gone.end.unwrap();
    assert_eq!(end.cause, EndCause::RunCap);
    assert!(end.at >= sandbox.deadline.unwrap() + pause);
    session.destroy(id).await.unwrap();
    host.quiet().await;
}

/// A QEMU that does not start while a file is there.
fn moody_qemu(host: &TestHost) -> (PathBuf, PathBuf) {
    let (program, mood) = (host.state().join("qemu"), host.state().join("not-today"));
    let script = format!(
        "#!/bin/sh\nif [ -e {} ]; then echo 'not today' >&2; exit 1; fi\nexec /usr/bin/env -i qemu-system-x86_64 \"$@\"\n",
        mood.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (program, mood)
}

#[tokio::test]
async fn t31_a_wake_that_fails_can_be_tried_again_and_the_sandbox_rebooted_from_its_disk() {
    let host = TestHost::new("");
    let (qemu, mood) = moody_qemu(&host);
    host.set(&format!("qemu = {qemu:?}"));
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let id = &sandbox.id;
    say(
        &session,
        id,
        "echo disk > /workspace/a; echo memory > /dev/shm/a",
    )
    .await;
    asleep(&session, id).await;

    std::fs::write(&mood, "").unwrap();
    let denial = session.wake(id, "memory").await.unwrap_err();
    assert_eq!(denial.code, DenialCode::Internal, "{denial}");
    assert!(denial.message.contains("not today"), "{denial}");
    assert_eq!(
        session.inspect(id).await.unwrap().state,
        SandboxState::Asleep
    );
    std::fs::remove_file(&mood).unwrap();

    // One bit is another: it is not loaded, also not in part.
    let memory = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(host.sandbox_dir(id).join(MEMORY))
        .unwrap();
    let (middle, mut byte) = (memory.metadata().unwrap().len() / 2, [0]);
    memory.read_exact_at(&mut byte, middle).unwrap();
    memory.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    let denial = session.wake(id, "memory").await.unwrap_err();
    assert_eq!(denial.code, DenialCode::SavedStateUnfit, "{denial}");
    assert_eq!(
        session.inspect(id).await.unwrap().state,
        SandboxState::Asleep
    );
    // As it was, it wakes.
    memory.write_all_at(&byte, middle).unwrap();
    session.wake(id, "memory").await.unwrap();
    assert_eq!(
        say(&session, id, "cat /workspace/a /dev/shm/a").await,
        "disk\nmemory\n"
    );

    // Cut off it is of no use, and then the disk still is.
    asleep(&session, id).await;
    let saved = std::fs::OpenOptions::new()
        .write(true)
        .open(host.sandbox_dir(id).join(MEMORY))
        .unwrap();
    saved
        .set_len(saved.metadata().unwrap().len() - 100)
        .unwrap();
    let denial = session.wake(id, "memory").await.unwrap_err();
    assert_eq!(denial.code, DenialCode::SavedStateUnfit, "{denial}");
    let booted = session.wake(id, "disk").await.unwrap();
    assert_eq!(booted.state, SandboxState::Ready);
    assert_ne!(booted.boot_id, sandbox.boot_id);
    assert_eq!(
        say(&session, id, "cat /workspace/a; ls /dev/shm").await,
        "disk\n"
    );
    session.destroy(id).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn t07_whatever_is_asked_at_once_has_one_outcome() {
    let host = TestHost::new("max_sandboxes = 1");
    let session = host.session().await;
    let wanted = SandboxSpec {
        disk: ByteSize::mebibytes(64),
        ..spec()
    };
    let id = &session.ready(&wanted).await.id;
    let (a, b, c) = tokio::join!(session.sleep(id), session.sleep(id), session.sleep(id));
    assert!(
        [a, b, c]
            .into_iter()
            .all(|slept| slept.unwrap().state == SandboxState::Asleep)
    );
    // One that sleeps leaves its place to another, and does not wake without one.
    let other = session.ready(&wanted).await.id;
    let refused = session.wake(id, "memory").await.unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxCap);
    assert!(refused.retry_after.is_some());
    session.destroy(&other).await.unwrap();
    let (a, b) = tokio::join!(session.wake(id, "memory"), session.wake(id, "disk"));
    assert!(
        [a, b]
            .into_iter()
            .all(|woken| woken.unwrap().state == SandboxState::Ready)
    );
    let refused = session.create(&new_id(), &wanted).await.unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxCap);
    // Killed while it falls asleep, it is gone, whichever came first.
    let (slept, killed) = tokio::join!(session.sleep(id), session.destroy(id));
    killed.unwrap();
    if let Err(denial) = slept {
        let codes = [DenialCode::SandboxGone, DenialCode::SandboxNotFound];
        assert!(codes.contains(&denial.code), "{denial}");
    }
    host.quiet().await;
}

#[tokio::test]
async fn a_disk_that_is_too_full_to_save_to_leaves_the_sandbox_awake() {
    let wanted = SandboxSpec {
        disk: ByteSize::mebibytes(64),
        ..spec()
    };
    let free = rustix::fs::statvfs(std::env::temp_dir()).unwrap();
    let free = free.f_bavail * free.f_frsize;
    // Enough for a disk, and not for the memory.
    let least = (free >> 20) - 256;
    let host = TestHost::new(&format!("min_free_disk = \"{least}M\""));
    let session = host.session().await;
    let id = &session.ready(&wanted).await.id;
    let denial = session.sleep(id).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::DiskFull);
    assert_eq!(
        session.inspect(id).await.unwrap().state,
        SandboxState::Ready
    );
    assert_eq!(say(&session, id, "echo awake").await, "awake\n");
    session.destroy(id).await.unwrap();
    host.quiet().await;
}
