//! The guest API over HTTP/2 on a stream in memory, as the shim speaks it over the control port: the
//! routes, commands as processes of this machine, and files in a directory of the test.

#[path = "support/client.rs"]
mod client;
#[path = "support/guest.rs"]
mod guest;

use bytes::Bytes;
use client::{file_entry, identity, tar_of};
use guest::{TestGuest, still_runs, until};
use http::{Method, StatusCode};
use lazaret_api::guest::{Clock, ExecEnd, ExecLimits, Health, Listing};
use lazaret_domain::{DenialCode, Span};

#[tokio::test]
async fn before_it_is_adopted_a_guest_answers_only_who_it_is() {
    let guest = TestGuest::new().await;
    let health: Health = guest.get("/v1/health").await.json();
    assert!(!health.adopted);
    for (method, path) in [
        (Method::POST, "/v1/exec"),
        (Method::GET, "/v1/list"),
        (Method::GET, "/v1/files"),
        (Method::PUT, "/v1/files"),
    ] {
        let answer = guest.call(method, path, Bytes::new()).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{path}");
        assert_eq!(answer.denial().code, DenialCode::SandboxNotReady);
    }
}

#[tokio::test]
async fn a_guest_is_adopted_once() {
    let guest = TestGuest::adopted().await;
    let health: Health = guest.get("/v1/health").await.json();
    assert!(health.adopted);
    assert_eq!(guest.adopt().await.denial().code, DenialCode::AlreadyExists);
    assert_eq!(guest.adoptions(), 1);
}

#[tokio::test]
async fn a_guest_is_warmed_before_its_adoption_and_never_after() {
    let guest = TestGuest::new().await;
    let nobody = identity();
    let warm = || guest.post("/v1/warm", &nobody);
    for _ in 0..2 {
        assert_eq!(warm().await.status, StatusCode::OK);
        let health: Health = guest.get("/v1/health").await.json();
        assert!(!health.adopted && health.boot_id.is_none(), "it is nobody");
    }
    let nothing = guest.call(Method::POST, "/v1/warm", Bytes::new()).await;
    assert_eq!(nothing.denial().code, DenialCode::InvalidRequest);
    assert_eq!(guest.adopt().await.status, StatusCode::OK);
    assert_eq!(warm().await.denial().code, DenialCode::AlreadyExists);
}

#[tokio::test]
async fn the_clock_is_set_after_the_adoption_only() {
    let clock = || Bytes::from_static(b"{\"wall_clock_ns\":5}");
    let guest = TestGuest::new().await;
    let early = guest.call(Method::PUT, "/v1/clock", clock()).await;
    assert_eq!(early.denial().code, DenialCode::SandboxNotReady);
    guest.adopt().await;
    let set: Clock = guest.call(Method::PUT, "/v1/clock", clock()).await.json();
    assert_eq!(set.wall_clock_ns, 5);
    let other = Bytes::from_static(b"{\"wall_clock_ns\":5,\"zone\":1}");
    let refused = guest.call(Method::PUT, "/v1/clock", other).await;
    assert_eq!(refused.denial().code, DenialCode::InvalidRequest);
}

#[tokio::test]
async fn unknown_routes_methods_and_parameters_are_refused() {
    let guest = TestGuest::adopted().await;
    assert_eq!(
        guest.get("/v1/nothing").await.denial().code,
        DenialCode::NoSuchRoute
    );
    assert_eq!(
        guest
            .call(Method::DELETE, "/v1/files", Bytes::new())
            .await
            .denial()
            .code,
        DenialCode::MethodNotAllowed
    );
    assert_eq!(
        guest.get("/v1/list?paht=x").await.denial().code,
        DenialCode::UnknownField
    );
    assert_eq!(
        guest.get("/v1/list?path=a&path=b").await.denial().code,
        DenialCode::InvalidRequest
    );
    assert_eq!(
        guest
            .call(
                Method::POST,
                "/v1/exec",
                Bytes::from_static(b"\0\0\0\x02{}")
            )
            .await
            .denial()
            .code,
        DenialCode::InvalidRequest
    );
    assert_eq!(
        guest
            .call(Method::POST, "/v1/exec", Bytes::from_static(b"\xff\0\0\0"))
            .await
            .denial()
            .code,
        DenialCode::TooLarge
    );
    assert_eq!(
        guest
            .call(Method::POST, "/v1/exec", Bytes::from_static(b"\0\0"))
            .await
            .denial()
            .code,
        DenialCode::InvalidRequest
    );
}

