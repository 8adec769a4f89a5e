//! Sandboxes that are forked from a template instead of booted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

#[path = "vm_support/host.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod host;

use host::{Session, TestHost, spec, until};
use lazaret_api::host::{Sandbox, Template, TemplateSpec};
use lazaret_domain::ByteSize;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const TEMPLATES: &str = "templates = true\nmax_sandboxes = 16";

/// Makes the template of the tests' specification, and gives its directory.
async fn template(host: &TestHost, session: &Session) -> (Template, PathBuf) {
    let made: Template = session
        .put("/v1/templates", &TemplateSpec::of(&spec()))
        .await
        .unwrap();
    let dir = host.state().join("templates").join(&made.name);
    (made, dir)
}

async fn say(session: &Session, sandbox: &Sandbox, script: &str) -> String {
    host::say(session, &sandbox.id, script).await
}

#[tokio::test]
async fn eight_forks_of_one_template_have_nothing_random_in_common() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let (_, dir) = template(&host, &session).await;
    let before = std::fs::metadata(dir.join("memory")).unwrap();

    let wanted = spec();
    let forks = futures::future::join_all((0..8).map(|_| session.ready(&wanted))).await;
    let script = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/boot_id \
                  /proc/sys/kernel/random/uuid /etc/machine-id /etc/hostname; \
                  python3 -c 'import uuid, random; print(uuid.uuid4()); print(random.random())'; \
                  node -e 'console.log(crypto.randomUUID(), Math.random())';";
    let mut said = Vec::new();
    for fork in &forks {
        assert!(fork.stages.forked, "{:?}", fork.stages);
        said.push(say(&session, fork, script).await);
        let before = jiff::Timestamp::now().as_nanosecond();
        let clock = say(&session, fork, "date +%s%N").await;
        let clock: i128 = clock.trim().parse().unwrap();
        let after = jiff::Timestamp::now().as_nanosecond();
        let off = (clock.clamp(before, after) - clock).abs();
        assert!(off < 1_000_000_000, "the clock is off by {off} ns");
        assert_eq!(
            fork.boot_id.as_deref(),
            Some(
                say(&session, fork, "cat /proc/sys/kernel/random/boot_id")
                    .await
                    .trim()
            )
        );
    }
    // Line by line: no two forks say the same.
    let lines: Vec<Vec<&str>> = said.iter().map(|text| text.lines().collect()).collect();
    assert!(
        lines
            .iter()
            .all(|said| said.len() == lines[0].len() && said.len() >= 8)
    );
    for nth in 0..lines[0].len() {
        let different: BTreeSet<_> = lines.iter().map(|said| said[nth]).collect();
        assert_eq!(different.len(), 8, "line {nth}: {different:?}");
    }

    // What one writes no other sees, and the template stays as it was made.
    say(&session, &forks[0], "echo mine > /workspace/mark; sync").await;
    assert_eq!(say(&session, &forks[1], "ls /workspace").await, "");
    let after = std::fs::metadata(dir.join("memory")).unwrap();
    assert_eq!(
        (before.ctime(), before.ctime_nsec(), before.ino()),
        (after.ctime(), after.ctime_nsec(), after.ino())
    );
    for fork in forks {
        session.destroy(&fork.id).await.unwrap();
    }
    host.quiet().await;
}

#[tokio::test]
async fn a_template_that_was_touched_is_not_used_and_made_anew() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let (_, dir) = template(&host, &session).await;
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open(dir.join("memory"))
        .unwrap();
    memory.write_at(b"!", 64 << 20).unwrap();
    drop(memory);

    let booted = session.ready(&spec()).await;
    assert!(!booted.stages.forked, "{:?}", booted.stages);
    assert_eq!(say(&session, &booted, "echo fine").await, "fine\n");
    let forked = again(&host, &session, &dir).await;
    for sandbox in [booted, forked] {
        session.destroy(&sandbox.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_fork_of_a_broken_state_ends_and_the_sandbox_is_booted() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let (_, dir) = template(&host, &session).await;
    // Broken in a way that the host cannot see: with a note that fits.
    let state = dir.join("state");
    std::fs::write(&state, b"no state of a machine").unwrap();
    let note: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("note.json")).unwrap()).unwrap();
    let mut note = note;
    let meta = std::fs::metadata(&state).unwrap();
    // The key and the base stay as they are.
    note["looks"][1] = serde_json::json!([
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.ctime(),
        meta.ctime_nsec()
    ]);
    std::fs::write(dir.join("note.json"), note.to_string()).unwrap();

    let booted = session.ready(&spec()).await;
    assert!(!booted.stages.forked, "{:?}", booted.stages);
    assert_eq!(say(&session, &booted, "echo fine").await, "fine\n");
    session.destroy(&booted.id).await.unwrap();
    // It is not tried for ever: another one takes its place.
    let forked = again(&host, &session, &dir).await;
    session.destroy(&forked.id).await.unwrap();
    host.quiet().await;
}

