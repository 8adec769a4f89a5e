use super::*;
use lazaret_api::guest::ExecSpec;
use lazaret_domain::Argv;
use std::collections::BTreeMap;
use tokio::net::UnixStream;

fn request() -> ExecRequest {
    ExecRequest {
        spec: ExecSpec {
            argv: Argv::of(["true"]).unwrap(),
            env: BTreeMap::new(),
            cwd: "/".to_owned(),
            limits: Default::default(),
        },
        stdin: String::new(),
        output_cap: 1 << 20,
    }
}

fn id(text: &str) -> ExecId {
    text.parse().unwrap()
}

/// A guest that never answers, as long as the other end is held.
async fn silent() -> (Guest, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Guest::connect(ours).await.unwrap(), theirs)
}

/// Waits until a command is over and all that follows its end is done.
async fn over(execs: &Execs, id: &ExecId) {
    while execs.show(id).is_ok_and(|exec| exec.exit.is_none()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn however_many_commands_beside_the_work_there_were_the_work_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let execs = Execs::new(directory.path().to_owned(), EgressLog::default());
    let (guest, other_end) = silent().await;
    execs
        .start(&id("turn-1"), &request(), guest.clone(), ())
        .unwrap();
    drop(other_end);
    over(&execs, &id("turn-1")).await;
    for number in 0..1100 {
        let exec = id(&format!("x-{number:016x}"));
        execs.start(&exec, &request(), guest.clone(), ()).unwrap();
        over(&execs, &exec).await;
    }
    execs.start(&id("diff"), &request(), guest, ()).unwrap();
    execs.end_all().await;
    assert!(
        execs.show(&id("turn-1")).is_ok(),
        "the work is not forgotten"
    );
    assert!(execs.show(&id("x-0000000000000000")).is_err());
    assert!(execs.show(&id(&format!("x-{:016x}", 1099))).is_ok());
    let kept = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(kept, BESIDE_REMEMBERED + 2, "what is forgotten is removed");
}

/// A guest in which every command ends at once, and which claims to know the gateway's decisions.
async fn boastful() -> Guest {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let exit = ExecExit {
        end: ExecEnd::Exited,
        code: Some(0),
        signal: None,
        message: None,
        duration_ms: 1,
        egress_seq: Some(99),
    };
    let frame = super::super::exit_frame(&exit);
    let route = axum::routing::post(move || async move { frame });
    let router = axum::Router::new().route("/v1/exec", route);
    tokio::spawn(crate::pipe::serve(theirs, router));
    Guest::connect(ours).await.unwrap()
}

#[tokio::test]
async fn the_end_of_a_command_says_how_far_the_gateway_s_decisions_are_if_none_is_to_come() {
    let directory = tempfile::tempdir().unwrap();
    let egress = EgressLog::default();
    let execs = Execs::new(directory.path().to_owned(), egress.clone());
    let said = async |name: &str, guest: Guest| {
        execs.start(&id(name), &request(), guest, ()).unwrap();
        over(&execs, &id(name)).await;
        execs.show(&id(name)).unwrap().exit.unwrap().egress_seq
    };
    assert_eq!(said("none", boastful().await).await, Some(0));
    egress.refuse("dns", &"evil.example", None, &"no rule");
    assert_eq!(said("one", boastful().await).await, Some(1));
    egress.begin();
    assert_eq!(said("under-way", boastful().await).await, None);
    egress.end();
    assert_eq!(said("ended", boastful().await).await, Some(1));
    let (lost, other_end) = silent().await;
    drop(other_end);
    assert_eq!(said("lost", lost).await, None, "more may come");
}

#[tokio::test]
async fn commands_beside_the_work_leave_room_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let execs = Execs::new(directory.path().to_owned(), EgressLog::default());
    let (guest, _other_end) = silent().await;
    for number in 0..BESIDE_RUNNING {
        let exec = id(&format!("x-{number:016x}"));
        execs.start(&exec, &request(), guest.clone(), ()).unwrap();
    }
    let denial = execs.start(&id("x-more"), &request(), guest.clone(), ());
    assert_eq!(denial.unwrap_err().code, DenialCode::HostBusy);
    execs.start(&id("turn-1"), &request(), guest, ()).unwrap();
    execs.end_all().await;
}
