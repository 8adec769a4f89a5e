//! The callers that people have: the official MCP SDKs and our own command line, against a
//! controller with a real host and real guests.

use anyhow::Context;
use lazaret_domain::run::Outcome;
use lazaret_test::clients::Sdk;
use lazaret_test::peers::GitServer;
use lazaret_test::station::Station;
use serde_json::{Value, json};
use std::process::Output;

const MAKEFILE: &str = "test:\n\t@echo testing; echo changed >> README\n";

/// A station, and the server of the repository that its callers work on.
async fn demo() -> anyhow::Result<(GitServer, Station)> {
    let git = GitServer::start().await?;
    git.commit(
        "acme/demo",
        &[("Makefile", MAKEFILE), ("README", "hello\n")],
    )
    .await?;
    let station = Station::plan().git(&git).open().await?;
    Ok((git, station))
}

#[tokio::test]
async fn the_official_sdks_delegate_to_a_real_guest_and_tear_down() -> anyhow::Result<()> {
    let (_git, mut station) = demo().await?;
    let token = station.controller().make_key("run").await?;
    let url = format!("{}/mcp", station.controller().url());
    let task = json!({ "repo": "acme/demo", "command": ["make", "test"], "wait_s": 45 });
    let mut kernels = Vec::new();
    for sdk in Sdk::ALL {
        let seen = sdk.run(&url, &token, &task).await?;
        assert_eq!(seen["status"]["outcome"], "succeeded", "{seen:#}");
        assert_eq!(seen["torn_down"]["removed"], true, "{seen:#}");
        let run: lazaret_domain::RunId = serde_json::from_value(seen["delegated"]["run"].clone())?;
        assert!(station.output(&run).await?.contains("testing"));
        assert!(station.diff(&run).await?.diff.contains("+changed"));
        let sandbox = station.run(&run).await?.sandbox.context("a sandbox")?;
        kernels.push(sandbox.boot_id.context("a boot id")?);
    }
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(kernels.len(), 3, "each task had a kernel of its own");
    station.leftovers().await?.assert_none();
    Ok(())
}

