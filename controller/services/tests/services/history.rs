//! Events and the log: without gap or double, for every reader, at its own speed.

use crate::support::{House, LONG, assert_whole, command, on_repo, settings, text};
use futures::{FutureExt, StreamExt};
use lazaret_api::frame::Frame;
use lazaret_api::guest::ExecExit;
use lazaret_api::host::EgressRecord;
use lazaret_api::public::EventBody;
use lazaret_domain::{DenialCode, ExecId};
use lazaret_services::ports::fake_host::{FakeHost, Play, exited, ordinary};
use lazaret_services::ports::store::Store;
use lazaret_store::{Limits, SqliteStore};
use std::sync::Arc;

fn turn() -> ExecId {
    "turn-1".parse().unwrap()
}

fn stays(host: &FakeHost) {
    host.plays(|exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: Vec::new(),
            exit: None,
        },
        _ => ordinary(exec, request),
    });
}

#[tokio::test]
async fn readers_who_join_at_any_time_see_the_same_events_while_they_are_written() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["talk"])).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    let mut readers = Vec::new();
    for line in 0..60 {
        if line % 10 == 0 {
            let stream = house
                .services
                .runs
                .follow(&house.by, &run, 0)
                .await
                .unwrap();
            readers.push(tokio::spawn(stream.collect::<Vec<_>>()));
        }
        let exit = (line == 59).then(|| exited(0));
        house.host.says(
            &sandbox,
            &turn(),
            &[Frame::Stdout(format!("{line}\n").into())],
            exit,
        );
        tokio::task::yield_now().await;
    }
    let whole = house.all_events(&run).await;
    assert_whole(&whole);
    assert_eq!(
        text(&whole, "stdout"),
        (0..60).map(|line| format!("{line}\n")).collect::<String>()
    );
    for reader in readers {
        assert_eq!(
            tokio::time::timeout(LONG, reader).await.unwrap().unwrap(),
            whole
        );
    }
}

