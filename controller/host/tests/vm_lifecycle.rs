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
use host::{Session, TestHost, command, exec_id, is_below, new_id, runs, spec, until, with_stdin};
use http::{Method, StatusCode};
use lazaret_api::guest::ExecEnd;
use lazaret_api::host::{Exec, Sandbox};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{Denial, DenialCode};

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
    let (version_2, given) = give_cgroups(&name);
    let host = TestHost::new(&format!("cgroup = {name:?}"));
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    assert_eq!(sandbox.confinement.cgroup, given);
    let pid = host.pid(&sandbox.id, "vmm");
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for controller in &given {
        // Version 2 has one tree, which names no controller.
        let tree = if version_2 { "" } else { controller };
        let line = format!(":{tree}:/{name}/{}", sandbox.id);
        assert!(
            groups.lines().any(|group| group.ends_with(&line)),
            "{line} is not among {groups}"
        );
    }
    session.destroy(&sandbox.id).await.unwrap();
    // Fails if anything of the sandbox is left in it.
    if version_2 {
        let dir = format!("/sys/fs/cgroup/{name}");
        assert!(!std::path::Path::new(&dir).exists() || std::fs::remove_dir(&dir).is_ok());
    } else {
        for controller in given {
            std::fs::remove_dir(format!("/sys/fs/cgroup/{controller}/{name}")).unwrap();
        }
    }
}

/// Makes a cgroup of that name as `lazaret up` does, in the one tree of version 2 or in each of
/// version 1. Says whether it is version 2, and which controllers it has.
fn give_cgroups(name: &str) -> (bool, Vec<&'static str>) {
    let controllers = ["memory", "cpu", "pids"];
    let root = std::path::Path::new("/sys/fs/cgroup");
    if !root.join("cgroup.controllers").exists() {
        let made =
            |controller: &&str| std::fs::create_dir(root.join(controller).join(name)).is_ok();
        return (false, controllers.into_iter().filter(made).collect());
    }
    let dir = root.join(name);
    // Where we may not, the directory is missing and no limit may be claimed.
    let _ = std::fs::create_dir(&dir);
    let enabled = |controller: &&str| {
        let add = format!("+{controller}");
        let _ = std::fs::write(root.join("cgroup.subtree_control"), &add);
        std::fs::write(dir.join("cgroup.subtree_control"), &add).is_ok()
    };
    (true, controllers.into_iter().filter(enabled).collect())
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
    let (_, bytes) = session
        .ask(
            Method::PUT,
            &format!("/v1/sandboxes/{id}"),
            Some(6),
            Body::from(serde_json::to_vec(&spec()).unwrap()),
        )
        .await;
    let denial: Denial = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        denial.code,
        DenialCode::StaleFence,
        "what a newer executor destroyed is not made again"
    );
    assert_eq!(
        session.inspect(id).await.unwrap_err().code,
        DenialCode::SandboxNotFound
    );
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
async fn a_shim_that_waits_becomes_the_next_sandbox_s_and_one_that_was_killed_is_no_harm() {
    let host = TestHost::new("");
    let session = host.session().await;
    until("a shim waits", || host.waiting().len() == 1).await;
    let before = host.waiting();
    let first = session.ready(&spec()).await;
    assert_eq!([host.pid(&first.id, "shim")], before[..]);
    let log = std::fs::read_link(format!("/proc/{}/fd/2", before[0])).unwrap();
    assert_eq!(log, host.sandbox_dir(&first.id).join("shim.log"));
    until("another waits", || host.waiting().len() == 1).await;
    host::signal(host.waiting()[0], rustix::process::Signal::KILL);
    until("it is dead", || host.waiting().is_empty()).await;
    let second = session.ready(&spec()).await;
    for sandbox in [&first.id, &second.id] {
        session.destroy(sandbox).await.unwrap();
    }
    until("another waits", || host.waiting().len() == 1).await;
    assert!(session.close().await.success());
    until("it left with its session", || {
        host.all_processes().is_empty()
    })
    .await;
    let session = host.session().await;
    until("a shim waits", || host.waiting().len() == 1).await;
    session.kill().await;
    until("nothing outlives a killed session", || {
        host.all_processes().is_empty()
    })
    .await;
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
