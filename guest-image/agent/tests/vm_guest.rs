//! The guest as it is: the image, booted in a real machine under software emulation.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failing test is the report"
)]

#[path = "support/client.rs"]
mod client;
#[path = "support/vm.rs"]
mod vm;

use base64::Engine as _;
use client::{Client, Done, file_entry, identity, tar_of};
use http::StatusCode;
use lazaret_api::guest::{Adopt, Adopted, ExecEnd, ExecSpec, Health, Wake};
use std::time::{Duration, SystemTime};
use vm::{Machine, Vm, image};

/// What a run's command is given.
fn spec(client: &Client, script: &str) -> ExecSpec {
    let mut spec = client.spec(&["bash", "-c", script]);
    spec.env
        .insert("HOME".parse().unwrap(), "/home/agent".into());
    spec.cwd = "/workspace".into();
    spec
}

async fn script(client: &Client, script: &str) -> Done {
    // Shown if the test fails or does not end.
    eprintln!("the guest runs {script}");
    client.run_spec(&spec(client, script), b"").await
}

#[tokio::test]
async fn a_probe_says_so_and_powers_off() {
    let (machine, _control) = Machine::start(&image(), "lazaret.probe").await;
    let (status, console) = machine.ended().await;
    assert!(status.success());
    let ours: Vec<&str> = console
        .iter()
        .filter_map(|line| line.strip_prefix("lazaret-guest: "))
        .map(str::trim)
        .collect();
    assert_eq!(ours, ["up", "probe ok"]);
}

#[tokio::test]
async fn a_guest_becomes_the_sandbox_it_is_told_to_be_and_shares_no_kernel() {
    let image = image();
    let (one, two) = tokio::join!(Vm::boot(&image), Vm::boot(&image));
    let (first, second): (Health, Health) = (
        one.get("/v1/health").await.json(),
        two.get("/v1/health").await.json(),
    );
    assert_ne!(first.boot_id, second.boot_id);
    assert_ne!(
        first.boot_id.as_deref().unwrap(),
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap()
            .trim()
    );
    drop(two);

    let told = identity();
    let done = script(&one, "hostname; cat /etc/machine-id; date +%s; getent hosts gateway.lazaret; git ls-remote --get-url https://github.com/acme/demo; ip -4 -o route show default").await;
    assert!(done.exit.success(), "{}", done.stderr);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[..2], [told.sandbox.as_str(), &told.machine_id]);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let guest = Duration::from_secs(lines[2].parse().unwrap());
    assert!(
        now.abs_diff(guest) < Duration::from_secs(600),
        "{guest:?} there, {now:?} here"
    );
    assert!(lines[3].starts_with("198.19.255.1"), "{}", lines[3]);
    assert_eq!(lines[4], "http://gateway.lazaret/git/acme/demo");
    assert!(
        lines[5].starts_with("default via 198.19.255.1 dev eth0"),
        "{}",
        lines[5]
    );

    let (status, console) = one.shut_down().await;
    assert!(status.success());
    assert!(
        console
            .iter()
            .any(|line| line.trim() == "lazaret-guest: ready"),
        "{console:?}"
    );
}

#[tokio::test]
async fn work_has_no_privilege_and_writes_only_where_it_may() {
    let vm = Vm::boot(&image()).await;
    let archive = tar_of(&[file_entry("notes.md", b"read me", 0o600)]);
    assert_eq!(
        vm.put("/v1/files?area=uploads", archive.clone())
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        vm.put("/v1/files?path=given", archive).await.status,
        StatusCode::OK
    );

    let done = script(
        &vm,
        "id -u; id -G; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status | tr -d '\\t'",
    )
    .await;
    assert_eq!(
        done.stdout,
        "1000\n1000\nCapEff:0000000000000000\nNoNewPrivs:1\n"
    );

    let places = "/etc /usr/bin /opt /root /uploads /uploads/notes.md /sys/fs/cgroup/commands/cgroup.procs / /run /boot";
    let done = script(
        &vm,
        &format!("for place in {places}; do if [ -w $place ]; then echo $place; fi; done"),
    )
    .await;
    assert_eq!(done.stdout, "", "nothing of these is writable");
    let done = script(&vm, "set -e; cat /uploads/notes.md; echo x >> given/notes.md; touch a /tmp/a ~/a; mktemp >/dev/null").await;
    assert!(done.exit.success(), "{}", done.stderr);
    assert_eq!(done.stdout, "read me");
    // No program's owner and no device counts on the root.
    let done = script(&vm, "su -c id root </dev/null || findmnt -n -o OPTIONS /").await;
    let options: Vec<&str> = done.stdout.trim().split(',').collect();
    assert!(
        options.contains(&"nosuid") && options.contains(&"nodev"),
        "{}",
        done.stdout
    );
}