/// The command line, with the station's key.
async fn lazaret(station: &mut Station, token: &str, words: &[&str]) -> anyhow::Result<Output> {
    let controller = station.controller();
    let output = controller
        .command()
        .args(words)
        .env("LAZARET_URL", controller.url())
        .env("LAZARET_TOKEN", token)
        .output();
    output.await.context("run lazaret")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn the_command_line_delegates_waits_reads_and_tears_down() -> anyhow::Result<()> {
    let (_git, mut station) = demo().await?;
    let token = station.controller().make_key("operate").await?;

    // Waiting: the command's own output, and its success, are the program's.
    let words = [
        "delegate",
        "--repo",
        "acme/demo",
        "--wait",
        "--",
        "make",
        "test",
    ];
    let done = lazaret(&mut station, &token, &words).await?;
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert_eq!(text(&done.stdout), "testing\n");
    let run = said
        .lines()
        .find_map(|line| line.strip_prefix("run "))
        .context("the run's id")?
        .to_owned();

    let status = lazaret(&mut station, &token, &["status", &run, "--json"]).await?;
    let status: Value = serde_json::from_slice(&status.stdout)?;
    assert_eq!(status["outcome"], "succeeded", "{status:#}");
    let diff = lazaret(&mut station, &token, &["diff", &run]).await?;
    assert!(text(&diff.stdout).contains("+changed"), "{diff:?}");
    let log = lazaret(&mut station, &token, &["logs", &run]).await?;
    assert!(text(&log.stdout).contains("testing"), "{log:?}");

    // A command beside it has an exit status of its own; a file goes in and out as it is.
    let exec = lazaret(
        &mut station,
        &token,
        &["exec", &run, "--", "sh", "-c", "echo here; exit 9"],
    )
    .await?;
    assert_eq!(text(&exec.stdout), "here\n", "{exec:?}");
    assert_eq!(exec.status.code(), Some(1), "{exec:?}");
    let readme = lazaret(&mut station, &token, &["get", &run, "demo/README"]).await?;
    assert_eq!(text(&readme.stdout), "hello\nchanged\n", "{readme:?}");

    let torn_down = lazaret(&mut station, &token, &["teardown", &run]).await?;
    assert_eq!(torn_down.status.code(), Some(0), "{torn_down:?}");

    // A command that fails fails the program, and one document says why.
    let words = [
        "delegate",
        "--wait",
        "--json",
        "--",
        "sh",
        "-c",
        "echo out; exit 7",
    ];
    let failed = lazaret(&mut station, &token, &words).await?;
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stderr));
    let document: Value = serde_json::from_slice(&failed.stdout)?;
    assert_eq!(document["exit_code"], 7, "{document:#}");
    let failed = document["run"].as_str().context("a run")?.to_owned();
    let torn_down = lazaret(&mut station, &token, &["teardown", &failed]).await?;
    assert_eq!(torn_down.status.code(), Some(0), "{torn_down:?}");

    for (words, status, code) in [
        (&["status", "no-such-run"][..], 2, "invalid_id"),
        (&["status", "r0000000000000000"], 4, "run_not_found"),
        (
            &["delegate", "--repo", "acme/../x", "--", "true"],
            2,
            "invalid_repo",
        ),
        (&["key", "ls"], 3, "scope_too_narrow"),
    ] {
        let refused = lazaret(&mut station, &token, words).await?;
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(code), "{words:?}: {said}");
    }
    let refused = lazaret(&mut station, "lzk_wrong", &["ls"]).await?;
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    station.controller().stop().await?;
    let away = lazaret(&mut station, &token, &["ls"]).await?;
    assert_eq!(away.status.code(), Some(5), "{}", text(&away.stderr));
    Ok(())
}

#[tokio::test]
async fn the_stdio_bridge_delegates_to_a_real_guest() -> anyhow::Result<()> {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let mut station = Station::plan().open().await?;
    let token = station.controller().make_key("run").await?;
    let controller = station.controller();
    let mut bridge = controller
        .command()
        .arg("mcp")
        .env("LAZARET_URL", controller.url())
        .env("LAZARET_TOKEN", &token)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut input = bridge.stdin.take().context("its input")?;
    let mut output = BufReader::new(bridge.stdout.take().context("its output")?).lines();
    let mut call = async |id: u32, method: &str, params: Value| -> anyhow::Result<Value> {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        input.write_all(format!("{request}\n").as_bytes()).await?;
        loop {
            let line = output.next_line().await?.context("the bridge ended")?;
            let message: Value = serde_json::from_str(&line)?;
            if message["id"] == json!(id) {
                return Ok(message["result"].clone());
            }
        }
    };
    let hello = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": { "name": "test", "version": "1" },
    });
    let hello = call(1, "initialize", hello).await?;
    assert_eq!(hello["protocolVersion"], "2025-11-25", "{hello:#}");
    let task =
        json!({ "name": "delegate", "arguments": { "command": ["uname", "-s"], "wait_s": 45 } });
    let delegated = call(2, "tools/call", task).await?;
    let run: lazaret_domain::RunId =
        serde_json::from_value(delegated["structuredContent"]["run"].clone())
            .with_context(|| format!("{delegated:#}"))?;
    let run_done = station.wait_done(&run).await?;
    assert_eq!(run_done.outcome, Some(Outcome::Succeeded), "{run_done:#?}");
    assert_eq!(station.output(&run).await?, "Linux\n");
    let gone = json!({ "name": "teardown", "arguments": { "run": run } });
    let gone = call(3, "tools/call", gone).await?;
    assert_eq!(gone["structuredContent"]["removed"], true, "{gone:#}");
    drop(input);
    assert!(bridge.wait().await?.success());
    station.leftovers().await?.assert_none();
    Ok(())
}
