//! Sandboxes that sleep and wake, as a run's callers see it.

use crate::support::{House, command, on_repo};
use lazaret_api::host::WakeFrom;
use lazaret_api::public::{ExecRun, ForkRun, Forked, Run, Scope};
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Argv, Denial, DenialCode, RunId};
use lazaret_services::Principal;
use lazaret_services::ports::fake_host::ordinary;

fn state(run: &Run) -> SandboxState {
    run.sandbox.as_ref().unwrap().state
}

async fn now(house: &House, run: &RunId) -> Run {
    house.services.runs.get(&house.by, run).await.unwrap()
}

fn beside() -> ExecRun {
    ExecRun {
        command: Argv::of(["true"]).unwrap(),
        stdin: None,
        max_duration: None,
    }
}

/// A run that is done and keeps its sandbox.
async fn done(house: &House) -> RunId {
    let run = house.delegate(command(&["true"])).await.run;
    house.done(&run).await.run
}

#[tokio::test]
async fn a_finished_run_sleeps_wakes_and_is_kept() {
    let house = House::new().await;
    let run = done(&house).await;
    let runs = &house.services.runs;
    for _ in 0..2 {
        let slept = runs.sleep(&house.by, &run).await.unwrap();
        assert_eq!(state(&slept), SandboxState::Asleep);
        assert_eq!(slept.state, RunPhase::Done);
        assert!(slept.sandbox.unwrap().asleep_since.is_some());
    }
    // Nothing that reads wakes it.
    for _ in 0..20 {
        runs.get(&house.by, &run).await.unwrap();
        runs.list(&house.by, None, 50, false).await.unwrap();
    }
    let path = lazaret_domain::GuestPath::default();
    let refused = runs.files(&house.by, &run, &path).await.unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxAsleep);
    assert_eq!(state(&now(&house, &run).await), SandboxState::Asleep);

    assert!(
        runs.keep(&house.by, &run, true)
            .await
            .unwrap()
            .sandbox
            .unwrap()
            .kept
    );
    for from in [WakeFrom::Memory, WakeFrom::Disk] {
        let woken = runs.wake(&house.by, &run, from).await.unwrap();
        assert_eq!(state(&woken), SandboxState::Ready);
    }
    let sandbox = runs
        .keep(&house.by, &run, false)
        .await
        .unwrap()
        .sandbox
        .unwrap();
    assert_eq!((sandbox.kept, sandbox.asleep_since), (false, None));
    assert!(runs.teardown(&house.by, &run).await.unwrap().removed);
    let refused = runs
        .wake(&house.by, &run, WakeFrom::Memory)
        .await
        .unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxGone);
}

#[tokio::test]
async fn acting_in_a_sandbox_that_sleeps_wakes_it() {
    let house = House::new().await;
    house.host.plays(ordinary);
    let run = done(&house).await;
    let runs = &house.services.runs;
    for act in ["exec", "put"] {
        runs.sleep(&house.by, &run).await.unwrap();
        match act {
            "exec" => {
                runs.exec(&house.by, &run, None, beside()).await.unwrap();
            }
            _ => {
                let name = "notes.md".parse().unwrap();
                let bytes = bytes::Bytes::from_static(b"read me");
                runs.put_file(&house.by, &run, &name, bytes).await.unwrap();
            }
        }
        assert_eq!(
            state(&now(&house, &run).await),
            SandboxState::Ready,
            "{act}"
        );
    }
}

