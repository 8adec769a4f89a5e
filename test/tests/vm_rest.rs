//! Sleeping and waking, from the command line down to a real guest.

use anyhow::Context;
use lazaret_domain::sandbox::SandboxState;
use lazaret_test::peers::GitServer;
use lazaret_test::station::Station;
use serde_json::Value;

/// The command line with the station's key; its document.
async fn lazaret(station: &mut Station, token: &str, words: &[&str]) -> anyhow::Result<Value> {
    let controller = station.controller();
    let output = controller
        .command()
        .args([words[0], "--json"])
        .args(&words[1..])
        .env("LAZARET_URL", controller.url())
        .env("LAZARET_TOKEN", token)
        .output()
        .await
        .context("run lazaret")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{words:?}: {said}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[tokio::test]
async fn a_finished_run_sleeps_through_a_killed_controller_and_wakes_with_its_memory()
-> anyhow::Result<()> {
    let mut station = Station::plan()
        .set("sandbox", "max_sandboxes", 1)
        .open()
        .await?;
    let token = station.controller().make_key("operate").await?;
    let write = [
        "sh",
        "-c",
        "echo memory > /dev/shm/a; echo disk > /workspace/a",
    ];
    let run = station.run_to_end(&write, None).await?.run;
    let id = run.to_string();
    let slept = lazaret(&mut station, &token, &["sleep", &id]).await?;
    assert_eq!(slept["sandbox"]["state"], "asleep", "{slept:#}");
    lazaret(&mut station, &token, &["keep", &id]).await?;

    station.controller().kill().await?;
    station.controller().start().await?;
    let shown = lazaret(&mut station, &token, &["status", &id]).await?;
    assert_eq!(shown["sandbox"]["state"], "asleep", "{shown:#}");
    assert_eq!(shown["sandbox"]["kept"], true, "{shown:#}");
    assert_eq!(shown["outcome"], "succeeded");

    // Its place is free for another, and without a place it does not wake.
    let other = station.run_to_end(&["true"], None).await?.run;
    let refused = station
        .client()
        .post(&format!("/api/v1/runs/{id}/wake"), &())
        .await?;
    assert_eq!(refused.problem()?.code.as_str(), "sandbox_cap");
    station.teardown(&other).await?;

    let said = station
        .exec(&run, &["cat", "/dev/shm/a", "/workspace/a"])
        .await?;
    assert_eq!(said.stdout, "memory\ndisk\n");
    let sandbox = station.run(&run).await?.sandbox.context("a sandbox")?;
    assert_eq!(sandbox.state, SandboxState::Ready);
    station.teardown(&run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}

#[tokio::test]
async fn a_fork_tries_two_ways_from_one_prepared_state() -> anyhow::Result<()> {
    let git = GitServer::start().await?;
    git.commit("acme/demo", &[("README", "hello\n")]).await?;
    let mut station = Station::plan().git(&git).open().await?;
    let token = station.controller().make_key("run").await?;
    // Prepared: a change that is not committed, and something in memory only.
    let prepare = [
        "sh",
        "-c",
        "echo prepared >> README; echo memory > /dev/shm/a",
    ];
    let parent = station.run_to_end(&prepare, Some("acme/demo")).await?;
    let id = parent.run.to_string();
    let way = "cat /dev/shm/a; git branch --show-current; echo $(hostname) >> README";
    let words = ["fork", &id, "-n", "2", "--", "sh", "-c", way];
    let forked = lazaret(&mut station, &token, &words).await?;
    let copies = forked["runs"].as_array().context("runs")?.clone();
    anyhow::ensure!(
        copies.len() == 2 && forked["pause_ms"].is_u64(),
        "{forked:#}"
    );
    let mut kernels = vec![parent.sandbox.context("a sandbox")?.boot_id];
    for copy in copies {
        let run = serde_json::from_value(copy["run"].clone())?;
        let copy = station.wait_done(&run).await?;
        assert_eq!(copy.parent, Some(parent.run.clone()));
        assert_eq!((copy.base, copy.exit_code), (parent.base.clone(), Some(0)));
        let said = station.output(&run).await?;
        assert!(said.contains(&format!("memory\nlazaret/{run}\n")), "{said}");
        let diff = station.diff(&run).await?.diff;
        let sandbox = copy.sandbox.context("a sandbox")?;
        assert!(
            diff.contains("+prepared") && diff.contains(sandbox.id.as_str()),
            "{diff}"
        );
        kernels.push(sandbox.boot_id);
        station.teardown(&run).await?;
    }
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(
        kernels.len(),
        3,
        "each has a boot id of its own: {kernels:?}"
    );
    // The parent holds what it held.
    let kept = station.exec(&parent.run, &["cat", "/dev/shm/a"]).await?;
    assert_eq!(kept.stdout, "memory\n");
    station.teardown(&parent.run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}
