//! Teardown from every state, and what is cleaned up without anybody asking.

use crate::support::{House, assert_whole, command, on_repo, settings};
use lazaret_api::host::{AccelChoice, SandboxSpec};
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_domain::{ByteSize, Cpus, DenialCode, Fence, SandboxId, Span};
use lazaret_services::ports::fake_host::{Boot, Play, ordinary};
use lazaret_services::ports::host_link::HostLink;
use lazaret_services::{Pace, ServicesSettings};
use std::time::Duration;

fn runs_on(house: &House, name: &'static str) {
    house.host.plays(move |exec, request| {
        if exec.as_str() == name {
            Play {
                frames: Vec::new(),
                exit: None,
            }
        } else {
            ordinary(exec, request)
        }
    });
}

async fn assert_torn_down(house: &House, run: &lazaret_domain::RunId, outcome: Outcome) {
    for _ in 0..2 {
        let torn = house.services.runs.teardown(&house.by, run).await.unwrap();
        assert_eq!((torn.outcome, torn.removed), (outcome, true));
    }
    let seen = house.services.runs.get(&house.by, run).await.unwrap();
    assert_eq!((seen.state, seen.outcome), (RunPhase::Done, Some(outcome)));
    assert!(seen.torn_down_at.is_some() && seen.cause.is_some());
    assert_whole(&house.all_events(run).await);
    assert!(house.host.ids().is_empty());
    assert_eq!(house.services.system(&house.by).await.unwrap().sandboxes, 0);
}

#[tokio::test]
async fn teardown_works_while_booting() {
    let house = House::new().await;
    house.host.boots(Boot::Held);
    let run = house.delegate(command(&["true"])).await.run;
    house
        .host
        .until(|host| (!host.ids().is_empty()).then_some(()))
        .await;
    assert_torn_down(&house, &run, Outcome::Cancelled).await;
}

#[tokio::test]
async fn teardown_works_while_cloning() {
    let house = House::new().await;
    runs_on(&house, "clone");
    let run = house.delegate(on_repo()).await.run;
    house.host.until_started("clone").await;
    assert_torn_down(&house, &run, Outcome::Cancelled).await;
}

#[tokio::test]
async fn teardown_works_while_running() {
    let house = House::new().await;
    runs_on(&house, "turn-1");
    let run = house.delegate(on_repo()).await.run;
    house.host.until_started("turn-1").await;
    assert_torn_down(&house, &run, Outcome::Cancelled).await;
}

#[tokio::test]
async fn teardown_works_while_the_diff_is_read() {
    let house = House::new().await;
    runs_on(&house, "diff");
    let run = house.delegate(on_repo()).await.run;
    house.host.until_started("diff").await;
    assert_torn_down(&house, &run, Outcome::Cancelled).await;
}

#[tokio::test]
async fn teardown_of_a_finished_run_keeps_its_outcome() {
    let house = House::new().await;
    let run = house.delegate(on_repo()).await.run;
    house.done(&run).await;
    assert_torn_down(&house, &run, Outcome::Succeeded).await;
}

#[tokio::test]
async fn teardown_of_a_failed_run_whose_sandbox_is_gone_already_succeeds() {
    let house = House::new().await;
    house
        .host
        .boots(Boot::Fails(lazaret_domain::sandbox::EndCause::SetupFailed));
    let run = house.delegate(command(&["true"])).await.run;
    house.done(&run).await;
    assert_torn_down(&house, &run, Outcome::Failed).await;
}

