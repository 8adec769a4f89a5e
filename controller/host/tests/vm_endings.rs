//! How sandboxes end when nobody asked them to: always with a cause, never with something left.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use host::{TestHost, command, exec_id, new_id, ran, runs, spec, until};
use lazaret_api::guest::ExecEnd;
use lazaret_api::host::{Exec, SandboxSpec};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{DenialCode, Span};
use rustix::process::Signal;

#[tokio::test]
async fn killing_the_shim_takes_the_vm_along() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let id = &sandbox.id;
    let exec = exec_id("turn-1");
    session
        .start(id, &exec, &command(["sh", "-c", "echo begun; sleep 4242"]))
        .await
        .unwrap();
    let part = host
        .sandbox_dir(id)
        .join("execs/turn-1/part-00000000000000000000");
    let begun = || std::fs::metadata(&part).is_ok_and(|meta| meta.len() > 0);
    until("the command has written", begun).await;
    let (shim, vmm) = (host.pid(id, "shim"), host.pid(id, "vmm"));
    host::signal(shim, Signal::KILL);
    until("QEMU ends with its shim", || !runs(vmm)).await;
    let sandbox = session.gone(id).await;
    assert_eq!(sandbox.end.as_ref().unwrap().cause, EndCause::ShimDied);
    assert_eq!(
        session.inspect(id).await.unwrap().end,
        sandbox.end,
        "the end is told the same way every time"
    );
    // What the command wrote until then is there, and its end says why.
    let ran = ran(&session.output(id, &exec, true).await);
    assert_eq!(
        (ran.stdout.as_str(), ran.exit.end),
        ("begun\n", ExecEnd::SandboxEnded)
    );
    let denial = session
        .start(id, &exec_id("turn-2"), &command(["true"]))
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::SandboxGone);
    session.destroy(id).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn killing_qemu_ends_the_sandbox_with_a_cause() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let id = &sandbox.id;
    let exec = exec_id("turn-1");
    session
        .start(id, &exec, &command(["sleep", "4242"]))
        .await
        .unwrap();
    let follow = session.output(id, &exec, true);
    let kill = async { host::signal(host.pid(id, "vmm"), Signal::KILL) };
    let (output, ()) = tokio::join!(follow, kill);
    assert_eq!(
        ran(&output).exit.end,
        ExecEnd::SandboxEnded,
        "who follows is told"
    );
    let end = session.gone(id).await.end.unwrap();
    assert_eq!(end.cause, EndCause::VmmDied);
    assert!(end.detail.contains("signal: 9"), "{}", end.detail);
    host.quiet().await;
    let noted: Exec = session
        .get(&format!("/v1/sandboxes/{id}/execs/{exec}"))
        .await
        .unwrap();
    assert_eq!(noted.exit.unwrap().end, ExecEnd::SandboxEnded);
    assert!(
        !host.sandbox_dir(id).join("disk.qcow2").exists(),
        "a gone sandbox keeps no disk"
    );
    session.destroy(id).await.unwrap();
}

/// The kernel is told to panic when memory runs out, which an unprivileged command can bring about.
#[tokio::test]
async fn a_guest_that_panics_ends_with_guest_panic() {
    let host = TestHost::new("kernel_args = \"sysctl.vm.panic_on_oom=2\"");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let eat = "a = []\nwhile True: a.append(bytearray(16 << 20))";
    session
        .start(
            &sandbox.id,
            &exec_id("eat"),
            &command(["python3", "-c", eat]),
        )
        .await
        .unwrap();
    let end = session.gone(&sandbox.id).await.end.unwrap();
    assert_eq!(end.cause, EndCause::GuestPanic, "{}", end.detail);
    assert!(end.detail.contains("Kernel panic"), "{}", end.detail);
    session.destroy(&sandbox.id).await.unwrap();
    host.quiet().await;
}

