//! Asking again under an idempotency key: commands beside a run, and API keys.

use crate::stores::CrashingStore;
use crate::support::{House, LONG, command, enroll, on_repo, services, settings};
use futures::future::join_all;
use lazaret_api::frame::Frame;
use lazaret_api::public::{CreateKey, ExecResult, ExecRun, Scope};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Argv, Denial, DenialCode, ExecId, KeyId, RunId, SandboxId};
use lazaret_services::ports::fake_host::{CrashPoint, FakeHost, Play, commit_id, exited, ordinary};
use lazaret_services::{IdempotencyKey, Principal, Services};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Builder;

fn name(text: &str) -> Option<IdempotencyKey> {
    Some(text.parse().unwrap())
}

fn words(words: &[&str]) -> ExecRun {
    ExecRun {
        command: Argv::new(words.iter().map(|word| (*word).to_owned()).collect()).unwrap(),
        stdin: None,
        max_duration: None,
    }
}

/// The commands beside a run that were started, and how often each was.
fn started(host: &FakeHost) -> Vec<(SandboxId, ExecId, u32)> {
    let all = host.effects().started.into_iter();
    all.filter(|((_, exec), _)| exec.as_str().starts_with("x-"))
        .map(|((sandbox, exec), times)| (sandbox, exec, times))
        .collect()
}

impl House {
    async fn exec(&self, run: &RunId, once: &str, request: ExecRun) -> Result<ExecResult, Denial> {
        let runs = &self.services.runs;
        runs.exec(&self.by, run, name(once), request).await
    }

    async fn finished(&self) -> RunId {
        let run = self.delegate(command(&["true"])).await.run;
        self.done(&run).await;
        run
    }
}

#[tokio::test]
async fn a_named_command_is_run_once_however_often_and_at_once() {
    let house = House::new().await;
    let run = house.finished().await;
    let tries = (0..8).map(|_| house.exec(&run, "k", words(&["id"])));
    for answer in join_all(tries).await {
        assert_eq!(answer.unwrap().stdout, "hello\n");
    }
    assert_eq!(started(&house.host).len(), 1);
    let other = house.exec(&run, "k", words(&["id", "-u"])).await;
    assert_eq!(other.unwrap_err().code, DenialCode::IdempotencyMismatch);
    assert_eq!(started(&house.host).len(), 1);
    // The name means something else to another caller, for another run, and for another route.
    let stranger = Principal {
        key: KeyId::make(jiff::Timestamp::UNIX_EPOCH, 7),
        ..Principal::controller()
    };
    let runs = &house.services.runs;
    let theirs = runs.exec(&stranger, &run, name("k"), words(&["id", "-u"]));
    assert!(theirs.await.is_ok());
    let another = house.finished().await;
    assert!(house.exec(&another, "k", words(&["w"])).await.is_ok());
    let delegated = runs.delegate(&house.by, name("k"), command(&["true"]));
    assert!(delegated.await.is_ok());
    assert_eq!(started(&house.host).len(), 3);
    // And without one each time is a time of its own.
    for _ in 0..2 {
        let unnamed = runs.exec(&house.by, &run, None, words(&["id"]));
        assert!(unnamed.await.is_ok());
    }
    assert_eq!(started(&house.host).len(), 5);
}

#[tokio::test]
async fn asking_again_finds_a_command_at_work_and_waits_for_its_end() {
    let house = House::new().await;
    let run = house.finished().await;
    house.host.plays(|exec, request| match exec.as_str() {
        text if text.starts_with("x-") => Play {
            frames: vec![Frame::Stdout("begun\n".into())],
            exit: None,
        },
        _ => ordinary(exec, request),
    });
    let first = house.exec(&run, "k", words(&["make"]));
    let begun = house.host.until(|host| started(host).pop());
    // Its caller goes away while it is at work.
    let (sandbox, exec, _) = tokio::select! {
        answer = first => panic!("{answer:?}"),
        begun = begun => begun,
    };
    let release = async {
        tokio::task::yield_now().await;
        let frames = [Frame::Stdout("and done\n".into())];
        house.host.says(&sandbox, &exec, &frames, Some(exited(3)));
    };
    let (again, ()) = tokio::join!(house.exec(&run, "k", words(&["make"])), release);
    let again = again.unwrap();
    assert_eq!(
        (again.exit_code, again.stdout.as_str()),
        (Some(3), "begun\nand done\n")
    );
    assert_eq!(started(&house.host), [(sandbox, exec, 1)]);
}

#[tokio::test]
async fn a_named_command_is_known_after_a_restart_and_when_its_host_forgot_it() {
    let mut house = House::new().await;
    let run = house.finished().await;
    let first = house.exec(&run, "k", words(&["id"])).await.unwrap();
    house.restart(settings()).await;
    assert_eq!(house.exec(&run, "k", words(&["id"])).await, Ok(first));
    let (sandbox, exec, _) = started(&house.host).pop().unwrap();
    house.host.forgets(&sandbox, &exec);
    for _ in 0..2 {
        let denial = house.exec(&run, "k", words(&["id"])).await.unwrap_err();
        assert_eq!(denial.code, DenialCode::AlreadyDone);
    }
    assert_eq!(started(&house.host), [(sandbox, exec, 1)]);
}