#[tokio::test]
async fn teardown_while_the_host_is_away_says_so_and_is_finished_later_also_after_a_restart() {
    let pace = Pace {
        patience: Duration::from_millis(20),
        ..settings().pace
    };
    let quick = ServicesSettings { pace, ..settings() };
    let mut house = House::with(quick.clone()).await;
    runs_on(&house, "turn-1");
    let run = house.delegate(command(&["sleep"])).await.run;
    house.host.until_started("turn-1").await;
    house.host.goes_down(DenialCode::HostUnreachable);
    let torn = house.services.runs.teardown(&house.by, &run).await.unwrap();
    assert_eq!((torn.outcome, torn.removed), (Outcome::Cancelled, false));
    let seen = house.until(&run, |run| run.state == RunPhase::Done).await;
    assert!(
        seen.torn_down_at.is_none(),
        "t12: what is not removed is not called removed"
    );
    assert_eq!(house.services.system(&house.by).await.unwrap().sandboxes, 1);
    house.restart(quick).await;
    house.host.comes_up();
    house.until(&run, |run| run.torn_down_at.is_some()).await;
    assert_torn_down(&house, &run, Outcome::Cancelled).await;
}

#[tokio::test]
async fn whoever_asked_for_a_teardown_may_go_away() {
    let house = House::new().await;
    runs_on(&house, "turn-1");
    let run = house.delegate(command(&["sleep"])).await.run;
    house.host.until_started("turn-1").await;
    let (services, by, id) = (house.services.clone(), house.by.clone(), run.clone());
    let asking = tokio::spawn(async move { services.runs.teardown(&by, &id).await });
    house
        .host
        .until(|host| host.ids().is_empty().then_some(()))
        .await;
    asking.abort();
    house.until(&run, |run| run.torn_down_at.is_some()).await;
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        image: "sha256:fake".to_owned(),
        memory: ByteSize::mebibytes(512),
        cpus: Cpus::ONE,
        disk: ByteSize::mebibytes(1024),
        max_duration: Span::seconds(60),
        accel: AccelChoice::Kvm,
        egress: EgressPolicy::default(),
        git_base_url: "https://github.com/".to_owned(),
        boot_deadline: Span::seconds(60),
        boot_tries: 1,
        copy_of: None,
        idle_sleep: None,
        sleep_ttl: lazaret_api::host::default_sleep_ttl(),
    }
}

#[tokio::test]
async fn a_sandbox_that_no_run_knows_is_removed_after_a_grace_time_and_no_other_is() {
    let pace = Pace {
        stray_grace: Duration::ZERO,
        ..settings().pace
    };
    let house = House::with(ServicesSettings { pace, ..settings() }).await;
    let run = house.delegate(command(&["true"])).await.run;
    let kept = house.done(&run).await.sandbox.unwrap().id;
    // One that cannot be removed does not shield those after it.
    let stuck = SandboxId::make(jiff::Timestamp::UNIX_EPOCH, 98);
    house.host.sticks(&stuck);
    let stray = SandboxId::make(jiff::Timestamp::now(), 99);
    for id in [&stuck, &stray] {
        house.host.create(Fence(1), id, &spec()).await.unwrap();
    }
    house
        .host
        .until(|host| (host.ids() == [stuck.clone(), kept.clone()]).then_some(()))
        .await;
}

#[tokio::test]
async fn a_sandbox_that_comes_back_after_its_run_was_torn_down_is_removed_again() {
    let house = House::new().await;
    let run = house.delegate(command(&["true"])).await.run;
    let sandbox = house.done(&run).await.sandbox.unwrap().id;
    house.services.runs.teardown(&house.by, &run).await.unwrap();
    house
        .host
        .create(Fence(1), &sandbox, &spec())
        .await
        .unwrap();
    house
        .host
        .until(|host| host.ids().is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn twenty_runs_leave_nothing_behind() {
    let house = House::new().await;
    for _ in 0..20 {
        let run = house.delegate(on_repo()).await.run;
        house.done(&run).await;
        assert!(
            house
                .services
                .runs
                .teardown(&house.by, &run)
                .await
                .unwrap()
                .removed
        );
    }
    assert!(house.host.ids().is_empty());
    let system = house.services.system(&house.by).await.unwrap();
    assert_eq!((system.active_runs, system.sandboxes), (0, 0));
}
