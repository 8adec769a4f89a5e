//! `make bench`: how long each stage of a delegated run takes, and what is the controller's own.
//!
//! Every figure is measured in this one run; medians are of `BENCH_RUNS` runs (20 if not said),
//! one after another, first with sandboxes that boot and then with sandboxes forked from a template. The controller's own part is what is left of a run's total when the boot and the
//! commands in the guest are taken away, all as the shim measured them from outside: API, journal,
//! events, SSH, session and the shim's own records.

use anyhow::Context;
use lazaret_api::public::{CreateRun, Run};
use lazaret_domain::Argv;
use lazaret_domain::run::Outcome;
use lazaret_test::figures::{number, spread};
use lazaret_test::peers::GitServer;
use lazaret_test::station::{Station, until};
use std::io::Write as _;
use std::time::{Duration, Instant};

fn median(values: Vec<u64>) -> u64 {
    spread(values).0
}

fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .context("VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("a size")?.parse()?)
}

/// What is left of a run's total without VMM, kernel and guest.
fn own_part(run: &Run) -> Option<u64> {
    let stages = &run.stages;
    let guest = stages.clone_ms? + stages.command_ms? + stages.diff_ms?;
    let boot = stages.boot.agent_ms?.checked_sub(stages.boot.shim_ms?)?;
    stages.total_ms?.checked_sub(boot + guest)
}

/// A fixed piece of work, such as a controller does for a request: how long it takes, in microseconds.
///
/// On a machine that shares its caches with others it takes several times as long after a pause, and
/// so does every step of a run that waited for its guest. Without this figure the others mean little.
fn work() -> anyhow::Result<u64> {
    let began = Instant::now();
    let mut value = serde_json::json!({"list": [1, 2, 3], "text": "x".repeat(500)});
    for _ in 0..100 {
        value = serde_json::from_str(&serde_json::to_string(&value)?)?;
    }
    let micros = u64::try_from(began.elapsed().as_micros())?;
    anyhow::ensure!(value["list"][2] == 3, "the work was not done");
    Ok(micros)
}

/// Delegates that clone, run `true` and read the diff, one after another: the runs, and how long each
/// call of the API took, in microseconds.
async fn delegates(station: &Station, runs: usize) -> anyhow::Result<(Vec<Run>, Vec<u64>)> {
    let (mut all, mut api) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let request = CreateRun {
            repo: Some("acme/demo".parse()?),
            command: Some(Argv::of(["true"])?),
            ..CreateRun::default()
        };
        let asked = Instant::now();
        let run = station.delegate_with(&request).await?;
        api.push(u64::try_from(asked.elapsed().as_micros())?);
        let run = station.wait_done(&run.run).await?;
        anyhow::ensure!(run.outcome == Some(Outcome::Succeeded), "{run:#?}");
        station.teardown(&run.run).await?;
        all.push(run);
    }
    Ok((all, api))
}

type Pick<'a> = (&'a str, &'a dyn Fn(&Run) -> Option<u64>);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let runs = number("BENCH_RUNS", 20);
    let git = GitServer::start().await?;
    git.commit("acme/demo", &[("README", "hello\n")]).await?;
    let mut station = Station::plan().git(&git).open().await?;
    let idle = resident_kib(station.controller().pid().context("a controller")?)?;
    let (booted, booted_api) = delegates(&station, runs).await?;
    let after = resident_kib(station.controller().pid().context("a controller")?)?;
    drop(station);

    let station = Station::plan()
        .git(&git)
        .host_set("templates", true)
        .open()
        .await?;
    // The first one boots, and its host makes the template.
    until("a fork", || async {
        let (all, _) = delegates(&station, 1).await.ok()?;
        all.iter().all(|run| run.stages.boot.forked).then_some(())
    })
    .await?;
    let (forked, forked_api) = delegates(&station, runs).await?;
    anyhow::ensure!(
        forked.iter().all(|run| run.stages.boot.forked),
        "a run was booted"
    );

    let of = |all: &[Run], pick: &dyn Fn(&Run) -> Option<u64>| {
        median(all.iter().filter_map(pick).collect())
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| stage | booted, median of {runs} | forked, median of {runs} |\n| --- | --- | --- |"
    )?;
    let tenths = |micros: u64| format!("{}.{} ms", micros / 1000, micros % 1000 / 100);
    writeln!(
        out,
        "| API: delegate answered | {} | {} |",
        tenths(median(booted_api)),
        tenths(median(forked_api))
    )?;
    let rows: [Pick<'_>; 10] = [
        ("dispatch (accepted → host has it)", &|run| {
            run.stages.dispatch_ms
        }),
        ("shim ready to start the VMM (since create)", &|run| {
            run.stages.boot.shim_ms
        }),
        ("VMM started (since create)", &|run| run.stages.boot.vmm_ms),
        ("kernel up (since create)", &|run| run.stages.boot.kernel_ms),
        ("agent adopted (since create)", &|run| {
            run.stages.boot.agent_ms
        }),
        ("clone (in the guest)", &|run| run.stages.clone_ms),
        ("command (in the guest)", &|run| run.stages.command_ms),
        ("diff (in the guest)", &|run| run.stages.diff_ms),
        ("whole run", &|run| run.stages.total_ms),
        ("**the controller's own part**", &own_part),
    ];
    for (name, pick) in rows {
        let (booted, forked) = (of(&booted, pick), of(&forked, pick));
        writeln!(out, "| {name} | {booted} ms | {forked} ms |")?;
    }
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        cold.push(work()?);
        work()?;
        warm.push(work()?);
    }
    let (warm, cold) = (median(warm), median(cold));
    writeln!(
        out,
        "\nA fixed piece of work takes this machine {warm} µs, and {cold} µs after two seconds of idleness."
    )?;
    writeln!(out, "\n| size | |\n| --- | --- |")?;
    writeln!(out, "| controller resident, idle | {} MiB |", idle / 1024)?;
    writeln!(
        out,
        "| controller resident, after {runs} runs | {} MiB |",
        after / 1024
    )?;
    Ok(())
}