#[tokio::test]
async fn a_named_command_that_its_host_never_heard_of_is_run_when_asked_for_again() {
    let house = House::new().await;
    let run = house.finished().await;
    house.host.goes_down(DenialCode::HostUnreachable);
    let denial = house.exec(&run, "k", words(&["id"])).await.unwrap_err();
    assert_eq!(denial.code, DenialCode::HostUnreachable);
    house.host.comes_up();
    let answer = house.exec(&run, "k", words(&["id"])).await.unwrap();
    assert_eq!(answer.stdout, "hello\n");
    assert_eq!(started(&house.host).len(), 1);
}

/// One life of a controller that ends when it is crashed or has an answer.
fn life<T>(
    path: &Path,
    host: &FakeHost,
    crash: &CrashPoint,
    work: impl AsyncFnOnce(Services) -> T,
) -> Option<T> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let store = CrashingStore::open(path, crash.clone()).await;
        let services = services(Arc::new(store), host, settings()).await;
        tokio::select! {
            answer = work(services) => Some(answer),
            () = crash.reached() => None,
        }
    });
    runtime.shutdown_background();
    answer
}

/// A controller that crashes at this point of a named command, and the one that is asked again, when
/// the repository has been cloned meanwhile. Answers whether the first got to its end.
fn crashed_at(after: u32) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let crash = CrashPoint::default();
    let host = FakeHost::with_crash(&crash);
    host.plays(|exec, request| match exec.as_str() {
        "clone" => Play {
            frames: Vec::new(),
            exit: None,
        },
        _ => ordinary(exec, request),
    });
    let by = Principal::controller();
    let (run, sandbox) = life(&path, &host, &crash, async |services| {
        enroll(&services).await;
        let run = services.runs.delegate(&by, None, on_repo()).await.unwrap();
        (run.run, host.until_started("clone").await)
    })
    .unwrap();
    let exec = async |services: &Services| {
        let runs = &services.runs;
        runs.exec(&by, &run, name("k"), words(&["id"])).await
    };
    let first = life(&path, &host, &crash, async |services| {
        let ready = async || {
            let seen = services.runs.get(&by, &run).await.unwrap().sandbox;
            seen.is_some_and(|sandbox| sandbox.state == SandboxState::Ready)
        };
        while !ready().await {
            tokio::task::yield_now().await;
        }
        // Its driver is at rest: whoever reaches the point is the command.
        let seen = services.runs.wait(&by, &run, settings().pace.gather).await;
        assert!(seen.unwrap().outcome.is_none());
        crash.arm(Some(after));
        exec(&services).await.unwrap()
    });
    crash.arm(None);
    let frames = [Frame::Stdout(format!("{}\n", commit_id()).into())];
    let clone = "clone".parse().unwrap();
    host.says(&sandbox, &clone, &frames, Some(exited(0)));
    let again = life(&path, &host, &crash, async |services| {
        assert!(
            services
                .runs
                .wait(&by, &run, LONG)
                .await
                .unwrap()
                .outcome
                .is_some()
        );
        exec(&services).await.unwrap()
    });
    let again = again.unwrap();
    assert_eq!(again.stdout, "hello\n");
    assert!(first.as_ref().is_none_or(|first| *first == again));
    let counts: Vec<_> = started(&host)
        .into_iter()
        .map(|(.., times)| times)
        .collect();
    assert_eq!(counts, [1], "crashed at {after}");
    first.is_some()
}

#[test]
fn a_controller_killed_at_any_point_of_a_named_command_runs_it_once() {
    let points = (0..).take_while(|after| !crashed_at(*after)).count();
    // Before and after each of: the name is stored, the host starts it, that is noted.
    assert!(points >= 6, "only {points} points were tried");
}

#[tokio::test]
async fn a_named_key_is_made_once_and_the_refusal_names_it() {
    let mut house = House::new().await;
    let wanted = |scope| CreateKey {
        scope,
        name: Some("ci".to_owned()),
        expires: None,
    };
    let (keys, by) = (house.services.keys.clone(), house.by.clone());
    let tries = (0..4).map(|_| keys.create(&by, name("k"), wanted(Scope::Read)));
    let (made, refused): (Vec<_>, Vec<_>) =
        join_all(tries).await.into_iter().partition(Result::is_ok);
    let [Ok(made)] = &made[..] else {
        panic!("{} were made", made.len());
    };
    let id = &made.key.id;
    for denial in refused {
        let denial = denial.err().unwrap();
        assert_eq!(denial.code, DenialCode::AlreadyDone);
        assert!(denial.message.contains(id.as_str()), "{}", denial.message);
        assert!(!denial.message.contains(&made.token));
    }
    house.restart(settings()).await;
    let keys = house.services.keys.clone();
    keys.revoke(&by, id).await.unwrap();
    let again = keys.create(&by, name("k"), wanted(Scope::Read)).await;
    assert_eq!(again.err().unwrap().code, DenialCode::AlreadyDone);
    let other = keys.create(&by, name("k"), wanted(Scope::Run)).await;
    assert_eq!(other.err().unwrap().code, DenialCode::IdempotencyMismatch);
    assert_eq!(keys.list(&by).await.unwrap().keys.len(), 1);
    let stranger = Principal {
        key: id.clone(),
        ..Principal::controller()
    };
    assert!(
        keys.create(&stranger, name("k"), wanted(Scope::Read))
            .await
            .is_ok()
    );
    assert!(
        keys.create(&by, name("k2"), wanted(Scope::Read))
            .await
            .is_ok()
    );
    assert_eq!(keys.list(&by).await.unwrap().keys.len(), 3);
}
