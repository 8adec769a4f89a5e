//! Drivers that are interrupted at a bad moment, and callers that ask too much.

use crate::stores::{AtEnd, CrashingStore};
use crate::support::{House, LONG, assert_whole, command, on_repo, settings};
use futures::StreamExt;
use lazaret_api::frame::Frame;
use lazaret_domain::{DenialCode, RunId};
use lazaret_services::ports::fake_host::{CrashPoint, FakeHost, Play, exited, ordinary};
use lazaret_services::ports::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A controller over a store that does this at the end of the next run.
async fn house(at_end: Option<AtEnd>) -> (House, Arc<CrashingStore>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = Arc::new(CrashingStore::open(&path, CrashPoint::default()).await);
    *store.at_end.lock().unwrap() = at_end;
    let over: Arc<dyn Store> = store.clone();
    (House::over(over, directory, settings()).await, store)
}

/// Waits until the store did what it was to do.
async fn struck(store: &CrashingStore) {
    while store.at_end.lock().unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_follower_gets_the_end_although_its_commit_was_interrupted() {
    let (house, store) = house(Some(AtEnd::Stall)).await;
    let run = house.delegate(command(&["true"])).await.run;
    let following = house
        .services
        .runs
        .follow(&house.by, &run, 0)
        .await
        .unwrap();
    let following = tokio::spawn(following.collect::<Vec<_>>());
    struck(&store).await;
    // It is in the store, and the driver that wrote it is interrupted before it could say so.
    while store
        .run(&run)
        .await
        .unwrap()
        .unwrap()
        .state
        .ending()
        .is_none()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let denial = house
        .services
        .runs
        .cancel(&house.by, &run)
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::RunOver);
    let events = tokio::time::timeout(LONG, following)
        .await
        .unwrap()
        .unwrap();
    assert_whole(&events);
}

#[tokio::test]
async fn a_run_whose_driver_panicked_gets_another_when_it_is_asked_for_something() {
    let (house, store) = house(Some(AtEnd::Panic)).await;
    let run = house.delegate(command(&["true"])).await.run;
    struck(&store).await;
    let torn = house.services.runs.teardown(&house.by, &run).await.unwrap();
    assert!(torn.removed);
    assert!(house.host.ids().is_empty());
}

/// Live diffs that were made in the run's sandbox.
fn made(host: &FakeHost) -> Vec<lazaret_domain::ExecId> {
    let started = host.effects().started.into_keys().map(|(_, exec)| exec);
    started
        .filter(|exec| exec.as_str().starts_with("x-"))
        .collect()
}

async fn working(house: &House) -> RunId {
    house.host.plays(|exec, request| match exec.as_str() {
        "clone" => ordinary(exec, request),
        _ => Play {
            frames: vec![Frame::Stdout("diff\n".into())],
            exit: None,
        },
    });
    let run = house.delegate(on_repo()).await.run;
    house.host.until_started("turn-1").await;
    run
}

#[tokio::test]
async fn however_many_ask_for_the_diff_of_a_run_at_work_it_is_made_once() {
    let (house, store) = house(None).await;
    let run = working(&house).await;
    // The first who asks goes away; what it asked for goes on.
    let (services, by, id) = (house.services.clone(), house.by.clone(), run.clone());
    let first = tokio::spawn(async move { services.runs.diff(&by, &id).await });
    let exec = house.host.until(|host| made(host).pop()).await;
    first.abort();
    let sandbox = house.host.ids().remove(0);
    let ask = || house.services.runs.diff(&house.by, &run);
    let asked = store.diff_reads.load(Ordering::SeqCst) + 50;
    let asking = futures::future::join_all((0..50).map(|_| ask()));
    let (diffs, ()) = tokio::join!(asking, async {
        // Nothing lies between that look and joining those who wait.
        while store.diff_reads.load(Ordering::SeqCst) < asked {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        house.host.says(&sandbox, &exec, &[], Some(exited(0)));
    });
    for diff in diffs {
        assert_eq!(diff.unwrap().diff, "diff\n");
    }
    ask().await.unwrap();
    assert_eq!(
        made(&house.host),
        [exec],
        "one at a time, and it holds for a moment"
    );
}

#[tokio::test]
async fn a_run_waits_for_the_disk_only_where_it_must() {
    let (house, store) = house(None).await;
    let before = store.commits.load(Ordering::SeqCst);
    let run = house.delegate(on_repo()).await.run;
    house.done(&run).await;
    let commits = store.commits.load(Ordering::SeqCst) - before;
    // One before each of create, clone, command and diff, and the end. A boot or output that takes a
    // while may add some.
    assert!((5..=9).contains(&commits), "{commits} commits");
}