#[tokio::test]
async fn a_command_gets_its_input_and_nothing_of_our_environment() {
    let guest = TestGuest::adopted().await;
    let done = guest
        .run(
            &["sh", "-c", "cat; env | sort; echo oops >&2; exit 7"],
            b"from outside\n",
        )
        .await;
    assert_eq!(done.exit.end, ExecEnd::Exited);
    assert_eq!(done.exit.code, Some(7));
    assert_eq!(done.stderr, "oops\n");
    let (first, environment) = done.stdout.split_once('\n').unwrap();
    assert_eq!(first, "from outside");
    let names: Vec<&str> = environment
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    // PWD and _ are the shell's own.
    assert!(
        names
            .iter()
            .all(|name| ["PATH", "PWD", "_", "OLDPWD", "SHLVL"].contains(name)),
        "{environment}"
    );
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let guest = TestGuest::adopted().await;
    let done = guest.run(&["no-such-program-here"], b"").await;
    assert_eq!(done.exit.end, ExecEnd::NotStarted);
    assert!(done.exit.message.unwrap().contains("no such program"));
    let mut spec = guest.spec(&["true"]);
    spec.cwd = "/no/such/place".into();
    let done = guest.run_spec(&spec, b"").await;
    assert_eq!(done.exit.end, ExecEnd::NotStarted);
    assert!(done.exit.message.unwrap().contains("/no/such/place"));
}

#[tokio::test]
async fn a_signal_from_inside_is_reported_as_one() {
    let guest = TestGuest::adopted().await;
    let done = guest.run(&["sh", "-c", "kill -SEGV $$"], b"").await;
    assert_eq!(
        (done.exit.end, done.exit.code, done.exit.signal),
        (ExecEnd::Exited, None, Some(11))
    );
}

#[tokio::test]
async fn all_output_arrives_and_the_exit_comes_last() {
    let guest = TestGuest::adopted().await;
    let done = guest
        .run(&["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"], b"")
        .await;
    assert_eq!(done.stdout.len(), 3_000_000);
    assert!(done.exit.success());
}

#[tokio::test]
async fn a_time_out_ends_the_whole_group_even_where_sigterm_is_shrugged_off() {
    let guest = TestGuest::adopted().await;
    let mut spec = guest.spec(&[
        "sh",
        "-c",
        "(trap '' TERM; echo $$; sleep 999 & wait) & sleep 999 & echo $!; trap '' TERM; wait; wait",
    ]);
    spec.limits = ExecLimits {
        max_duration: "300ms".parse().unwrap(),
        kill_grace: "200ms".parse().unwrap(),
        ..spec.limits
    };
    let done = guest.run_spec(&spec, b"").await;
    assert_eq!(done.exit.end, ExecEnd::TimedOut);
    assert_eq!(done.exit.signal, Some(9));
    let pids: Vec<i32> = done
        .stdout
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 2);
    for pid in pids {
        until(|| !still_runs(pid)).await;
    }
}

#[tokio::test]
async fn a_command_that_heeds_sigterm_is_not_killed() {
    let guest = TestGuest::adopted().await;
    let mut spec = guest.spec(&[
        "sh",
        "-c",
        "trap 'echo tidy; exit 4' TERM; echo up; while :; do sleep 0.05; done",
    ]);
    spec.limits = ExecLimits {
        max_duration: "500ms".parse().unwrap(),
        kill_grace: Span::seconds(60),
        ..spec.limits
    };
    let done = guest.run_spec(&spec, b"").await;
    assert_eq!(
        (done.exit.end, done.exit.code),
        (ExecEnd::TimedOut, Some(4))
    );
    assert!(done.stdout.ends_with("tidy\n"), "{}", done.stdout);
}