#[tokio::test]
async fn a_reader_goes_on_from_any_event_without_gap_or_double() {
    let house = House::new().await;
    let run = house.delegate(command(&["true"])).await.run;
    house.done(&run).await;
    let whole = house.all_events(&run).await;
    for after in 0..=whole.len() {
        let rest = house
            .services
            .runs
            .follow(&house.by, &run, after as u64)
            .await
            .unwrap();
        assert_eq!(rest.collect::<Vec<_>>().await, whole[after..]);
        let page = house
            .services
            .runs
            .events(&house.by, &run, after as u64, 1000)
            .await
            .unwrap();
        assert_eq!(
            (page.events.as_slice(), page.complete),
            (&whole[after..], true)
        );
    }
    let future: Vec<_> = house
        .services
        .runs
        .follow(&house.by, &run, 9999)
        .await
        .unwrap()
        .collect()
        .await;
    let [gap, end] = future.as_slice() else {
        panic!("{future:?}")
    };
    assert!(matches!(gap.body, EventBody::Gap { .. }), "{gap:?}");
    assert_eq!(Some(end), whole.last(), "the end is always the last");
    assert!(gap.seq < end.seq);
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_nobody_up() {
    let house = House::new().await;
    let frames: Vec<_> = (0..300)
        .map(|_| Frame::Stdout("x".repeat(20_000).into()))
        .collect();
    house.host.plays(move |exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: frames.clone(),
            exit: Some(exited(0)),
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(command(&["flood"])).await.run;
    let mut slow = house
        .services
        .runs
        .follow(&house.by, &run, 0)
        .await
        .unwrap();
    let first = slow.next().await.unwrap();
    assert_eq!(first.seq, 1);
    house.done(&run).await;
    let rest: Vec<_> = slow.collect().await;
    let mut whole = vec![first];
    whole.extend(rest);
    assert_whole(&whole);
    assert_eq!(text(&whole, "stdout").len(), 300 * 20_000);
    for event in &whole {
        if let EventBody::Log { text, .. } = &event.body {
            assert!(text.chars().count() <= 20_000);
        }
    }
}

#[tokio::test]
async fn output_beyond_the_cap_is_evicted_and_the_gap_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let cap = 100_000;
    let store: Arc<dyn Store> = Arc::new(
        SqliteStore::open_with(
            &directory.path().join("db"),
            Limits {
                log: cap,
                ..Limits::default()
            },
        )
        .await
        .unwrap(),
    );
    let host = FakeHost::new();
    let frames: Vec<_> = (0..100)
        .map(|n| Frame::Stdout(format!("{n:04}{}\n", "x".repeat(9_995)).into()))
        .collect();
    host.plays(move |exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: frames.clone(),
            exit: Some(exited(0)),
        },
        _ => ordinary(exec, request),
    });
    let services = crate::support::services(store, &host, settings()).await;
    crate::support::enroll(&services).await;
    let by = lazaret_services::Principal::controller();
    let run = services
        .runs
        .delegate(&by, None, command(&["flood"]))
        .await
        .unwrap()
        .run;
    services.runs.wait(&by, &run, LONG).await.unwrap();
    let events = crate::support::all_events(&services, &run).await;
    let kept = text(&events, "stdout");
    assert!(
        kept.len() as u64 <= cap && kept.len() > 50_000,
        "{} bytes were kept",
        kept.len()
    );
    assert!(
        kept.lines().last().unwrap().starts_with("0099"),
        "the latest output is kept"
    );
    let missing: u64 = events
        .iter()
        .map(|event| match &event.body {
            EventBody::Gap { missing, .. } => missing - 1,
            _ => 0,
        })
        .sum();
    let last = events.last().unwrap();
    assert!(matches!(last.body, EventBody::End { .. }));
    assert_eq!(
        last.seq,
        events.len() as u64 + missing,
        "every number is an event or in a gap"
    );
    assert!(missing > 0);
}

#[tokio::test]
async fn the_log_tail_has_the_last_lines_and_bounds() {
    let house = House::new().await;
    let frames: Vec<_> = (0..1000)
        .map(|line| Frame::Stdout(format!("line {line}\n").into()))
        .collect();
    house.host.plays(move |exec, request| match exec.as_str() {
        "turn-1" => Play {
            frames: frames.clone(),
            exit: Some(exited(0)),
        },
        _ => ordinary(exec, request),
    });
    let run = house.delegate(command(&["lines"])).await.run;
    house.done(&run).await;
    let tail = house
        .services
        .runs
        .log_tail(&house.by, &run, 2)
        .await
        .unwrap();
    assert_eq!(tail, "line 998\nline 999\n");
    let all = house
        .services
        .runs
        .log_tail(&house.by, &run, 5000)
        .await
        .unwrap();
    assert_eq!(all.lines().count(), 1000);
    for lines in [0, 5001, u32::MAX] {
        let denial = house
            .services
            .runs
            .log_tail(&house.by, &run, lines)
            .await
            .unwrap_err();
        assert_eq!(denial.code, DenialCode::InvalidRequest);
    }
}

fn record(seq: u64) -> EgressRecord {
    EgressRecord {
        seq,
        at: jiff::Timestamp::UNIX_EPOCH,
        kind: "dns".to_owned(),
        destination: "evil.example".to_owned(),
        port: None,
        allowed: false,
        reason: "no rule".to_owned(),
        count: 1,
        bytes_out: 0,
        bytes_in: 0,
        duration_ms: 0,
    }
}

