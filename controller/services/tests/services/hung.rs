//! Hosts that are up and do not answer, and sandboxes that their hosts do not end.

use crate::support::{House, LONG, command, on_repo, settings};
use lazaret_api::public::{CreateRun, EventBody};
use lazaret_domain::run::Outcome;
use lazaret_services::ports::fake_host::{Play, exited, ordinary};
use lazaret_services::{Pace, ServicesSettings};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn impatient() -> ServicesSettings {
    let pace = Pace {
        lost_grace: Duration::ZERO,
        call: Duration::from_millis(50),
        ..settings().pace
    };
    ServicesSettings { pace, ..settings() }
}

fn sleeps(house: &House) {
    house.host.plays(|exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: Vec::new(),
            exit: None,
        },
        _ => ordinary(exec, request),
    });
}

fn for_a_moment() -> CreateRun {
    CreateRun {
        max_duration: Some("200ms".parse().unwrap()),
        ..command(&["sleep"])
    }
}

#[tokio::test]
async fn a_host_that_hangs_loses_the_run_within_a_bound() {
    let house = House::with(impatient()).await;
    sleeps(&house);
    let run = house.delegate(for_a_moment()).await.run;
    house.host.until_started("turn-1").await;
    house.host.hangs();
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.cause.unwrap().code.as_str()),
        (Some(Outcome::Lost), "host_unreachable")
    );
}

#[tokio::test]
async fn a_sandbox_that_outlives_its_deadline_loses_the_run_and_is_removed() {
    let house = House::with(impatient()).await;
    sleeps(&house);
    let run = house.delegate(for_a_moment()).await.run;
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.cause.unwrap().code.as_str()),
        (Some(Outcome::Lost), "sandbox_overdue")
    );
    let empty = house.host.until(|host| host.ids().is_empty().then_some(()));
    tokio::time::timeout(LONG, empty).await.unwrap();
}

#[tokio::test]
async fn a_command_is_given_less_than_its_sandbox_also_after_a_restart() {
    let mut house = House::new().await;
    let limits = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&limits);
    house.host.plays(move |exec, request| {
        if exec.as_str() != "turn-1" {
            return ordinary(exec, request);
        }
        let limit = request.spec.limits.max_duration.duration();
        seen.lock().unwrap().push(limit);
        Play {
            frames: Vec::new(),
            exit: None,
        }
    });
    let run = house.delegate(on_repo()).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    house.restart(settings()).await;
    house
        .host
        .says(&sandbox, &"turn-1".parse().unwrap(), &[], Some(exited(0)));
    house.done(&run).await;
    let whole = Duration::from_secs(3600);
    let limits = limits.lock().unwrap().clone();
    let [limit] = limits.as_slice() else {
        panic!("{limits:?}")
    };
    let left = whole - *limit;
    assert!(
        left >= Duration::from_secs(30) && left < Duration::from_secs(90),
        "{left:?}"
    );
    let events = house.all_events(&run).await;
    assert!(matches!(events.last().unwrap().body, EventBody::End { .. }));
}
