//! `make bench`: how long each stage of a delegated run takes, and what is the controller's own.
//!
//! Every figure is measured in this one run; medians are of `BENCH_RUNS` runs (20 if not said),
//! one after another. The controller's own part is what is left of a run's total when the boot and the
//! commands in the guest are taken away, all as the shim measured them from outside: API, journal,
//! events, SSH, session and the shim's own records.

use anyhow::Context;
use lazaret_api::public::{CreateRun, Run};
use lazaret_domain::Argv;
use lazaret_domain::run::Outcome;
use lazaret_test::peers::GitServer;
use lazaret_test::station::Station;
use std::io::Write as _;
use std::time::Instant;

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
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

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let runs: usize = std::env::var("BENCH_RUNS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(20);
    let git = GitServer::start().await?;
    git.commit("acme/demo", &[("README", "hello\n")]).await?;
    let mut station = Station::plan().git(&git).open().await?;
    let idle = resident_kib(station.controller().pid().context("a controller")?)?;

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
    let after = resident_kib(station.controller().pid().context("a controller")?)?;

    let of = |pick: &dyn Fn(&Run) -> Option<u64>| median(all.iter().filter_map(pick).collect());
    let mut out = std::io::stdout().lock();
    writeln!(out, "| stage | median of {runs} runs |\n| --- | --- |")?;
    let rows: [(&str, u64); 9] = [
        (
            "dispatch (accepted → host has it)",
            of(&|run| run.stages.dispatch_ms),
        ),
        (
            "shim ready to start the VMM (since create)",
            of(&|run| run.stages.boot.shim_ms),
        ),
        ("VMM runs (since create)", of(&|run| run.stages.boot.vmm_ms)),
        (
            "kernel up (since create)",
            of(&|run| run.stages.boot.kernel_ms),
        ),
        (
            "agent adopted (since create)",
            of(&|run| run.stages.boot.agent_ms),
        ),
        ("clone (in the guest)", of(&|run| run.stages.clone_ms)),
        ("command (in the guest)", of(&|run| run.stages.command_ms)),
        ("diff (in the guest)", of(&|run| run.stages.diff_ms)),
        ("whole run", of(&|run| run.stages.total_ms)),
    ];
    let api = median(api);
    writeln!(
        out,
        "| API: delegate answered | {}.{} ms |",
        api / 1000,
        api % 1000 / 100
    )?;
    for (name, ms) in rows {
        writeln!(out, "| {name} | {ms} ms |")?;
    }
    let own = of(&own_part);
    let whole = of(&|run| run.stages.total_ms).max(1);
    writeln!(
        out,
        "| **the controller's own part** | **{own} ms** ({}.{} % of the whole) |",
        own * 100 / whole,
        own * 1000 / whole % 10
    )?;
    writeln!(out, "| controller resident, idle | {} MiB |", idle / 1024)?;
    writeln!(
        out,
        "| controller resident, after {runs} runs | {} MiB |",
        after / 1024
    )?;
    Ok(())
}
