//! Hosts that go away, come back, lose things, or were never there.

use crate::support::{House, assert_whole, command, host_name, on_repo, settings, text};
use lazaret_api::frame::Frame;
use lazaret_api::public::{EnrollHost, Event, EventBody, HostAdmission};
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_domain::sandbox::{EndCause, Reach, SandboxState};
use lazaret_domain::{Denial, DenialCode, ExecId};
use lazaret_services::ports::fake_host::{Boot, FAKE_KEY, FakeHost, Play, exited, ordinary};
use lazaret_services::{Pace, ServicesSettings};
use std::time::Duration;

fn turn() -> ExecId {
    "turn-1".parse().unwrap()
}

fn stays(host: &FakeHost) {
    host.plays(|exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: vec![Frame::Stdout("one\n".into())],
            exit: None,
        },
        _ => ordinary(exec, request),
    });
}

#[tokio::test]
async fn a_run_whose_host_is_away_says_since_when_and_goes_on_when_it_is_back() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["sleep"])).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    house.host.goes_down(DenialCode::HostUnreachable);
    let away = |seen: &lazaret_api::public::Run| {
        matches!(
            seen.sandbox.as_ref().unwrap().reach,
            Reach::Unreachable { .. }
        )
    };
    let seen = house.until(&run, away).await;
    assert_eq!(seen.state, RunPhase::Running);
    // The command goes on meanwhile; nothing it said is lost.
    house.host.says(
        &sandbox,
        &turn(),
        &[Frame::Stdout("two\n".into())],
        Some(exited(0)),
    );
    house.host.comes_up();
    let run = house.done(&run).await;
    assert_eq!(run.outcome, Some(Outcome::Succeeded));
    let events = house.all_events(&run.run).await;
    assert_whole(&events);
    assert_eq!(text(&events, "stdout"), "one\ntwo\n");
}

#[tokio::test]
async fn output_that_is_cut_off_again_and_again_arrives_whole() {
    let house = House::new().await;
    let frames: Vec<_> = (0..50)
        .map(|line| Frame::Stdout(format!("line {line} ü\n").into()))
        .collect();
    let whole: String = (0..50).map(|line| format!("line {line} ü\n")).collect();
    house.host.plays(move |exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: frames.clone(),
            exit: Some(exited(3)),
        },
        _ => ordinary(exec, request),
    });
    house.host.cuts_output_after(Some(200));
    let run = house.delegate(command(&["lines"])).await.run;
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.exit_code),
        (Some(Outcome::Failed), Some(3)),
        "t63: a cut is never a success"
    );
    assert_eq!(text(&house.all_events(&run.run).await, "stdout"), whole);
}

#[tokio::test]
async fn a_sandbox_that_ends_under_its_run_ends_the_run_with_the_cause() {
    for (cause, outcome) in [
        (EndCause::RunCap, Outcome::Interrupted),
        (EndCause::GuestPanic, Outcome::Interrupted),
        (EndCause::ShimDied, Outcome::Lost),
        (EndCause::HostRestarted, Outcome::Lost),
    ] {
        let house = House::new().await;
        stays(&house.host);
        let run = house.delegate(on_repo()).await.run;
        let sandbox = house.host.until_started("turn-1").await;
        house.host.ends(&sandbox, cause);
        let run = house.done(&run).await;
        assert_eq!(
            (run.outcome, run.cause.unwrap().code.as_str()),
            (Some(outcome), cause.code())
        );
        house
            .host
            .until(|host| host.ids().is_empty().then_some(()))
            .await;
    }
}

#[tokio::test]
async fn a_sandbox_that_vanishes_loses_its_run_and_is_not_replaced() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["sleep"])).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    house.host.loses(&sandbox);
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.cause.unwrap().code.as_str()),
        (Some(Outcome::Lost), "sandbox_not_found")
    );
    assert_eq!(
        house.host.effects().created.len(),
        1,
        "t16: never bound to a fresh one"
    );
}