#[tokio::test]
async fn a_daemon_that_leaves_session_and_group_does_not_survive_its_command() {
    let vm = Vm::boot(&image()).await;
    // Forks twice, in a session of its own, with no descriptor of ours, deaf to SIGTERM.
    let daemon = "setsid -f bash -c 'trap \"\" TERM HUP; (sleep 987 & wait) & wait' </dev/null >/dev/null 2>&1; until pgrep -x sleep; do :; done";
    let done = script(&vm, daemon).await;
    assert!(done.exit.success() && !done.stdout.is_empty());
    let mut limited = spec(&vm, &format!("{daemon}; wait; sleep 986"));
    limited.limits.max_duration = "8s".parse().unwrap();
    limited.limits.kill_grace = "1s".parse().unwrap();
    let done = vm.run_spec(&limited, b"").await;
    assert_eq!(done.exit.end, ExecEnd::TimedOut);
    // Neither is left, and PID 1 has waited for what it inherited.
    let done = script(&vm, "pgrep -x sleep; ps -e -o stat= | grep -c Z").await;
    assert_eq!(done.stdout, "0\n");
}

#[tokio::test]
async fn a_fork_bomb_and_a_memory_hog_leave_the_guest_answering() {
    let vm = Vm::boot(&image()).await;
    let mut bomb = spec(&vm, "bomb() { bomb | bomb & }; bomb; sleep 985");
    bomb.limits.processes = 300;
    bomb.limits.max_duration = "6s".parse().unwrap();
    bomb.limits.kill_grace = "100ms".parse().unwrap();
    eprintln!("the guest runs a fork bomb");
    let mut bombed = Box::pin(vm.start_spec(&bomb, b"").await.finish());
    eprintln!("the guest is asked how it is");
    // It answers while the bomb goes on, not when it has been ended.
    let health = tokio::select! {
        biased;
        _ = &mut bombed => panic!("the guest did not answer before the bomb was ended"),
        health = vm.get("/v1/health") => health,
    };
    assert!(health.json::<Health>().adopted);
    eprintln!("the guest ends the fork bomb");
    assert_eq!(bombed.await.exit.end, ExecEnd::TimedOut);

    // What commands may have is there, so that who wants more meets their limit and not the guest's.
    let limits = "cat /sys/fs/cgroup/commands/memory.max; awk '/MemAvailable/ { print $2 * 1024 }' /proc/meminfo";
    let done = script(&vm, limits).await;
    let told: Vec<u64> = done
        .stdout
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(
        told[0] < told[1] && told[0] > told[1] / 2,
        "{}",
        done.stdout
    );
    let done = script(&vm, "python3 -c 'x = bytearray(2 << 30)'; echo status $?").await;
    assert!(
        done.stdout.contains("status 1"),
        "{} {}",
        done.stdout,
        done.stderr
    );
    let done = script(&vm, "tail /dev/zero; echo status $?").await;
    assert_eq!(
        done.stdout, "status 137\n",
        "killed for want of memory: {}",
        done.stderr
    );
    // By the limit of commands, not because the guest ran out of memory.
    let met = "awk '/^oom / { print ($2 > 0) }' /sys/fs/cgroup/commands/memory.events";
    let met = script(&vm, met).await;
    assert_eq!(met.stdout, "1\n", "{}", met.stderr);
    assert!(script(&vm, "true").await.exit.success());
}

#[tokio::test]
async fn work_stands_still_in_a_nap_and_a_copy_that_is_adopted_holds_none_of_it() {
    const HOUR: i64 = 3600 * 1_000_000_000;
    let vm = Vm::boot(&image()).await;
    // Says what time it is, ever again.
    let clock = "while :; do echo $EPOCHSECONDS; done";
    let mut ticking = vm.start_spec(&spec(&vm, clock), b"").await;
    ticking.next_line().await;
    let nap = |vm: &Vm| {
        let client = Client::clone(vm);
        async move { client.post("/v1/nap", &serde_json::json!({})).await.status }
    };
    assert_eq!(nap(&vm).await, StatusCode::OK);
    let now = identity().wall_clock_ns;
    let wake = Wake {
        wall_clock_ns: now + HOUR,
        entropy: base64::engine::general_purpose::STANDARD.encode([3_u8; 64]),
    };
    assert_eq!(vm.post("/v1/wake", &wake).await.status, StatusCode::OK);
    let up = vm.post("/v1/go-on", &serde_json::json!({})).await;
    assert_eq!(up.status, StatusCode::OK);
    // Not one line was said with a clock between the old time and the new.
    let (past, future) = (now / 1_000_000_000 + 60, (now + HOUR) / 1_000_000_000);
    loop {
        let said: i64 = ticking.next_line().await.trim().parse().unwrap();
        if said >= future {
            break;
        }
        assert!(said < past, "{said} is neither before the nap nor after it");
    }

    assert_eq!(nap(&vm).await, StatusCode::OK);
    let before: Health = vm.get("/v1/health").await.json();
    let other = Adopt {
        sandbox: "sfedcba9876543210".parse().unwrap(),
        machine_id: "f".repeat(32),
        ..identity()
    };
    let adopted: Adopted = vm.post("/v1/adopt", &other).await.json();
    assert_eq!(ticking.finish().await.exit.signal, Some(9));
    assert_ne!(Some(&adopted.boot_id), before.boot_id.as_ref());
    let shown = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; ps -u agent -o comm= | grep -cv -e ps -e bash -e grep";
    let done = script(&vm, shown).await;
    let told = format!(
        "sfedcba9876543210\n{}\n{}\n0\n",
        "f".repeat(32),
        adopted.boot_id
    );
    assert_eq!(done.stdout, told, "{}", done.stderr);
}
