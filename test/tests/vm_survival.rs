//! What happens when parts are killed, cut off or wrong: nothing is lost, nothing is left over, and
//! whatever is not well says so.

use lazaret_api::public::{CreateRun, EnrollHost, HostList};
use lazaret_domain::run::Outcome;
use lazaret_domain::sandbox::Reach;
use lazaret_domain::{Argv, DenialCode};
use lazaret_test::peers::GitServer;
use lazaret_test::station::{Station, until};

#[tokio::test]
async fn a_run_outlives_a_killed_controller_and_loses_no_line() -> anyhow::Result<()> {
    let git = GitServer::start().await?;
    git.commit("acme/demo", &[("README", "hello\n")]).await?;
    let mut station = Station::plan().git(&git).open().await?;
    // The command goes on when the test says so, through a file in the workspace.
    let script = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done; echo half; \
                  while [ ! -e /workspace/go ]; do sleep 0.2; done; \
                  while [ $i -lt 800 ]; do echo line $i; i=$((i+1)); done; echo x > new-file";
    let run = station
        .delegate(&["sh", "-c", script], Some("acme/demo"))
        .await?;
    station.wait_output(&run.run, "half").await?;

    station.controller().kill().await?;
    station.controller().start().await?;
    station.exec(&run.run, &["touch", "/workspace/go"]).await?;

    let run = station.wait_done(&run.run).await?;
    assert_eq!(run.outcome, Some(Outcome::Succeeded), "{run:#?}");
    let output = station.output(&run.run).await?;
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("line "))
        .collect();
    let wanted: Vec<String> = (0..800).map(|i| format!("line {i}")).collect();
    assert_eq!(lines, wanted, "every line once, in order");
    assert!(station.diff(&run.run).await?.diff.contains("new-file"));
    station.teardown(&run.run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}

#[tokio::test]
async fn a_controller_killed_at_any_stage_finishes_the_run_once() -> anyhow::Result<()> {
    let git = GitServer::start().await?;
    git.commit("acme/demo", &[("README", "hello\n")]).await?;
    let mut station = Station::plan().git(&git).open().await?;
    for stage in ["accepted", "sandbox", "cloned"] {
        let run = station
            .delegate(
                &[
                    "sh",
                    "-c",
                    "echo ran >> /workspace/count; cat /workspace/count",
                ],
                Some("acme/demo"),
            )
            .await?;
        match stage {
            "accepted" => {}
            "sandbox" => drop(
                station
                    .wait_until(&run.run, "have a sandbox", |run| run.sandbox.is_some())
                    .await?,
            ),
            _ => drop(
                station
                    .wait_until(&run.run, "be cloned", |run| run.base.is_some())
                    .await?,
            ),
        }
        station.controller().kill().await?;
        station.controller().start().await?;
        let run = station.wait_done(&run.run).await?;
        assert_eq!(
            run.outcome,
            Some(Outcome::Succeeded),
            "killed when {stage}: {run:#?}"
        );
        assert_eq!(
            station.output(&run.run).await?,
            "ran\n",
            "killed when {stage}: the command ran once"
        );
        station.teardown(&run.run).await?;
    }
    station.leftovers().await?.assert_none();
    Ok(())
}

