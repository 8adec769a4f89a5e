//! What a host refuses, before anything exists: no guest is booted here.
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
use host::{TestHost, new_id, spec};
use http::{Method, StatusCode};
use lazaret_api::host::{Sandbox, SandboxSpec};
use lazaret_domain::{ByteSize, Denial, DenialCode};
use std::process::{Command, Stdio};

#[tokio::test]
async fn out_of_form_is_refused_and_leaves_nothing() {
    let host = TestHost::new("max_memory = \"1G\"");
    let session = host.session().await;
    let whole = serde_json::to_value(spec()).unwrap();
    let edit = |field: &str, value: serde_json::Value| {
        let mut spec = whole.clone();
        spec[field] = value;
        Body::from(spec.to_string())
    };
    let cases = [
        (edit("mode", "bare".into()), DenialCode::InvalidRequest),
        (edit("memory", "lots".into()), DenialCode::InvalidRequest),
        (edit("memory", "2G".into()), DenialCode::InvalidSize),
        (edit("memory", "1M".into()), DenialCode::InvalidSize),
        (edit("disk", "1K".into()), DenialCode::InvalidSize),
        (edit("cpus", 64.into()), DenialCode::InvalidCpus),
        (edit("cpus", 0.into()), DenialCode::InvalidRequest),
        (
            edit("max_duration", "0s".into()),
            DenialCode::InvalidRequest,
        ),
        (edit("boot_tries", 0.into()), DenialCode::InvalidRequest),
        (edit("image", "../../etc".into()), DenialCode::ImageMissing),
        (
            edit("image", "0".repeat(64).into()),
            DenialCode::ImageMissing,
        ),
        (Body::from("{"), DenialCode::InvalidRequest),
        (Body::from(vec![b' '; 2 << 20]), DenialCode::TooLarge),
    ];
    for (body, code) in cases {
        let (_, bytes) = session
            .ask(
                Method::PUT,
                &format!("/v1/sandboxes/{}", new_id()),
                Some(1),
                body,
            )
            .await;
        let denial: Denial = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(denial.code, code, "{denial}");
    }
    for id in [
        "..",
        "%2e%2e",
        "s",
        "s0123456789abcdeF",
        "r0123456789abcdef",
        "a;b",
        "%00",
    ] {
        for method in [Method::GET, Method::DELETE] {
            let (status, bytes) = session
                .ask(
                    method,
                    &format!("/v1/sandboxes/{id}"),
                    Some(1),
                    Body::empty(),
                )
                .await;
            assert!(status.is_client_error(), "{id}: {status} {bytes:?}");
        }
    }
    let (status, bytes) = session
        .ask(
            Method::PUT,
            &format!("/v1/sandboxes/{}", new_id()),
            None,
            edit("cpus", 1.into()),
        )
        .await;
    assert_eq!(
        status,
        StatusCode::BAD_REQUEST,
        "without a fence: {bytes:?}"
    );
    assert_eq!(
        session.get::<Vec<Sandbox>>("/v1/sandboxes").await.unwrap(),
        []
    );
    assert_eq!(
        std::fs::read_dir(host.state().join("sandboxes"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(host.processes(), []);
}

#[tokio::test]
async fn an_altered_image_is_refused() {
    let host = TestHost::new("");
    let wanted = spec();
    // A copy in which one byte differs.
    let images = host.state().join("images");
    let copy = images.join(&wanted.image);
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(host::images().join(&wanted.image))
        .unwrap()
        .flatten()
    {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let mut initrd = std::fs::read(copy.join("initrd")).unwrap();
    initrd[0] ^= 1;
    std::fs::write(copy.join("initrd"), initrd).unwrap();
    let settings = format!("images_dir = {images:?}\n");
    std::fs::write(host.state().join("host.toml"), settings).unwrap();
    let session = host.session().await;
    let denial = session.create(&new_id(), &wanted).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::ImageAltered);
    assert_eq!(
        std::fs::read_dir(host.state().join("sandboxes"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn a_missing_vmm_or_a_full_disk_is_refused_with_the_cause() {
    let host = TestHost::new("");
    host.set("qemu = \"/nowhere/qemu\"");
    let session = host.session().await;
    let denial = session.create(&new_id(), &spec()).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::VmmMissing);
    let info: lazaret_api::host::HostInfo = session.get("/v1/info").await.unwrap();
    assert_eq!(info.vmm.unwrap_err().code, DenialCode::VmmMissing);

    let host = TestHost::new("");
    let text = std::fs::read_to_string(host.state().join("host.toml")).unwrap();
    let text = text.replace("min_free_disk = \"64M\"", "min_free_disk = \"1000T\"");
    std::fs::write(host.state().join("host.toml"), text).unwrap();
    let session = host.session().await;
    let denial = session.create(&new_id(), &spec()).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::DiskFull);
    assert!(denial.retry_after.is_some());
    assert_eq!(
        std::fs::read_dir(host.state().join("sandboxes"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn t70_two_sessions_cannot_both_take_the_last_place() {
    let host = TestHost::new("max_sandboxes = 1");
    let (one, two) = (host.session().await, host.session().await);
    let (a, b, wanted) = (new_id(), new_id(), spec());
    let (first, second) = tokio::join!(one.create(&a, &wanted), two.create(&b, &wanted));
    let outcomes = [(a, first), (b, second)];
    let refused: Vec<_> = outcomes
        .iter()
        .filter_map(|(_, outcome)| outcome.as_ref().err())
        .collect();
    assert_eq!(refused.len(), 1, "exactly one of them gets the place");
    assert_eq!(refused[0].code, DenialCode::SandboxCap);
    assert!(refused[0].retry_after.is_some());
    for (id, _) in &outcomes {
        one.destroy(id).await.unwrap();
    }
    // The place is free again, once.
    let c = new_id();
    two.create(&c, &wanted).await.unwrap();
    two.destroy(&c).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn t14_what_a_crash_left_does_not_hinder_the_next() {
    let host = TestHost::new("");
    let (half, left) = (new_id(), new_id());
    let sandboxes = host.state().join("sandboxes");
    std::fs::create_dir_all(sandboxes.join(format!(".new-{half}"))).unwrap();
    // A maker that died after the directory appeared and before its shim was known.
    std::fs::create_dir_all(sandboxes.join(left.as_str())).unwrap();
    let record =
        serde_json::json!({"id": left, "spec": spec(), "created_at": "2026-01-01T00:00:00Z"});
    std::fs::write(
        sandboxes.join(left.as_str()).join("record.json"),
        record.to_string(),
    )
    .unwrap();
    let session = host.session().await;
    let found: Vec<Sandbox> = session.get("/v1/sandboxes").await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].end.as_ref().unwrap().cause,
        lazaret_domain::sandbox::EndCause::ShimDied
    );
    session.destroy(&left).await.unwrap();
    assert_eq!(std::fs::read_dir(&sandboxes).unwrap().count(), 0);
}

#[tokio::test]
async fn the_specification_is_compared_whole() {
    let host = TestHost::new("");
    let session = host.session().await;
    let id = new_id();
    session.create(&id, &spec()).await.unwrap();
    let other = SandboxSpec {
        disk: ByteSize::mebibytes(2048),
        ..spec()
    };
    assert_eq!(
        session.create(&id, &other).await.unwrap_err().code,
        DenialCode::SpecMismatch
    );
    session.destroy(&id).await.unwrap();
    host.quiet().await;
}

#[test]
fn the_controllers_key_runs_nothing_else() {
    let host = TestHost::new("");
    for command in ["id", "session; id", "", "session\nid", "host shim"] {
        let output = Command::new(env!("CARGO_BIN_EXE_lazaret-host"))
            .args(["host", "gate", "--state"])
            .arg(host.state())
            .env("SSH_ORIGINAL_COMMAND", command)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(126), "{command:?}");
        assert!(output.stdout.is_empty());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("uid="));
    }
}
