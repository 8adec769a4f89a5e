//! The life of a run, told from its outside.

use crate::support::{House, assert_whole, command, on_repo, text};
use lazaret_api::frame::Frame;
use lazaret_api::public::{EventBody, ExecRun};
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{Argv, Denial, DenialCode};
use lazaret_services::IdempotencyKey;
use lazaret_services::ports::fake_host::{Boot, Play, commit_id, exited, ordinary};

#[tokio::test]
async fn a_delegated_command_runs_on_its_branch_and_leaves_outcome_log_and_diff() {
    let house = House::new().await;
    let run = house.delegate(on_repo()).await;
    assert_eq!(run.state, RunPhase::Queued);
    let run = house.done(&run.run).await;
    assert_eq!(
        (run.outcome, run.exit_code),
        (Some(Outcome::Succeeded), Some(0))
    );
    assert_eq!(run.base, Some(commit_id()));
    assert_eq!(run.branch.unwrap().as_str(), format!("lazaret/{}", run.run));
    let events = house.all_events(&run.run).await;
    assert_whole(&events);
    assert_eq!(text(&events, "stdout"), "hello\n");
    assert_eq!(text(&events, "setup"), "Cloning into 'demo'...\n");
    let states: Vec<_> = events
        .iter()
        .filter_map(|event| match event.body {
            EventBody::State { state, .. } => Some(state),
            _ => None,
        })
        .collect();
    assert_eq!(
        states,
        [RunPhase::Queued, RunPhase::Starting, RunPhase::Running]
    );
    let diff = house.services.runs.diff(&house.by, &run.run).await.unwrap();
    assert_eq!(
        (diff.diff.as_str(), diff.base, diff.truncated),
        ("diff --git a/a b/a\n", commit_id(), false)
    );
    let sandbox = run.sandbox.unwrap();
    assert_eq!(sandbox.state, SandboxState::Ready);
    assert!(
        sandbox.boot_id.is_some()
            && run.stages.total_ms.is_some()
            && run.stages.clone_ms == Some(3)
    );
    // The sandbox is kept to be looked into, and goes with the teardown; the diff stays.
    assert_eq!(house.host.ids().len(), 1);
    assert!(
        house
            .services
            .runs
            .teardown(&house.by, &run.run)
            .await
            .unwrap()
            .removed
    );
    assert!(house.host.ids().is_empty());
    assert!(house.services.runs.diff(&house.by, &run.run).await.is_ok());
}

#[tokio::test]
async fn a_command_without_a_repository_has_no_clone_and_no_diff() {
    let house = House::new().await;
    let run = house.delegate(command(&["true"])).await.run;
    house.done(&run).await;
    let started: Vec<_> = house
        .host
        .effects()
        .started
        .into_keys()
        .map(|(_, exec)| exec.to_string())
        .collect();
    assert_eq!(started, ["turn-1"]);
    let denial = house.services.runs.diff(&house.by, &run).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::NoDiff);
}

#[tokio::test]
async fn the_exit_status_of_the_command_is_the_outcome() {
    let house = House::new().await;
    house.host.plays(|exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: Vec::new(),
            exit: Some(exited(7)),
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(command(&["false"])).await.run;
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.exit_code),
        (Some(Outcome::Failed), Some(7))
    );
    assert_eq!(run.cause.unwrap().code, "exit");
}

#[tokio::test]
async fn a_boot_that_fails_is_reported_after_its_sandbox_is_removed() {
    let house = House::new().await;
    house.host.boots(Boot::Fails(EndCause::BootFailed));
    let run = house.delegate(command(&["true"])).await.run;
    let run = house.done(&run).await;
    assert_eq!(run.outcome, Some(Outcome::Failed));
    assert_eq!(run.cause.unwrap().code, "boot_failed");
    assert!(
        house.host.ids().is_empty(),
        "t03: the sandbox goes before the error is told"
    );
    assert_eq!(run.sandbox.unwrap().state, SandboxState::Gone);
    assert_eq!(
        house.services.system(&house.by).await.unwrap().sandboxes,
        0,
        "the cap is free again"
    );
}

#[tokio::test]
async fn a_create_that_the_host_refuses_fails_the_run_with_the_hosts_reason() {
    let house = House::new().await;
    house
        .host
        .refuses_create(Some(Denial::new(DenialCode::DiskFull, "too little space")));
    let run = house.delegate(command(&["true"])).await.run;
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.cause.unwrap().code.as_str()),
        (Some(Outcome::Failed), "disk_full")
    );
    assert_eq!(house.services.system(&house.by).await.unwrap().sandboxes, 0);
}