/// The kernel is told to print every crash, and the allowance is set low.
#[tokio::test]
async fn a_flooded_console_ends_the_sandbox() {
    let host = TestHost::new(
        "kernel_args = \"loglevel=8 sysctl.kernel.printk_ratelimit=0\"\nconsole_budget = \"48K\"\nconsole_window = \"1h\"",
    );
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let crash =
        "import os, ctypes\nwhile True:\n if os.fork() == 0: ctypes.string_at(0)\n os.wait()";
    session
        .start(
            &sandbox.id,
            &exec_id("crash"),
            &command(["python3", "-c", crash]),
        )
        .await
        .unwrap();
    let end = session.gone(&sandbox.id).await.end.unwrap();
    assert_eq!(end.cause, EndCause::ConsoleFlood, "{}", end.detail);
    session.destroy(&sandbox.id).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn the_run_cap_ends_a_sandbox_with_no_controller_connected() {
    let host = TestHost::new("");
    let session = host.session().await;
    let id = new_id();
    let short = SandboxSpec {
        max_duration: Span::seconds(1),
        ..spec()
    };
    session.create(&id, &short).await.unwrap();
    session.kill().await;
    host.quiet().await;
    let session = host.session().await;
    let sandbox = session.inspect(&id).await.unwrap();
    assert_eq!(
        (sandbox.state, sandbox.end.unwrap().cause),
        (SandboxState::Gone, EndCause::RunCap)
    );
    session.destroy(&id).await.unwrap();
}

#[tokio::test]
async fn a_guest_that_hangs_is_ended_as_unreachable() {
    let host = TestHost::new("health_every = \"100ms\"\nhealth_deadline = \"2s\"");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    host::signal(host.pid(&sandbox.id, "vmm"), Signal::STOP);
    let end = session.gone(&sandbox.id).await.end.unwrap();
    assert_eq!(end.cause, EndCause::GuestUnreachable, "{}", end.detail);
    host.quiet().await;
    session.destroy(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn a_guest_that_does_not_come_up_is_tried_again_and_given_up() {
    let host = TestHost::new("");
    let session = host.session().await;
    let id = new_id();
    let hasty = SandboxSpec {
        boot_deadline: "300ms".parse().unwrap(),
        boot_tries: 2,
        copy_of: None,
        idle_sleep: None,
        sleep_ttl: lazaret_api::host::default_sleep_ttl(),
        ..spec()
    };
    session.create(&id, &hasty).await.unwrap();
    let sandbox = session.gone(&id).await;
    let end = sandbox.end.unwrap();
    assert_eq!(
        (end.cause, sandbox.stages.tries),
        (EndCause::BootFailed, 2),
        "{}",
        end.detail
    );
    host.quiet().await;
    session.destroy(&id).await.unwrap();
}

#[tokio::test]
async fn a_shim_that_is_told_to_stop_ends_in_order() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let vmm = host.pid(&sandbox.id, "vmm");
    host::signal(host.pid(&sandbox.id, "shim"), Signal::TERM);
    let end = session.gone(&sandbox.id).await.end.unwrap();
    assert_eq!(end.cause, EndCause::ShimDied);
    assert!(end.detail.contains("told to stop"), "{}", end.detail);
    assert!(!runs(vmm));
    session.destroy(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_whose_records_are_gone_is_ended_all_the_same() {
    let host = TestHost::new("");
    let session = host.session().await;
    let erased = session.ready(&spec()).await;
    let damaged = session.ready(&spec()).await;
    std::fs::remove_dir_all(host.sandbox_dir(&erased.id)).unwrap();
    session.sleep(&damaged.id).await.unwrap();
    std::fs::write(host.sandbox_dir(&damaged.id).join("shim.json"), "?").unwrap();
    for sandbox in [erased, damaged] {
        session.destroy(&sandbox.id).await.unwrap();
    }
    host.quiet().await;
}

#[tokio::test]
async fn a_new_session_removes_what_a_dead_sandbox_saved_and_nothing_of_a_living_one() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    session.sleep(&sandbox.id).await.unwrap();
    let dir = host.sandbox_dir(&sandbox.id);
    let known = std::fs::read(dir.join("shim.json")).unwrap();
    std::fs::write(dir.join("shim.json"), "?").unwrap();
    let next = host.session().await;
    next.get::<serde_json::Value>("/v1/info").await.unwrap();
    std::fs::write(dir.join("shim.json"), known).unwrap();
    let woken = next.wake(&sandbox.id, "memory").await.unwrap();
    assert_eq!(woken.state, SandboxState::Ready);

    next.sleep(&sandbox.id).await.unwrap();
    let saved = ["memory.lz4", "disk.qcow2"].map(|name| dir.join(name));
    assert!(saved.iter().all(|file| file.exists()));
    let shim = host.pid(&sandbox.id, "shim");
    host::signal(shim, Signal::KILL);
    until("the shim is dead", || !runs(shim)).await;
    let last = host.session().await;
    last.get::<serde_json::Value>("/v1/info").await.unwrap();
    assert!(saved.iter().all(|file| !file.exists()));
    let gone = last.gone(&sandbox.id).await;
    assert_eq!(gone.end.unwrap().cause, EndCause::ShimDied);
    next.destroy(&sandbox.id).await.unwrap();
    host.quiet().await;
}
