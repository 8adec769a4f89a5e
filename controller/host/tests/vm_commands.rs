//! Commands and files in real QEMU guests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use axum::body::Body;
use host::{TestHost, command, exec_id, ran, spec};
use http::{Method, StatusCode};
use lazaret_api::guest::{ExecEnd, Listing};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{ByteSize, DenialCode};
use std::io::Read;

#[tokio::test]
async fn creating_twice_is_one_sandbox_and_running_twice_is_one_command() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let again = session.create(&sandbox.id, &spec()).await.unwrap();
    assert_eq!(again.boot_id, sandbox.boot_id);
    let other = lazaret_api::host::SandboxSpec {
        memory: ByteSize::mebibytes(768),
        ..spec()
    };
    assert_eq!(
        session.create(&sandbox.id, &other).await.unwrap_err().code,
        DenialCode::SpecMismatch
    );

    let (exec, request) = (
        exec_id("turn-1"),
        command(["sh", "-c", "echo once >> count; cat count"]),
    );
    let second = host.session().await;
    let (a, b) = tokio::join!(
        session.start(&sandbox.id, &exec, &request),
        second.start(&sandbox.id, &exec, &request)
    );
    assert_eq!(a.unwrap().started_at, b.unwrap().started_at);
    assert_eq!(
        ran(&session.output(&sandbox.id, &exec, true).await).stdout,
        "once\n"
    );
    assert_eq!(
        ran(&second.output(&sandbox.id, &exec, false).await).stdout,
        "once\n"
    );
    let denial = session
        .start(&sandbox.id, &exec, &command(["true"]))
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::SpecMismatch);
    session.destroy(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn a_command_goes_on_when_session_and_reader_are_gone() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let (id, exec) = (&sandbox.id, exec_id("turn-1"));
    let request = command([
        "sh",
        "-c",
        "echo begun; until [ -e go ]; do sleep 0.1; done; echo ended",
    ]);
    session.start(id, &exec, &request).await.unwrap();
    session.kill().await;
    let session = host.session().await;
    assert_eq!(
        session.inspect(id).await.unwrap().state,
        SandboxState::Ready
    );
    assert!(
        session
            .run(id, &command(["touch", "go"]))
            .await
            .exit
            .success()
    );
    let ran = ran(&session.output(id, &exec, true).await);
    assert_eq!(ran.stdout, "begun\nended\n");
    assert!(ran.exit.success());
    session.destroy(id).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_command_ends_with_all_its_children() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let (id, exec) = (&sandbox.id, exec_id("long"));
    session
        .start(
            id,
            &exec,
            &command(["sh", "-c", "sleep 4242 & sleep 4242 & touch on; wait"]),
        )
        .await
        .unwrap();
    let count = "until [ -e on ]; do :; done; cat /proc/[0-9]*/comm | grep -cx sleep";
    assert_eq!(
        session.run(id, &command(["sh", "-c", count])).await.stdout,
        "2\n"
    );
    let path = format!("/v1/sandboxes/{id}/execs/{exec}");
    for _ in 0..2 {
        let (status, _) = session
            .ask(Method::DELETE, &path, Some(1), Body::empty())
            .await;
        assert_eq!(status, StatusCode::NO_CONTENT);
    }
    assert_eq!(
        ran(&session.output(id, &exec, true).await).exit.end,
        ExecEnd::Cancelled
    );
    let gone = "while cat /proc/[0-9]*/comm 2>/dev/null | grep -qx sleep; do :; done; echo none";
    assert_eq!(
        session.run(id, &command(["sh", "-c", gone])).await.stdout,
        "none\n"
    );
    session.destroy(id).await.unwrap();
}

#[tokio::test]
async fn t67_a_guest_that_fills_its_disk_gets_no_space_and_the_host_keeps_its_own() {
    let host = TestHost::new("");
    let session = host.session().await;
    let small = lazaret_api::host::SandboxSpec {
        disk: ByteSize::mebibytes(64),
        ..spec()
    };
    let sandbox = session.ready(&small).await;
    let fill = session
        .run(
            &sandbox.id,
            &command(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=200"]),
        )
        .await;
    assert!(
        fill.stderr.contains("No space left on device"),
        "{}",
        fill.stderr
    );
    let disk = std::fs::metadata(host.sandbox_dir(&sandbox.id).join("disk.qcow2"))
        .unwrap()
        .len();
    assert!(disk < 70 << 20, "{disk} bytes on the host");
    assert!(
        session
            .run(&sandbox.id, &command(["true"]))
            .await
            .exit
            .success()
    );
    session.destroy(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn files_go_in_and_out_as_tar_streams() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let id = &sandbox.id;
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(6);
    header.set_mode(0o644);
    tar.append_data(&mut header, "in.txt", &b"hello\n"[..])
        .unwrap();
    let body = tar.into_inner().unwrap();
    let put = format!("/v1/sandboxes/{id}/files?path=&area=workspace");
    let (status, bytes) = session
        .ask(Method::PUT, &put, Some(1), Body::from(body.clone()))
        .await;
    assert!(status.is_success(), "{status} {bytes:?}");
    let (status, _) = session
        .ask(Method::PUT, &put, Some(0), Body::from(body))
        .await;
    assert_eq!(status, StatusCode::CONFLICT, "an older fence");
    let listing: Listing = session
        .get(&format!("/v1/sandboxes/{id}/list?path="))
        .await
        .unwrap();
    assert_eq!(listing.entries[0].name, "in.txt");
    assert!(
        session
            .run(id, &command(["sh", "-c", "tr a-z A-Z < in.txt > out.txt"]))
            .await
            .exit
            .success()
    );
    let (_, bytes) = session
        .ask(
            Method::GET,
            &format!("/v1/sandboxes/{id}/files?path=out.txt"),
            None,
            Body::empty(),
        )
        .await;
    let mut archive = tar::Archive::new(&bytes[..]);
    let mut text = String::new();
    archive
        .entries()
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "HELLO\n");
    let denial = session
        .get::<Listing>(&format!("/v1/sandboxes/{id}/list?path=../etc"))
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::InvalidRequest);
    session.destroy(id).await.unwrap();
}
