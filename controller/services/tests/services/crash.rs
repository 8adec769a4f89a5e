//! A controller that is killed at any point: the next one finishes or explains every run, and no
//! effect happens twice.
//!
//! A life is a runtime of its own. A crash point stops its driver for ever at one store or host call,
//! before or after the call's effect; then the runtime is dropped with all its tasks.

use crate::stores::CrashingStore;
use crate::support::{LONG, all_events, assert_whole, enroll, on_repo, services, settings, text};
use lazaret_domain::run::Outcome;
use lazaret_services::Principal;
use lazaret_services::ports::fake_host::{CrashPoint, FakeHost};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Builder;

/// One life of a controller: it delegates under the same key each time, and lives until the run is
/// torn down or it crashes. Answers whether it got to its end.
fn life(path: &Path, host: &FakeHost, crash: &CrashPoint, after: Option<u32>) -> bool {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let finished = runtime.block_on(async {
        let store = CrashingStore::open(path, crash.clone()).await;
        let services = services(Arc::new(store), host, settings()).await;
        crash.arm(after);
        let whole = async {
            enroll(&services).await;
            let by = Principal::controller();
            let key = Some("the-only-one".parse().unwrap());
            let run = services
                .runs
                .delegate(&by, key, on_repo())
                .await
                .unwrap()
                .run;
            let done = services.runs.wait(&by, &run, LONG).await.unwrap();
            assert_eq!(done.outcome, Some(Outcome::Succeeded), "{:?}", done.cause);
            assert!(services.runs.teardown(&by, &run).await.unwrap().removed);
            let events = all_events(&services, &run).await;
            assert_whole(&events);
            assert_eq!(text(&events, "stdout"), "hello\n");
            assert_eq!(text(&events, "setup"), "Cloning into 'demo'...\n");
            assert!(services.runs.diff(&by, &run).await.is_ok());
        };
        tokio::select! {
            () = whole => true,
            () = crash.reached() => false,
        }
    });
    runtime.shutdown_background();
    finished
}

fn assert_each_effect_once(host: &FakeHost) {
    let effects = host.effects();
    assert_eq!(effects.created.len(), 1, "one sandbox was made");
    assert_eq!(effects.started.len(), 3, "clone, turn and diff");
    let counts = [effects.created.values(), effects.destroyed.values()];
    assert!(
        counts
            .into_iter()
            .flatten()
            .chain(effects.started.values())
            .all(|count| *count == 1),
        "{effects:?}"
    );
    assert!(host.ids().is_empty(), "nothing is left");
}

/// Lives that crash at these points, as far as they get there, and one that does not crash. Answers
/// whether the first crashed.
fn lives(crashes: &[u32]) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let crash = CrashPoint::default();
    let host = FakeHost::with_crash(&crash);
    let ends: Vec<_> = crashes
        .iter()
        .map(|after| life(&path, &host, &crash, Some(*after)))
        .collect();
    assert!(
        life(&path, &host, &crash, None),
        "the last life is not crashed"
    );
    assert_each_effect_once(&host);
    !ends[0]
}

#[test]
fn a_controller_killed_at_any_one_point_is_followed_by_one_that_finishes_the_run() {
    // As many points as a life has, found by going on until one is not reached.
    let points = (0..).take_while(|after| lives(&[*after])).count();
    assert!(points > 20, "only {points} points were tried");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_controller_killed_again_and_again_still_has_each_effect_once(crashes in prop::collection::vec(0_u32..40, 1..6)) {
        lives(&crashes);
    }
}