#[tokio::test]
async fn a_caller_that_drops_the_answer_ends_the_command() {
    let guest = TestGuest::adopted().await;
    let mut running = guest
        .start(&["sh", "-c", "echo $$; exec sleep 999"], b"")
        .await;
    let pid: i32 = running.first_line().await.parse().unwrap();
    assert!(still_runs(pid));
    drop(running);
    until(|| !still_runs(pid)).await;
}

#[tokio::test]
async fn a_connection_that_breaks_ends_its_commands() {
    let guest = TestGuest::adopted().await;
    let mut running = guest
        .start(&["sh", "-c", "echo $$; exec sleep 999"], b"")
        .await;
    let pid: i32 = running.first_line().await.parse().unwrap();
    guest.cut();
    until(|| !still_runs(pid)).await;
}

#[tokio::test]
async fn what_is_left_in_the_background_does_not_survive_its_command() {
    let guest = TestGuest::adopted().await;
    let done = guest.run(&["sh", "-c", "sleep 999 & echo $!"], b"").await;
    assert!(done.exit.success());
    let pid: i32 = done.stdout.trim().parse().unwrap();
    until(|| !still_runs(pid)).await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_does_not_make_the_guest_grow() {
    let guest = TestGuest::adopted().await;
    // Far more than all windows and queues together: it can only get on while it is read.
    let mut spec = guest.spec(&["sh", "-c", "head -c 50000000 /dev/zero; echo done > marker"]);
    spec.cwd = guest.workspace().display().to_string();
    let mut running = guest.start_spec(&spec, b"").await;
    running.some_output().await;
    assert!(!guest.workspace().join("marker").exists());
    let done = running.finish().await;
    assert!(done.exit.success());
    assert!(guest.workspace().join("marker").exists());
}

#[tokio::test]
async fn files_go_in_and_come_out_as_they_were() {
    let guest = TestGuest::adopted().await;
    let archive = tar_of(&[
        file_entry("a/b.txt", b"hello", 0o644),
        file_entry("a/run.sh", b"#!/bin/sh\n", 0o755),
    ]);
    assert_eq!(
        guest
            .call(Method::PUT, "/v1/files?path=in&area=workspace", archive)
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        std::fs::read(guest.workspace().join("in/a/b.txt")).unwrap(),
        b"hello"
    );
    let listing: Listing = guest.get("/v1/list?path=in/a").await.json();
    let entries: Vec<(&str, u32)> = listing
        .entries
        .iter()
        .map(|entry| (entry.name.as_str(), entry.mode))
        .collect();
    assert_eq!(entries, [("b.txt", 0o644), ("run.sh", 0o755)]);

    let one = guest.get("/v1/files?path=in%2Fa%2Fb.txt").await.untar();
    assert_eq!(one, [("b.txt".to_owned(), b"hello".to_vec())]);
    let tree = guest.get("/v1/files?path=in").await.untar();
    assert_eq!(
        tree.iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        [".", "a", "a/b.txt", "a/run.sh"]
    );
}

#[tokio::test]
async fn uploads_are_an_area_of_their_own() {
    let guest = TestGuest::adopted().await;
    let archive = tar_of(&[file_entry("notes.md", b"read me", 0o600)]);
    assert_eq!(
        guest
            .call(Method::PUT, "/v1/files?path=&area=uploads", archive.clone())
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        std::fs::read(guest.uploads().join("notes.md")).unwrap(),
        b"read me"
    );
    assert_eq!(
        guest
            .call(Method::PUT, "/v1/files?area=etc", archive)
            .await
            .denial()
            .code,
        DenialCode::InvalidRequest
    );
    // Uploads are for the agent; what leaves is the workspace.
    assert_eq!(
        guest.get("/v1/files?path=notes.md").await.denial().code,
        DenialCode::FileNotFound
    );
}

#[tokio::test]
async fn a_shutdown_is_answered_and_ends_the_connection() {
    let guest = TestGuest::adopted().await;
    assert_eq!(
        guest
            .call(Method::POST, "/v1/shutdown", Bytes::new())
            .await
            .status,
        StatusCode::ACCEPTED
    );
    guest.ended().await;
}