#[tokio::test]
async fn the_gateways_decisions_are_among_the_events_once_each() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["curl"])).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    house.host.decided(&sandbox, record(1));
    let mut stream = house
        .services
        .runs
        .follow(&house.by, &run, 0)
        .await
        .unwrap();
    while let Some(event) = stream.next().await {
        if matches!(event.body, EventBody::Egress { .. }) {
            break;
        }
    }
    // Between the last look and the end: fetched once more before the run is over.
    house.host.decided(&sandbox, record(2));
    house.host.says(&sandbox, &turn(), &[], Some(exited(0)));
    house.done(&run).await;
    let events = house.all_events(&run).await;
    let seqs: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Egress { record } => Some(record.seq),
            _ => None,
        })
        .collect();
    assert_eq!(seqs, [1, 2]);
}

#[tokio::test]
async fn all_decisions_are_told_before_the_end_or_it_is_said_that_they_are_not() {
    // How many there are; whether the host can tell them; how many there are as the host says with the
    // end of the command. One that says that all are told is not asked again.
    for (count, away, said) in [
        (2500, false, None),
        (2500, false, Some(2500)),
        (1, true, None),
        (1, true, Some(1)),
        (0, true, Some(0)),
    ] {
        let house = House::with(lazaret_services::ServicesSettings {
            pace: lazaret_services::Pace {
                look: LONG,
                ..settings().pace
            },
            ..settings()
        })
        .await;
        stays(&house.host);
        let run = house.delegate(command(&["curl"])).await.run;
        let sandbox = house.host.until_started("turn-1").await;
        for seq in 1..=count {
            house.host.decided(&sandbox, record(seq));
        }
        if away {
            house.host.forgets_decisions();
        }
        let exit = ExecExit {
            egress_seq: said,
            ..exited(0)
        };
        house.host.says(&sandbox, &turn(), &[], Some(exit));
        house.done(&run).await;
        let events = house.all_events(&run).await;
        assert_whole(&events);
        let told = events
            .iter()
            .filter(|event| matches!(event.body, EventBody::Egress { .. }))
            .count() as u64;
        let note = |event: &lazaret_api::public::Event| matches!(&event.body, EventBody::Note { text } if text.contains("could not be read"));
        assert_eq!(told, if away { 0 } else { count });
        assert_eq!(events.iter().any(note), count == 1);
    }
}

/// What the host said with the end of one command holds for that command: not for a later one that
/// failed to be read.
#[tokio::test]
async fn decisions_behind_a_command_that_said_how_many_there_were_are_asked_for() {
    let house = House::new().await;
    house.host.plays(|exec, request| {
        let play = ordinary(exec, request);
        let exit = play.exit.map(|exit| ExecExit {
            code: Some(i32::from(exec.as_str() == "diff")),
            egress_seq: (exec.as_str() != "diff").then_some(0),
            ..exit
        });
        Play { exit, ..play }
    });
    house.host.forgets_decisions();
    let run = house.delegate(on_repo()).await.run;
    house.done(&run).await;
    let events = house.all_events(&run).await;
    let note = |event: &lazaret_api::public::Event| matches!(&event.body, EventBody::Note { text } if text.contains("tried to reach could not be read"));
    assert!(events.iter().any(note), "{events:?}");
}

#[tokio::test]
async fn a_follower_of_a_running_run_waits_and_ends_when_the_controller_stops() {
    let house = House::new().await;
    stays(&house.host);
    let run = house.delegate(command(&["sleep"])).await.run;
    house.host.until_started("turn-1").await;
    let stream = house
        .services
        .runs
        .follow(&house.by, &run, 0)
        .await
        .unwrap();
    let reading = tokio::spawn(stream.collect::<Vec<_>>());
    house.services.stop().await;
    let events = tokio::time::timeout(LONG, reading).await.unwrap().unwrap();
    assert!(
        events
            .iter()
            .all(|event| !matches!(event.body, EventBody::End { .. })),
        "dur10: a stop ends no run"
    );
    let waited = house
        .services
        .runs
        .wait(&house.by, &run, LONG)
        .now_or_never();
    assert!(waited.is_none() || waited.unwrap().is_ok());
}
