//! `make bench`, second part: what forking a sandbox from a template costs, against booting one.
//!
//! "Time to interactive" is from the API call to the first command's end, as its caller sees it.
//! All is measured in this one run, under software emulation. `BENCH_RUNS` (20 if not said) is how
//! often, `BENCH_IDLE` (200 if not said) how many idle forks are held at once.

use anyhow::Context;
use lazaret_api::public::{CreateRun, EgressChoice, EgressMode, Run};
use lazaret_domain::Argv;
use lazaret_domain::run::Outcome;
use lazaret_test::figures::{number, spread};
use lazaret_test::station::{Station, until};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// How long idle forks are watched.
const WATCHED: Duration = Duration::from_secs(30);
/// The pause between the calls of the paced series, as the field measures it.
const PAUSE: Duration = Duration::from_millis(200);

fn request() -> anyhow::Result<CreateRun> {
    Ok(CreateRun {
        command: Some(Argv::of(["true"])?),
        egress: EgressChoice::Mode(EgressMode::Sealed),
        ..CreateRun::default()
    })
}

/// One run to its end: the run, and how long its caller, who follows its events, waited, in
/// milliseconds.
async fn interactive(station: &Station) -> anyhow::Result<(Run, u64)> {
    let asked = Instant::now();
    let run = station.delegate_with(&request()?).await?;
    let path = format!("/api/v1/runs/{}/events", run.run);
    let events = station.client().request(http::Method::GET, &path);
    let mut events = events.header("accept", "text/event-stream").send().await?;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("event: end") {
        seen.extend_from_slice(&events.chunk().await?.context("the run's last event")?);
    }
    let waited = u64::try_from(asked.elapsed().as_millis())?;
    let run = station.wait_done(&run.run).await?;
    anyhow::ensure!(run.outcome == Some(Outcome::Succeeded), "{run:#?}");
    Ok((run, waited))
}

/// Runs one after another, each torn down at once.
async fn series(
    station: &Station,
    runs: usize,
    pause: Duration,
) -> anyhow::Result<Vec<(Run, u64)>> {
    let mut all = Vec::new();
    for _ in 0..runs {
        let (run, waited) = interactive(station).await?;
        station.teardown(&run.run).await?;
        all.push((run, waited));
        tokio::time::sleep(pause).await;
    }
    Ok(all)
}

/// Runs that find a spare ready, one after another.
async fn with_spares(runs: usize) -> anyhow::Result<Vec<(Run, u64)>> {
    let mut station = Station::plan()
        .host_set("templates", true)
        .host_set("spares", 1)
        .open()
        .await?;
    let spares = station.ground().state().join("spares");
    let ready = || async {
        let dirs = std::fs::read_dir(&spares).ok()?;
        dirs.flatten()
            .any(|dir| dir.path().join("offer.json").exists())
            .then_some(())
    };
    let (first, _) = interactive(&station).await?;
    station.teardown(&first.run).await?;
    let mut all = Vec::new();
    for _ in 0..runs {
        until("a spare", ready).await?;
        let (run, waited) = interactive(&station).await?;
        anyhow::ensure!(run.stages.boot.spare, "no spare was claimed: {run:#?}");
        station.teardown(&run.run).await?;
        all.push((run, waited));
    }
    Ok(all)
}

/// QEMU with nothing in it, from its start to its monitor's greeting, in milliseconds.
async fn bare_qemu() -> anyhow::Result<u64> {
    let started = Instant::now();
    let mut child = tokio::process::Command::new("qemu-system-x86_64")
        .args([
            "-M",
            "none",
            "-nodefaults",
            "-display",
            "none",
            "-qmp",
            "stdio",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output")?)
        .read_line(&mut line)
        .await?;
    let took = u64::try_from(started.elapsed().as_millis())?;
    child.kill().await?;
    Ok(took)
}

/// The processes of a station's host that hold its sandboxes: pids of shims and of QEMUs.
fn of_host(state: &Path) -> Vec<i32> {
    let wanted = state.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (line.contains(&wanted) && (line.contains("qemu-system") || line.contains(" shim ")))
                .then_some(pid)
        })
        .collect()
}

/// Private memory in KiB, and processor time in ticks.
fn cost(pid: i32) -> Option<(u64, u64)> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let private = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let time = |nth: usize| fields.get(nth)?.parse::<u64>().ok();
    Some((private, time(11)? + time(12)?))
}

