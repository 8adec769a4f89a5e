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

/// Whatever a guest says there: it is overwritten out here.
#[tokio::test]
async fn the_end_of_a_command_says_how_far_the_gateway_s_decisions_were() {
    let directory = tempfile::tempdir().unwrap();
    let egress = EgressLog::default();
    let execs = Execs::new(directory.path().to_owned(), egress.clone());
    for (seq, name) in ["a", "b"].into_iter().enumerate() {
        let (guest, other_end) = silent().await;
        execs.start(&id(name), &request(), guest, ()).unwrap();
        drop(other_end);
        over(&execs, &id(name)).await;
        let exit = execs.show(&id(name)).unwrap().exit.unwrap();
        assert_eq!(exit.egress_seq, Some(seq as u64));
        egress.refuse("dns", &"evil.example", None, &"no rule");
    }
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
