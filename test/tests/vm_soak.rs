//! Parts are killed at random, again and again, while runs come and go. In the end every run says what
//! became of it, and the host is as it was.
//!
//! `SOAK_KILLS` (12 if not said; `make soak` says 200) is how many, `SOAK_SEED` which.

use anyhow::Context;
use lazaret_api::public::{CreateRun, EgressChoice, EgressMode, Run};
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_domain::{Argv, RunId};
use lazaret_test::station::{Station, until};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;

/// Runs that are kept going.
const GOING: usize = 3;

fn told<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    let told = std::env::var(name).ok();
    told.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// One of the processes of the host's account whose command line holds this.
fn one_of(station: &mut Station, what: &str, dice: &mut StdRng) -> Option<Pid> {
    let all = station.ground().processes();
    let fitting: Vec<_> = all
        .iter()
        .filter(|(_, line)| line.contains(what))
        .map(|(pid, _)| *pid)
        .collect();
    let chosen = *fitting.get(dice.random_range(0..fitting.len().max(1)))?;
    Pid::from_raw(i32::try_from(chosen).ok()?)
}

/// A run that takes a moment, once the controller takes it: its host may be away just now.
async fn begin(station: &Station) -> anyhow::Result<RunId> {
    let request = CreateRun {
        command: Some(Argv::of(["sh", "-c", "sleep 1; echo done"])?),
        egress: EgressChoice::Mode(EgressMode::Sealed),
        ..CreateRun::default()
    };
    let run = until("a run to be accepted", || async {
        station.delegate_with(&request).await.ok()
    })
    .await?;
    Ok(run.run)
}

async fn over(station: &Station, run: &RunId) -> bool {
    station
        .run(run)
        .await
        .is_ok_and(|run| run.outcome.is_some())
}

/// Whether a run's command is going on, or no run is left that could get there.
async fn at_work(station: &Station, going: &[RunId]) -> Option<()> {
    let mut left = false;
    for run in going {
        let run = station.run(run).await.ok()?;
        if run.state == RunPhase::Running {
            return Some(());
        }
        left |= run.outcome.is_none();
    }
    (!left).then_some(())
}

#[tokio::test]
async fn random_kills_leave_every_run_explained_and_nothing_behind() -> anyhow::Result<()> {
    let (kills, seed) = (
        told("SOAK_KILLS", 12_u32),
        told("SOAK_SEED", rand::random()),
    );
    tracing::info!(kills, seed, "a soak");
    eprintln!("SOAK_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut station = Station::plan()
        .host_set("templates", true)
        .host_set("max_sandboxes", 16)
        .set("sandbox", "max_sandboxes", 16)
        .open()
        .await?;
    // The first run boots, and its host makes the template that the others are forked from.
    until("a fork", || async {
        let run = begin(&station).await.ok()?;
        let run = station.wait_done(&run).await.ok()?;
        station.teardown(&run.run).await.ok()?;
        run.stages.boot.forked.then_some(())
    })
    .await?;
    let mut runs = Vec::new();
    let mut going: Vec<RunId> = Vec::new();
    let mut killed: BTreeMap<&str, u32> = BTreeMap::new();
    while killed.values().sum::<u32>() < kills {
        let mut still = Vec::new();
        for run in going {
            if over(&station, &run).await {
                runs.push(run);
            } else {
                still.push(run);
            }
        }
        going = still;
        while going.len() < GOING {
            going.push(begin(&station).await?);
        }
        // Half of the time something is at work by then, else whatever stage things are in.
        if dice.random() {
            until("a run at work", || at_work(&station, &going)).await?;
        }
        let what = ["controller", " host gate ", " host shim ", "qemu-system"]
            [dice.random_range(0..4_usize)];
        if what == "controller" {
            station.controller().kill().await?;
            station.controller().start().await?;
        } else if let Some(pid) = one_of(&mut station, what, &mut dice) {
            // It may have ended by itself since.
            let _ = kill_process(pid, Signal::KILL);
        } else {
            tokio::task::yield_now().await;
            continue;
        }
        *killed.entry(what).or_default() += 1;
    }
    runs.append(&mut going);

    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for run in &runs {
        let run: Run = station.wait_done(run).await?;
        let outcome = run.outcome.context("an outcome")?;
        if outcome != Outcome::Succeeded {
            let cause = run
                .cause
                .as_ref()
                .with_context(|| format!("no cause: {run:#?}"))?;
            assert!(
                !cause.code.is_empty() && !cause.message.is_empty(),
                "{run:#?}"
            );
            *outcomes.entry(cause.code.clone()).or_default() += 1;
        }
        station.teardown(&run.run).await?;
    }
    eprintln!(
        "killed {killed:?}; of {} runs did not succeed: {outcomes:?}",
        runs.len()
    );
    // A template of which no fork came up was removed, and is made again.
    let templates = station.ground().state().join("templates");
    until("no template is being made", || async {
        let entries = std::fs::read_dir(&templates).ok()?;
        let making =
            |entry: std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
        (!entries.flatten().any(making)).then_some(())
    })
    .await?;
    station.leftovers().await?.assert_none();
    Ok(())
}