fn total(pids: &[i32]) -> (u64, u64) {
    let costs = pids.iter().filter_map(|pid| cost(*pid));
    costs.fold((0, 0), |(memory, time), cost| {
        (memory + cost.0, time + cost.1)
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (runs, idle) = (number("BENCH_RUNS", 20), number("BENCH_IDLE", 200));
    let mut out = std::io::stdout().lock();

    let cold = Station::plan().open().await?;
    let booted = series(&cold, runs, Duration::ZERO).await?;
    drop(cold);

    let most = i64::try_from(idle + 8)?;
    let mut station = Station::plan()
        .host_set("templates", true)
        .host_set("max_sandboxes", most)
        .host_set("disk_overcommit", 1000)
        .set("sandbox", "max_sandboxes", most)
        .open()
        .await?;
    // The first one boots, and its host makes the template.
    until("a fork", || async {
        let (run, _) = interactive(&station).await.ok()?;
        station.teardown(&run.run).await.ok()?;
        run.stages.boot.forked.then_some(())
    })
    .await?;
    let forked = series(&station, runs, Duration::ZERO).await?;
    let paced = series(&station, runs, PAUSE).await?;
    anyhow::ensure!(
        forked
            .iter()
            .chain(&paced)
            .all(|(run, _)| run.stages.boot.forked),
        "a run was booted"
    );
    let asked = (0..8).map(|_| interactive(&station));
    let burst: Vec<_> = futures::future::try_join_all(asked).await?;
    for (run, _) in &burst {
        station.teardown(&run.run).await?;
    }
    let claimed = with_spares(runs).await?;
    let mut bare = Vec::new();
    for _ in 0..runs {
        bare.push(bare_qemu().await?);
    }

    let waited = |all: &[(Run, u64)]| spread(all.iter().map(|(_, waited)| *waited).collect());
    let part = |pick: &dyn Fn(&Run) -> Option<u64>| {
        spread(forked.iter().filter_map(|(run, _)| pick(run)).collect())
    };
    let engine = part(&|run| {
        let boot = &run.stages.boot;
        boot.running_ms?.checked_sub(boot.shim_ms?)
    });
    let adopted = part(&|run| {
        let boot = &run.stages.boot;
        boot.agent_ms?.checked_sub(boot.running_ms?)
    });
    writeln!(
        out,
        "| {runs} runs each | median | p99 |\n| --- | --- | --- |"
    )?;
    for (name, (median, p99)) in [
        ("booted: time to interactive", waited(&booted)),
        (
            "forked: time to interactive, one after another",
            waited(&forked),
        ),
        ("forked: time to interactive, 200 ms apart", waited(&paced)),
        ("forked: time to interactive, burst of 8", waited(&burst)),
        (
            "spare: time to interactive, one was ready",
            waited(&claimed),
        ),
        ("fork: QEMU started → vCPU runs", engine),
        ("fork: vCPU runs → adopted", adopted),
        ("a bare QEMU: started → greets", spread(bare.clone())),
    ] {
        writeln!(out, "| {name} | {median} ms | {p99} ms |")?;
    }
    let ratio = |a: u64, b: u64| format!("{}.{:02}", a / b.max(1), a * 100 / b.max(1) % 100);
    writeln!(out, "\n| ratio | |\n| --- | --- |")?;
    let (cold, warm) = (waited(&booted).0, waited(&forked).0);
    writeln!(
        out,
        "| booted / forked, time to interactive | {} |",
        ratio(cold, warm)
    )?;
    writeln!(
        out,
        "| booted / claimed spare, time to interactive | {} |",
        ratio(cold, waited(&claimed).0)
    )?;
    writeln!(
        out,
        "| engine part of a fork / bare QEMU | {} |",
        ratio(engine.0, spread(bare).0)
    )?;
    out.flush()?;

    density(&mut station, idle, &mut out).await
}

/// Many idle forks at once: what each holds for itself, what all take, and whether they answer.
async fn density(
    station: &mut Station,
    idle: usize,
    out: &mut impl std::io::Write,
) -> anyhow::Result<()> {
    let mut held = Vec::new();
    let started = Instant::now();
    for _ in 0..idle {
        held.push(interactive(station).await?.0);
    }
    let took = started.elapsed();
    let pids = of_host(&station.ground().state());
    let before = total(&pids);
    tokio::time::sleep(WATCHED).await;
    let after = total(&pids);
    let ticks = rustix::param::clock_ticks_per_second();
    let busy = (after.1 - before.1) * 1000 / ticks / WATCHED.as_secs();
    let mut answers = Vec::new();
    for run in &held {
        let asked = Instant::now();
        let pong = station.exec(&run.run, &["true"]).await?;
        anyhow::ensure!(pong.exit_code == Some(0), "{pong:?}");
        answers.push(u64::try_from(asked.elapsed().as_millis())?);
    }
    let slowest = answers.iter().max().copied().unwrap_or(0);
    let count = u64::try_from(idle)?.max(1);
    writeln!(out, "\n| {idle} idle forks at once | |\n| --- | --- |")?;
    writeln!(
        out,
        "| made in | {}.{} s |",
        took.as_secs(),
        took.subsec_millis() / 100
    )?;
    writeln!(
        out,
        "| private memory of one, shim included | {} MiB |",
        after.0 / count / 1024
    )?;
    writeln!(
        out,
        "| all together, while idle | {}.{:03} cores |",
        busy / 1000,
        busy % 1000
    )?;
    writeln!(
        out,
        "| a command in each: median, slowest | {} ms, {slowest} ms |",
        spread(answers).0
    )?;
    for run in held {
        station.teardown(&run.run).await?;
    }
    station.leftovers().await?.assert_none();
    Ok(())
}