#[tokio::test]
async fn a_host_that_never_comes_back_loses_the_run_within_a_bound() {
    let pace = Pace {
        lost_grace: Duration::ZERO,
        ..settings().pace
    };
    let house = House::with(ServicesSettings { pace, ..settings() }).await;
    stays(&house.host);
    let short = lazaret_api::public::CreateRun {
        max_duration: Some("50ms".parse().unwrap()),
        ..command(&["sleep"])
    };
    let run = house.delegate(short).await.run;
    house.host.until_started("turn-1").await;
    house.host.goes_down(DenialCode::HostKeyMismatch);
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.cause.unwrap().code.as_str()),
        (Some(Outcome::Lost), "host_key_mismatch")
    );
}

#[tokio::test]
async fn a_delegate_is_refused_with_the_hosts_reason_before_anything_is_stored() {
    let house = House::new().await;
    let refused = |denial: Denial| (denial.code, denial.class());
    let code = || async {
        house
            .services
            .runs
            .delegate(&house.by, None, command(&["true"]))
            .await
            .unwrap_err()
            .code
    };
    house.host.goes_down(DenialCode::HostKeyMismatch);
    assert_eq!(code().await, DenialCode::HostKeyMismatch);
    let hosts = house.services.hosts.list(&house.by).await.unwrap().hosts;
    assert_eq!(hosts[0].problem.as_ref().unwrap().code, "host_key_mismatch");
    house.host.comes_up();
    house
        .services
        .hosts
        .set_admission(&house.by, &host_name(), HostAdmission::Drained)
        .await
        .unwrap();
    assert_eq!(code().await, DenialCode::HostDrained);
    house
        .services
        .hosts
        .set_admission(&house.by, &host_name(), HostAdmission::Active)
        .await
        .unwrap();
    house
        .services
        .hosts
        .set_admission(&house.by, &host_name(), HostAdmission::Retired)
        .await
        .unwrap();
    assert_eq!(code().await, DenialCode::NoHost);
    let list = house
        .services
        .runs
        .list(&house.by, None, 10, false)
        .await
        .unwrap();
    assert!(list.runs.is_empty());
    assert_eq!(
        refused(Denial::new(DenialCode::NoHost, "")).1,
        lazaret_domain::DenialClass::Unavailable
    );
}

#[tokio::test]
async fn a_host_without_image_accelerator_or_vmm_takes_no_run() {
    for code in [DenialCode::ImageMissing, DenialCode::ImageAltered] {
        let house = House::new().await;
        house.services.stop().await;
        house
            .host
            .describe(|info| info.image = Err(Denial::new(code, "told so")));
        let services =
            crate::support::services(std::sync::Arc::clone(&house.store), &house.host, settings())
                .await;
        let denial = services
            .runs
            .delegate(&house.by, None, command(&["true"]))
            .await
            .unwrap_err();
        assert_eq!(denial.code, code);
        assert!(house.host.ids().is_empty());
    }
}

#[tokio::test]
async fn retiring_a_host_ends_the_runs_that_are_still_on_it() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["sleep"])).await.run;
    house.host.until_started("turn-1").await;
    house.host.goes_down(DenialCode::HostUnreachable);
    house
        .services
        .hosts
        .set_admission(&house.by, &host_name(), HostAdmission::Retired)
        .await
        .unwrap();
    let run = house.done(&run).await;
    assert_eq!(
        (run.outcome, run.cause.unwrap().code.as_str()),
        (Some(Outcome::Lost), "host_retired")
    );
    assert!(
        house
            .services
            .runs
            .teardown(&house.by, &run.run)
            .await
            .unwrap()
            .removed
    );
}