#[tokio::test]
async fn one_that_falls_asleep_by_itself_is_shown_asleep() {
    let house = House::new().await;
    let run = done(&house).await;
    let sandbox = now(&house, &run).await.sandbox.unwrap().id;
    house.host.falls_asleep(&sandbox);
    while state(&now(&house, &run).await) != SandboxState::Asleep {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn one_that_sleeps_gives_its_place_back_and_wakes_only_where_there_is_one() {
    let house = House::of(1).await;
    let first = done(&house).await;
    let runs = &house.services.runs;
    let refused = runs.delegate(&house.by, None, command(&["true"])).await;
    assert_eq!(refused.unwrap_err().code, DenialCode::SandboxCap);
    runs.sleep(&house.by, &first).await.unwrap();
    let second = done(&house).await;
    let refused = runs
        .wake(&house.by, &first, WakeFrom::Memory)
        .await
        .unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxCap);
    runs.teardown(&house.by, &second).await.unwrap();
    runs.wake(&house.by, &first, WakeFrom::Memory)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_a_host_refuses_is_told_and_the_sandbox_sleeps_on() {
    let house = House::new().await;
    let run = done(&house).await;
    let runs = &house.services.runs;
    runs.sleep(&house.by, &run).await.unwrap();
    let why = Denial::new(DenialCode::WakeFailed, "not today");
    house.host.refuses_wake(Some(why.clone()));
    let refused = runs
        .wake(&house.by, &run, WakeFrom::Memory)
        .await
        .unwrap_err();
    assert_eq!(refused, why);
    assert_eq!(state(&now(&house, &run).await), SandboxState::Asleep);
    house.host.refuses_wake(None);
    runs.wake(&house.by, &run, WakeFrom::Memory).await.unwrap();

    let reader = Principal {
        key: house.by.key.clone(),
        scope: Scope::Read,
    };
    let refused = runs.sleep(&reader, &run).await.unwrap_err();
    assert_eq!(refused.code, DenialCode::ScopeTooNarrow);
}

#[tokio::test]
async fn a_fork_makes_runs_of_their_own_that_name_their_parent() {
    let house = House::of(4).await;
    let run = house.delegate(on_repo()).await.run;
    let parent = house.done(&run).await;
    let runs = &house.services.runs;
    let key = || Some("once".parse().unwrap());
    let request = ForkRun {
        n: Some(2),
        command: Some(Argv::of(["make", "it"]).unwrap()),
    };
    let forked = runs
        .fork(&house.by, &run, key(), request.clone())
        .await
        .unwrap();
    assert!(forked.pause_ms.is_some());
    // Under the same key nothing is made again, and another request is refused.
    let again = runs
        .fork(&house.by, &run, key(), request.clone())
        .await
        .unwrap();
    let ids = |forked: &Forked| {
        forked
            .runs
            .iter()
            .map(|run| run.run.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!((ids(&again), again.pause_ms), (ids(&forked), None));
    let other = ForkRun {
        command: None,
        ..request.clone()
    };
    let refused = runs.fork(&house.by, &run, key(), other).await.unwrap_err();
    assert_eq!(refused.code, DenialCode::IdempotencyMismatch);
    for copy in &forked.runs {
        let copy = house.done(&copy.run).await;
        assert_eq!(copy.outcome, Some(Outcome::Succeeded));
        assert_eq!(copy.parent.as_ref(), Some(&run));
        assert_eq!((&copy.base, &copy.repo), (&parent.base, &parent.repo));
        assert_eq!(
            copy.branch.unwrap().as_str(),
            format!("lazaret/{}", copy.run)
        );
        let sandbox = copy.sandbox.unwrap().id;
        let started = house.host.effects().started;
        let begun: Vec<_> = started
            .keys()
            .filter(|(id, _)| *id == sandbox)
            .map(|(_, exec)| exec.to_string())
            .collect();
        assert_eq!(
            begun,
            ["branch", "diff", "turn-1"],
            "nothing is cloned again"
        );
    }
    // All or none: there is a place for one more only.
    let refused = runs.fork(&house.by, &run, None, request).await.unwrap_err();
    assert_eq!(refused.code, DenialCode::SandboxCap);
    assert_eq!(house.host.ids().len(), 3);
    // One without a command is done at once; one that sleeps is woken for it.
    runs.sleep(&house.by, &run).await.unwrap();
    let forked = runs
        .fork(&house.by, &run, None, ForkRun::default())
        .await
        .unwrap();
    let copy = house.done(&forked.runs[0].run).await;
    assert_eq!(
        (copy.cause.unwrap().code.as_str(), copy.exit_code),
        ("forked", None)
    );
    for n in [0, 9] {
        let request = ForkRun {
            n: Some(n),
            command: None,
        };
        let refused = runs.fork(&house.by, &run, None, request).await.unwrap_err();
        assert_eq!(refused.code, DenialCode::InvalidRequest);
    }
}

#[tokio::test]
async fn of_forks_that_are_asked_for_twice_at_once_there_is_one() {
    let house = House::of(3).await;
    let run = house.delegate(on_repo()).await.run;
    house.done(&run).await;
    let runs = &house.services.runs;
    let fork = || {
        let request = ForkRun {
            n: Some(2),
            command: None,
        };
        runs.fork(&house.by, &run, Some("once".parse().unwrap()), request)
    };
    let (one, other) = tokio::join!(fork(), fork());
    let (one, other) = (one.unwrap(), other.unwrap());
    let ids =
        |forked: &Forked| -> Vec<_> { forked.runs.iter().map(|run| run.run.clone()).collect() };
    assert_eq!((ids(&one).len(), ids(&one)), (2, ids(&other)));
    // The host was asked once, so the run stood still once.
    let paused = [one, other]
        .iter()
        .filter(|forked| forked.pause_ms.is_some())
        .count();
    assert_eq!((paused, house.host.effects().created.len()), (1, 3));
}

#[tokio::test]
async fn a_run_that_is_woken_twice_at_once_needs_one_place() {
    let house = House::of(1).await;
    let runs = &house.services.runs;
    let run = done(&house).await;
    runs.sleep(&house.by, &run).await.unwrap();
    let wake = || runs.wake(&house.by, &run, WakeFrom::Memory);
    let woken = tokio::join!(wake(), wake(), wake());
    for woken in [woken.0, woken.1, woken.2] {
        assert_eq!(state(&woken.unwrap()), SandboxState::Ready);
    }
}

#[tokio::test]
async fn of_a_wake_and_a_delegate_at_once_one_gets_the_last_place() {
    let house = House::of(1).await;
    let runs = &house.services.runs;
    let mut run = done(&house).await;
    for _ in 0..10 {
        runs.sleep(&house.by, &run).await.unwrap();
        let delegate = runs.delegate(&house.by, None, command(&["true"]));
        let wake = runs.wake(&house.by, &run, WakeFrom::Memory);
        match tokio::join!(wake, delegate) {
            (Ok(_), Err(refused)) => assert_eq!(refused.code, DenialCode::SandboxCap),
            (Err(refused), Ok(new)) => {
                assert_eq!(refused.code, DenialCode::SandboxCap);
                run = house.done(&new.run).await.run;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn of_sandboxes_that_are_woken_at_once_only_as_many_wake_as_have_a_place() {
    let house = House::of(2).await;
    let runs = &house.services.runs;
    let mut asleep = Vec::new();
    for _ in 0..3 {
        let run = house.delegate(on_repo()).await.run;
        house.done(&run).await;
        runs.sleep(&house.by, &run).await.unwrap();
        asleep.push(run);
    }
    let wakes = asleep
        .iter()
        .map(|run| runs.wake(&house.by, run, WakeFrom::Memory));
    let woken = futures::future::join_all(wakes).await;
    let (awake, refused): (Vec<_>, Vec<_>) = woken.into_iter().partition(Result::is_ok);
    assert_eq!((awake.len(), refused.len()), (2, 1), "{refused:?}");
    let refused = refused.into_iter().find_map(Result::err);
    assert_eq!(refused.unwrap().code, DenialCode::SandboxCap);
    // A place that was taken while it was woken is not held beyond that.
    let awake = awake.into_iter().find_map(Result::ok).unwrap().run;
    runs.sleep(&house.by, &awake).await.unwrap();
    runs.wake(&house.by, &awake, WakeFrom::Memory)
        .await
        .unwrap();
}