#[tokio::test]
async fn t01_the_run_cap_ends_a_sandbox_with_the_controller_killed() -> anyhow::Result<()> {
    let mut station = Station::plan().open().await?;
    let run = station
        .delegate_with(&CreateRun {
            command: Some(Argv::of(["sh", "-c", "echo up; sleep 3600"])?),
            max_duration: Some("45s".parse()?),
            ..CreateRun::default()
        })
        .await?;
    station.wait_output(&run.run, "up").await?;
    station.controller().kill().await?;

    let ground = station.ground();
    until("the shim and QEMU to be gone", || async {
        ground
            .processes()
            .iter()
            .all(|(_, line)| !line.contains("qemu"))
            .then_some(())
    })
    .await?;

    station.controller().start().await?;
    let run = station.wait_done(&run.run).await?;
    assert_eq!(run.outcome, Some(Outcome::Interrupted), "{run:#?}");
    assert_eq!(run.cause.expect("a cause").code, "run_cap");
    station.teardown(&run.run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}

#[tokio::test]
async fn an_unreachable_host_is_said_and_recovers_by_itself() -> anyhow::Result<()> {
    let mut station = Station::plan().open().await?;
    let run = station
        .delegate(
            &[
                "sh",
                "-c",
                "echo up; while [ ! -e /workspace/go ]; do sleep 0.2; done",
            ],
            None,
        )
        .await?;
    station.wait_output(&run.run, "up").await?;

    station.ground().stop_sshd().await;
    let cut = station
        .wait_until(&run.run, "be unreachable", |run| {
            matches!(
                run.sandbox.as_ref().map(|s| s.reach),
                Some(Reach::Unreachable { .. })
            )
        })
        .await?;
    assert_eq!(cut.outcome, None, "a run whose host is away is not over");
    let refused = station
        .client()
        .post("/api/v1/runs", &serde_json::json!({"command": ["true"]}))
        .await?
        .problem()?;
    assert_eq!(refused.code, DenialCode::HostUnreachable, "{refused:?}");

    station.ground().start_sshd().await?;
    station
        .wait_until(&run.run, "be reachable", |run| {
            matches!(
                run.sandbox.as_ref().map(|s| s.reach),
                Some(Reach::Reachable)
            )
        })
        .await?;
    station.exec(&run.run, &["touch", "/workspace/go"]).await?;
    let run = station.wait_done(&run.run).await?;
    assert_eq!(run.outcome, Some(Outcome::Succeeded), "{run:#?}");
    station.teardown(&run.run).await?;
    Ok(())
}

#[tokio::test]
async fn a_wrong_host_key_is_refused_and_named() -> anyhow::Result<()> {
    let mut station = Station::plan().without_host().open().await?;
    let ground = station.ground();
    let address = format!("{}@127.0.0.1:{}", ground.account(), ground.port());
    let request = EnrollHost {
        name: Some("wrong".parse()?),
        address,
        host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned(),
    };
    // It is refused at once, by name, and not kept.
    let refused = station
        .client()
        .post("/api/v1/hosts", &request)
        .await?
        .problem()?;
    assert_eq!(refused.code, DenialCode::HostKeyMismatch, "{refused:?}");
    let list: HostList = station.client().get("/api/v1/hosts").await?.ok()?;
    assert_eq!(list.hosts, []);
    let refused = station
        .client()
        .post("/api/v1/runs", &serde_json::json!({"command": ["true"]}))
        .await?
        .problem()?;
    assert_eq!(refused.code, DenialCode::NoHost, "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn the_cap_on_sandboxes_refuses_by_name_and_is_freed_by_a_teardown() -> anyhow::Result<()> {
    let station = Station::plan()
        .set("sandbox", "max_sandboxes", 1)
        .open()
        .await?;
    let run = station.run_to_end(&["true"], None).await?;
    let refused = station
        .client()
        .post("/api/v1/runs", &serde_json::json!({"command": ["true"]}))
        .await?
        .problem()?;
    assert_eq!(refused.code, DenialCode::SandboxCap);
    assert!(refused.retry_after.is_some(), "{refused:?}");
    station.teardown(&run.run).await?;
    let run = station.run_to_end(&["true"], None).await?;
    station.teardown(&run.run).await?;
    Ok(())
}

#[tokio::test]
async fn twenty_cycles_of_delegate_and_teardown_leave_nothing() -> anyhow::Result<()> {
    let station = Station::plan().open().await?;
    // Two at a time: each guest fills a core under software emulation.
    for cycle in 0..10 {
        let (one, other) = tokio::try_join!(
            station.delegate(&["true"], None),
            station.delegate(&["sleep", "3600"], None)
        )?;
        let one = station.wait_done(&one.run).await?;
        assert_eq!(
            one.outcome,
            Some(Outcome::Succeeded),
            "cycle {cycle}: {one:#?}"
        );
        // The other is torn down wherever it happens to be.
        tokio::try_join!(station.teardown(&one.run), station.teardown(&other.run))?;
    }
    station.leftovers().await?.assert_none();
    Ok(())
}