/// The next fork, once the host has made a template by itself.
async fn again(host: &TestHost, session: &Session, dir: &Path) -> Sandbox {
    until("another template", || dir.join("note.json").is_file()).await;
    until("its maker to be done", || {
        !host
            .processes()
            .iter()
            .any(|(_, line)| line.contains("templates/."))
    })
    .await;
    let forked = session.ready(&spec()).await;
    assert!(forked.stages.forked, "{:?}", forked.stages);
    forked
}

#[tokio::test]
async fn a_template_over_another_base_is_not_used() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let (_, dir) = template(&host, &session).await;
    for entry in std::fs::read_dir(host.state().join("disks")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let booted = session.ready(&spec()).await;
    assert!(!booted.stages.forked, "{:?}", booted.stages);
    let forked = again(&host, &session, &dir).await;
    assert_eq!(
        say(&session, &forked, "echo fine > f; sync; cat f").await,
        "fine\n"
    );
    for sandbox in [booted, forked] {
        session.destroy(&sandbox.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_session_killed_while_it_makes_a_template_leaves_nothing() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let making = TemplateSpec::of(&spec());
    let asked = session.put::<Template>("/v1/templates", &making);
    let qemu = || {
        host.processes()
            .iter()
            .any(|(_, line)| line.contains("qemu-system"))
    };
    tokio::select! {
        made = asked => panic!("it was made too quickly: {made:?}"),
        () = until("its QEMU", qemu) => {}
    }
    session.kill().await;
    host.quiet().await;
    let _next = host
        .session()
        .await
        .get::<serde_json::Value>("/v1/info")
        .await;
    let left: Vec<_> = std::fs::read_dir(host.state().join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "lock")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_sandbox_of_another_size_is_not_forked_from_this_template() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let (made, _) = template(&host, &session).await;
    let larger = TemplateSpec {
        memory: ByteSize::mebibytes(640),
        ..TemplateSpec::of(&spec())
    };
    let other: Template = session.put("/v1/templates", &larger).await.unwrap();
    assert_ne!(made.name, other.name);
    // Asked for again, it is there.
    let (again, _) = template(&host, &session).await;
    assert_eq!(made, again);
    let mut wanted = spec();
    wanted.memory = larger.memory;
    let sandbox = session.ready(&wanted).await;
    assert!(sandbox.stages.forked, "{:?}", sandbox.stages);
    let total = say(
        &session,
        &sandbox,
        "awk '/MemTotal/ {print $2}' /proc/meminfo",
    )
    .await;
    let total: u64 = total.trim().parse().unwrap();
    assert!((560 << 10..640 << 10).contains(&total), "{total} KiB");
    session.destroy(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn a_session_that_ends_gives_up_the_template_that_nobody_asked_for() {
    let host = TestHost::new(TEMPLATES);
    let session = host.session().await;
    let sandbox = session.ready(&spec()).await;
    let made = || {
        host.processes()
            .iter()
            .any(|(_, line)| line.contains("templates/."))
    };
    until("a template being made", made).await;
    assert!(session.close().await.success());
    // Killed with its session, it takes a moment to be gone.
    until("nothing being made without a session", || !made()).await;
    let templates = std::fs::read_dir(host.state().join("templates")).unwrap();
    let whole = templates
        .flatten()
        .filter(|entry| entry.path().join("note.json").exists());
    assert_eq!(whole.count(), 0);
    // The sandbox is not its session's.
    let next = host.session().await;
    assert_eq!(say(&next, &sandbox, "echo fine").await, "fine\n");
    next.destroy(&sandbox.id).await.unwrap();
    host.quiet().await;
}
