//! `make bench`, third part: what it takes to put a sandbox to sleep, to wake it, and to copy it while
//! it runs. `BENCH_RUNS` (20 if not said) is how often.
//!
//! Sleeping and waking are from the API call to its answer. The pause of a copy is how long the source
//! stood still, as its shim measured it.

use lazaret_api::public::{CreateRun, EgressChoice, EgressMode, ForkRun, Forked, Run};
use lazaret_domain::Argv;
use lazaret_test::figures::{number, spread};
use lazaret_test::station::Station;
use std::io::Write as _;
use std::time::Instant;

/// What the guest holds in memory besides itself, so that there is something to save.
const HELD: &str = "head -c 64000000 /dev/urandom > /dev/shm/held";

async fn timed(station: &Station, run: &Run, what: &str) -> anyhow::Result<u64> {
    let asked = Instant::now();
    let path = format!("/api/v1/runs/{}/{what}", run.run);
    let request = station.client().request(http::Method::POST, &path);
    let _: serde_json::Value = station.client().send(request).await?.ok()?;
    Ok(u64::try_from(asked.elapsed().as_millis())?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let runs = number("BENCH_RUNS", 20);
    let station = Station::plan().open().await?;
    let request = CreateRun {
        command: Some(Argv::of(["sh", "-c", HELD])?),
        egress: EgressChoice::Mode(EgressMode::Sealed),
        ..CreateRun::default()
    };
    let source = station.delegate_with(&request).await?;
    let source = station.wait_done(&source.run).await?;
    let (mut slept, mut woken) = (Vec::new(), Vec::new());
    let (mut paused, mut copied) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        slept.push(timed(&station, &source, "sleep").await?);
        woken.push(timed(&station, &source, "wake").await?);
        let asked = Instant::now();
        let path = format!("/api/v1/runs/{}/fork", source.run);
        let fork = ForkRun {
            n: Some(1),
            command: Some(Argv::of(["true"])?),
        };
        let forked: Forked = station.client().post(&path, &fork).await?.ok()?;
        paused.extend(forked.pause_ms);
        for run in &forked.runs {
            station.wait_done(&run.run).await?;
            copied.push(u64::try_from(asked.elapsed().as_millis())?);
            station.teardown(&run.run).await?;
        }
    }
    station.teardown(&source.run).await?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| {runs} times each, 512 MiB guest with 64 MB in use | median | p99 |\n| --- | --- | --- |"
    )?;
    for (name, values) in [
        ("to sleep", slept),
        ("to wake, memory and all", woken),
        ("a fork: how long the source stood still", paused),
        (
            "a fork: from the call to the end of the copy's first command",
            copied,
        ),
    ] {
        let (median, p99) = spread(values);
        writeln!(out, "| {name} | {median} ms | {p99} ms |")?;
    }
    Ok(())
}
