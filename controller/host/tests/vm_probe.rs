//! The accelerator is found out by booting.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use host::TestHost;
use lazaret_api::host::{Accel, HostInfo};
use lazaret_domain::DenialCode;
use std::process::Command;

fn probe(host: &TestHost, accel: &str) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_lazaret-host"))
        .args(["host", "probe", "--accel", accel, "--state"])
        .arg(host.state())
        .output()
        .unwrap()
}

#[tokio::test]
async fn a_probe_boots_a_guest_and_its_answer_is_what_the_host_says_of_itself() {
    let host = TestHost::new("accel = \"tcg\"");
    let session = host.session().await;
    let output = probe(&host, "tcg");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "tcg: works\n");
    let info: HostInfo = session.get("/v1/info").await.unwrap();
    assert_eq!(info.accel, Ok(Accel::Tcg));
    assert!(info.vmm.unwrap().contains("QEMU"));
    assert_eq!(info.image.unwrap(), host::spec().image);
    host.quiet().await;
}

#[tokio::test]
async fn an_accelerator_that_boots_no_guest_is_refused_with_the_reason() {
    // No guest boots within a millisecond, whatever the device promises.
    let host = TestHost::new("probe_deadline = \"1ms\"");
    let output = probe(&host, "kvm");
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("no_accelerator"),
        "{output:?}"
    );
    let session = host.session().await;
    let info: HostInfo = session.get("/v1/info").await.unwrap();
    assert_eq!(info.accel.unwrap_err().code, DenialCode::NoAccelerator);
    let wanted = lazaret_api::host::SandboxSpec {
        accel: lazaret_api::host::AccelChoice::Kvm,
        ..host::spec()
    };
    let denial = session.create(&host::new_id(), &wanted).await.unwrap_err();
    assert_eq!(
        denial.code,
        DenialCode::NoAccelerator,
        "software emulation is never taken silently"
    );
    host.quiet().await;
}