#[tokio::test]
async fn a_clone_that_fails_is_told_with_what_git_said_and_leaves_nothing() {
    let house = House::new().await;
    house.host.plays(|exec, request| match exec.as_str() {
        "clone" => Play {
            frames: vec![Frame::Stderr("fatal: not found\n".into())],
            exit: Some(exited(128)),
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(on_repo()).await.run;
    let run = house.done(&run).await;
    let cause = run.cause.unwrap();
    assert_eq!(
        (run.outcome, cause.code.as_str()),
        (Some(Outcome::Failed), "clone_failed")
    );
    assert!(cause.message.contains("fatal: not found"));
    assert!(house.host.ids().is_empty());
}

#[tokio::test]
async fn a_clone_that_names_no_commit_is_not_believed() {
    let house = House::new().await;
    house.host.plays(|exec, request| match exec.as_str() {
        "clone" => Play {
            frames: vec![Frame::Stdout("main; rm -rf /\n".into())],
            exit: Some(exited(0)),
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(on_repo()).await.run;
    assert_eq!(house.done(&run).await.cause.unwrap().code, "clone_failed");
}

#[tokio::test]
async fn cancel_ends_the_command_and_keeps_what_it_did() {
    let house = House::new().await;
    house.host.plays(|exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: vec![Frame::Stdout("half\n".into())],
            exit: None,
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(on_repo()).await.run;
    house.host.until_started("turn-1").await;
    let run = house.services.runs.cancel(&house.by, &run).await.unwrap();
    assert_eq!(run.outcome, Some(Outcome::Cancelled));
    let events = house.all_events(&run.run).await;
    assert_whole(&events);
    assert_eq!(text(&events, "stdout"), "half\n");
    assert!(house.services.runs.diff(&house.by, &run.run).await.is_ok());
    let again = house
        .services
        .runs
        .cancel(&house.by, &run.run)
        .await
        .unwrap_err();
    assert_eq!(again.code, DenialCode::RunOver);
}

#[tokio::test]
async fn no_more_runs_hold_a_sandbox_than_the_cap_also_at_once() {
    let house = House::of(3).await;
    house.host.boots(Boot::Held);
    let tries = (0..12).map(|_| {
        house
            .services
            .runs
            .delegate(&house.by, None, command(&["true"]))
    });
    let answers = futures::future::join_all(tries).await;
    let (runs, denials): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(runs.len(), 3);
    for denial in denials {
        let denial = denial.unwrap_err();
        assert_eq!(denial.code, DenialCode::SandboxCap);
        assert!(denial.retry_after.is_some());
    }
    let first = runs.into_iter().next().unwrap().unwrap().run;
    house
        .services
        .runs
        .teardown(&house.by, &first)
        .await
        .unwrap();
    house.delegate(command(&["true"])).await;
}

#[tokio::test]
async fn the_same_request_under_one_key_starts_one_sandbox_however_often_and_at_once() {
    let house = House::new().await;
    let key: IdempotencyKey = "acme/demo#7@0123".parse().unwrap();
    let tries = (0..8).map(|_| {
        house
            .services
            .runs
            .delegate(&house.by, Some(key.clone()), command(&["true"]))
    });
    let mut ids: Vec<_> = futures::future::join_all(tries)
        .await
        .into_iter()
        .map(|run| run.unwrap().run)
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 1);
    house.done(&ids[0]).await;
    assert_eq!(house.host.effects().created.len(), 1);
    let other = house
        .services
        .runs
        .delegate(&house.by, Some(key), command(&["false"]))
        .await
        .unwrap_err();
    assert_eq!(other.code, DenialCode::IdempotencyMismatch);
}

#[tokio::test]
async fn a_command_beside_the_run_answers_with_its_output() {
    let house = House::new().await;
    let run = house.delegate(command(&["true"])).await.run;
    house.done(&run).await;
    let request = ExecRun {
        command: Argv::of(["id"]).unwrap(),
        stdin: None,
        max_duration: None,
    };
    let result = house
        .services
        .runs
        .exec(&house.by, &run, None, request.clone())
        .await
        .unwrap();
    assert_eq!(
        (result.exit_code, result.stdout.as_str()),
        (Some(0), "hello\n")
    );
    house.services.runs.teardown(&house.by, &run).await.unwrap();
    let denial = house
        .services
        .runs
        .exec(&house.by, &run, None, request)
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::SandboxGone);
}

#[tokio::test]
async fn an_upload_reaches_the_sandbox_and_files_come_back() {
    let house = House::new().await;
    let run = house.delegate(command(&["true"])).await.run;
    let sandbox = house.done(&run).await.sandbox.unwrap().id;
    let bytes = bytes::Bytes::from(vec![9; 100_000]);
    house
        .services
        .runs
        .put_file(&house.by, &run, &"a.bin".parse().unwrap(), bytes.clone())
        .await
        .unwrap();
    assert_eq!(house.host.uploaded(&sandbox, "a.bin"), Some(bytes.clone()));
    let file = house
        .services
        .runs
        .read_file(&house.by, &run, &"a.bin".parse().unwrap())
        .await
        .unwrap();
    assert_eq!((file.name.as_str(), &file.bytes), ("a.bin", &bytes));
    let list = house
        .services
        .runs
        .files(&house.by, &run, &"".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(list.entries[0].name, "a.bin");
    let long = "n".repeat(120);
    let name = long.parse().unwrap();
    let put = house.services.runs.put_file(&house.by, &run, &name, bytes);
    put.await.unwrap();
    let path = long.parse().unwrap();
    let file = house.services.runs.read_file(&house.by, &run, &path);
    assert_eq!(file.await.unwrap().name, long);
    let missing = house
        .services
        .runs
        .read_file(&house.by, &run, &"b".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(missing.code, DenialCode::FileNotFound);
}
