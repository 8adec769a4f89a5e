//! Sandboxes in real QEMU guests: made, used and removed.
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
use host::{
    Session, TestHost, command, exec_id, is_below, new_id, ran, runs, spec, until, with_stdin,
};
use http::{Method, StatusCode};
use lazaret_api::guest::{ExecEnd, Listing};
use lazaret_api::host::{Exec, Sandbox};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{ByteSize, Denial, DenialCode};
use std::io::Read;

#[tokio::test]
async fn a_sandbox_boots_runs_a_command_and_is_destroyed_without_a_trace() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    assert!(
        sandbox
            .kernel
            .as_ref()
            .is_some_and(|kernel| !kernel.is_empty())
    );
    let stages = &sandbox.stages;
    assert!(
        stages.vmm_ms <= stages.kernel_ms && stages.kernel_ms <= stages.agent_ms,
        "{stages:?}"
    );
    let request = with_stdin(
        command(["sh", "-c", "id -un; cat; echo oops >&2; pwd; exit 3"]),
        "from stdin\n",
    );
    let ran = session.run(&sandbox.id, &request).await;
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("agent\nfrom stdin\n/workspace\n", "oops\n")
    );
    assert_eq!((ran.exit.end, ran.exit.code), (ExecEnd::Exited, Some(3)));

    session.destroy(&sandbox.id).await.unwrap();
    host.quiet().await;
    assert_eq!(
        session.get::<Vec<Sandbox>>("/v1/sandboxes").await.unwrap(),
        []
    );
    assert_eq!(
        session.inspect(&sandbox.id).await.unwrap_err().code,
        DenialCode::SandboxNotFound
    );
    let left = std::fs::read_dir(host.state().join("sandboxes"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn two_sandboxes_share_neither_kernel_nor_disk() {
    let host = TestHost::new("");
    let session = host.session().await;
    let wanted = spec();
    let (one, two) = tokio::join!(session.ready(&wanted), session.ready(&wanted));
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_ne!(one.boot_id, two.boot_id);
    assert!(
        [&one, &two]
            .iter()
            .all(|sandbox| sandbox.boot_id.as_deref() != Some(own.trim()))
    );
    let write = session
        .run(&one.id, &command(["sh", "-c", "echo mine > mark; sync"]))
        .await;
    assert!(write.exit.success());
    let read = session
        .run(
            &two.id,
            &command(["sh", "-c", "ls; cat /etc/machine-id /etc/hostname"]),
        )
        .await;
    assert!(!read.stdout.contains("mark"));
    let other = session
        .run(
            &one.id,
            &command(["cat", "/etc/machine-id", "/etc/hostname"]),
        )
        .await;
    assert_ne!(read.stdout, other.stdout);
    session.destroy(&one.id).await.unwrap();
    let alive = session.run(&two.id, &command(["true"])).await;
    assert!(alive.exit.success(), "the neighbour is not touched");
    session.destroy(&two.id).await.unwrap();
}

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

#[tokio::test]
async fn qemu_is_confined_and_inherits_nothing() {
    let host = TestHost::new("");
    // A descriptor that a careless starter leaves open.
    let secret = std::fs::File::create(host.state().join("careless")).unwrap();
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let pid = host.pid(&sandbox.id, "vmm");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(
        status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"),
        "{status}"
    );
    assert!(sandbox.confinement.no_new_privs && sandbox.confinement.seccomp);
    let open = host::descriptors(pid);
    let files: Vec<_> = open
        .iter()
        .filter(|path| path.is_absolute() && path.exists() && !path.starts_with("/dev"))
        .collect();
    let allowed = |path: &std::path::Path| {
        is_below(path, &host::images())
            || is_below(path, &host.state().join("disks"))
            || path == host.sandbox_dir(&sandbox.id).join("disk.qcow2")
    };
    assert!(files.iter().all(|path| allowed(path)), "{files:?}");
    session.destroy(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn destroy_works_from_every_state_and_twice() {
    let host = TestHost::new("");
    let session = host.session().await;
    let forking = new_id();
    session.create(&forking, &spec()).await.unwrap();
    session.destroy(&forking).await.unwrap();

    let ready = session.ready(&spec()).await.id;
    let other = host.session().await;
    let (a, b) = tokio::join!(session.destroy(&ready), other.destroy(&ready));
    assert_eq!((a, b), (Ok(()), Ok(())));

    let gone = session.ready(&spec()).await.id;
    let vmm = host.pid(&gone, "vmm");
    host::signal(vmm, rustix::process::Signal::KILL);
    assert_eq!(
        session.gone(&gone).await.end.unwrap().cause,
        EndCause::VmmDied
    );
    session.destroy(&gone).await.unwrap();
    session.destroy(&gone).await.unwrap();

    // A shim that hangs does not keep its sandbox from being removed.
    let hung = session.ready(&spec()).await.id;
    host::signal(host.pid(&hung, "shim"), rustix::process::Signal::STOP);
    let vmm = host.pid(&hung, "vmm");
    session.destroy(&hung).await.unwrap();
    assert!(!runs(vmm));
    host.quiet().await;
    assert_eq!(
        std::fs::read_dir(host.state().join("sandboxes"))
            .unwrap()
            .count(),
        0
    );
}

/// Whatever cgroups the host's account was given, the limits in force are the ones reported.
#[tokio::test]
async fn limits_are_in_force_where_cgroups_allow_and_claimed_nowhere_else() {
    let name = format!("lazaret-test-{}", std::process::id());
    let given: Vec<_> = ["memory", "cpu", "pids"]
        .into_iter()
        .filter(|controller| {
            std::fs::create_dir(format!("/sys/fs/cgroup/{controller}/{name}")).is_ok()
        })
        .collect();
    let host = TestHost::new(&format!("cgroup = {name:?}"));
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    assert_eq!(sandbox.confinement.cgroup, given);
    let pid = host.pid(&sandbox.id, "vmm");
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for controller in &given {
        let line = format!(":{controller}:/{name}/{}", sandbox.id);
        assert!(
            groups.lines().any(|group| group.ends_with(&line)),
            "{line} is not among {groups}"
        );
    }
    session.destroy(&sandbox.id).await.unwrap();
    for controller in given {
        // Fails if anything of the sandbox is left in it.
        std::fs::remove_dir(format!("/sys/fs/cgroup/{controller}/{name}")).unwrap();
    }
}

#[tokio::test]
async fn a_fork_bomb_and_rm_rf_stay_in_their_sandbox() {
    let host = TestHost::new("");
    let session = host.session().await;
    let wanted = spec();
    let (one, two) = tokio::join!(session.ready(&wanted), session.ready(&wanted));
    let canary = host.state().join("canary");
    std::fs::write(&canary, "alive").unwrap();
    let bomb = "bomb() { bomb | bomb & }; bomb; rm -rf --no-preserve-root / 2>/dev/null; wait";
    session
        .start(&one.id, &exec_id("bomb"), &command(["sh", "-c", bomb]))
        .await
        .unwrap();
    let neighbour = session
        .run(&two.id, &command(["sh", "-c", "ls / | wc -l; id -un"]))
        .await;
    assert!(
        neighbour.exit.success() && neighbour.stdout.ends_with("agent\n"),
        "{neighbour:?}"
    );
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "alive");
    session.destroy(&one.id).await.unwrap();
    assert!(
        session
            .run(&two.id, &command(["true"]))
            .await
            .exit
            .success()
    );
    session.destroy(&two.id).await.unwrap();
    host.quiet().await;
}

#[tokio::test]
async fn an_older_fence_changes_nothing() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let id = &sandbox.id;
    let (status, _) = session
        .ask(
            Method::PUT,
            &format!("/v1/sandboxes/{id}/execs/a"),
            Some(7),
            exec(["true"]),
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    let denial = session.destroy_as(id, 6).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::StaleFence);
    let denial: Denial = start(&session, id, "b", Some(6)).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::StaleFence);
    let denial: Denial = start(&session, id, "b", None).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::InvalidRequest);
    assert_eq!(
        session.inspect(id).await.unwrap().state,
        SandboxState::Ready
    );
    session.destroy_as(id, 7).await.unwrap();
}

fn exec<const N: usize>(words: [&str; N]) -> Body {
    Body::from(serde_json::to_vec(&command(words)).unwrap())
}

async fn start(
    session: &Session,
    id: &lazaret_domain::SandboxId,
    name: &str,
    fence: Option<u64>,
) -> Result<Exec, Denial> {
    let path = format!("/v1/sandboxes/{id}/execs/{name}");
    let (status, bytes) = session.ask(Method::PUT, &path, fence, exec(["true"])).await;
    if status.is_success() {
        Ok(serde_json::from_slice(&bytes).unwrap())
    } else {
        Err(serde_json::from_slice(&bytes).unwrap())
    }
}

#[tokio::test]
async fn a_closed_session_ends_and_its_sandboxes_stay() {
    let host = TestHost::new("");
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    assert!(session.close().await.success());
    let session = host.session().await;
    let found: Vec<Sandbox> = session.get("/v1/sandboxes").await.unwrap();
    assert_eq!(
        found
            .iter()
            .map(|found| (&found.id, found.state))
            .collect::<Vec<_>>(),
        [(&sandbox.id, SandboxState::Ready)]
    );
    session.destroy(&sandbox.id).await.unwrap();
    until("the shim is gone", || host.processes().is_empty()).await;
}