#[tokio::test]
async fn enrolling_a_host_connects_to_it_and_is_idempotent() {
    let house = House::new().await;
    let request = |key: &str| EnrollHost {
        name: Some(host_name()),
        address: "lazaret@box".to_owned(),
        host_key: key.to_owned(),
    };
    let host = house
        .services
        .hosts
        .enroll(&house.by, request(FAKE_KEY))
        .await
        .unwrap();
    assert_eq!(
        (host.admission, host.address.as_str()),
        (HostAdmission::Active, "lazaret@box:22")
    );
    assert_eq!(host.image.as_deref(), Some("sha256:fake"));
    let other = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let denial = house
        .services
        .hosts
        .enroll(&house.by, request(other))
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::AlreadyExists);
    let stranger = EnrollHost {
        name: None,
        ..request(FAKE_KEY)
    };
    let nobody = EnrollHost {
        address: "lazaret@nobody.example.org".to_owned(),
        ..stranger
    };
    let denial = house
        .services
        .hosts
        .enroll(&house.by, nobody)
        .await
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::HostUnreachable);
    assert_eq!(
        house
            .services
            .hosts
            .list(&house.by)
            .await
            .unwrap()
            .hosts
            .len(),
        1
    );
}

#[tokio::test]
async fn a_restart_while_the_host_is_away_resumes_when_it_is_back() {
    let mut house = House::new().await;
    house.host.boots(Boot::Held);
    let run = house.delegate(command(&["true"])).await.run;
    house
        .host
        .until(|host| (!host.ids().is_empty()).then_some(()))
        .await;
    house.host.goes_down(DenialCode::HostUnreachable);
    house.restart(settings()).await;
    house.host.boots(Boot::Ready);
    house.host.comes_up();
    assert_eq!(house.done(&run).await.outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn a_sandbox_that_fell_asleep_between_two_steps_is_woken_for_the_next() {
    let mut house = House::of(1).await;
    stays(&house.host);
    let run = house.delegate(on_repo()).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    house.services.stop().await;
    house.host.says(&sandbox, &turn(), &[], Some(exited(0)));
    house.host.falls_asleep(&sandbox);
    house.restart(settings()).await;
    let run = house.done(&run).await;
    assert_eq!(run.outcome, Some(Outcome::Succeeded));
    assert_eq!(run.sandbox.unwrap().state, SandboxState::Ready);
    let diff = (sandbox, "diff".parse().unwrap());
    assert_eq!(house.host.effects().started.get(&diff), Some(&1));
    assert_eq!(house.store.counts(&[]).await.unwrap().holding, 1);
}

#[tokio::test]
async fn output_that_is_out_of_form_ends_the_run_and_its_command() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["sleep"])).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    // A gap that leads backwards: no host of ours writes that.
    let gap = br#"{"resume_at":0,"dropped":1}"#;
    let frames = [Frame::Gap(gap.as_slice().into())];
    house.host.says(&sandbox, &turn(), &frames, None);
    let run = house.done(&run).await;
    assert_eq!(run.outcome, Some(Outcome::Interrupted));
    assert_eq!(run.cause.unwrap().code, "output_garbled");
    let cancelled = house.host.effects().cancelled;
    assert!(cancelled.contains_key(&(sandbox, turn())), "{cancelled:?}");
    let events = house.all_events(&run.run).await;
    assert_eq!(text(&events, "stdout"), "one\n");
}

#[tokio::test]
async fn a_diff_that_is_out_of_form_is_told_and_not_asked_for_again() {
    let house = House::new().await;
    house.host.plays(|exec, request| match exec.as_str() {
        "diff" => Play {
            frames: vec![Frame::Exit(b"{".as_slice().into())],
            exit: None,
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(on_repo()).await.run;
    let run = house.done(&run).await;
    assert_eq!(run.outcome, Some(Outcome::Succeeded));
    let events = house.all_events(&run.run).await;
    let told = |event: &Event| matches!(&event.body, EventBody::Note { text } if text.contains("could not be read"));
    assert!(events.iter().any(told), "{events:?}");
}
