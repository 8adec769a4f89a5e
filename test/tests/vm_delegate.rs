//! One delegated run, end to end: HTTP → controller → real SSH → shim → real guest → real git.

use lazaret_api::public::EventBody;
use lazaret_domain::run::{Outcome, RunPhase};
use lazaret_test::peers::GitServer;
use lazaret_test::station::{Station, until};

const MAKEFILE: &str = "test:\n\t@echo testing; echo changed >> README; echo new > added.txt; git add -A; git commit -qm work\n";

#[tokio::test]
async fn a_delegate_clones_runs_and_returns_outcome_diff_and_branch() -> anyhow::Result<()> {
    let git = GitServer::start().await?;
    let base = git
        .commit(
            "acme/demo",
            &[("Makefile", MAKEFILE), ("README", "hello\n")],
        )
        .await?;
    let station = Station::plan().git(&git).open().await?;

    let run = station
        .delegate(&["make", "test"], Some("acme/demo"))
        .await?;
    let run = station.wait_done(&run.run).await?;

    assert_eq!(
        run.outcome,
        Some(Outcome::Succeeded),
        "{run:#?}\n{}",
        station.log(&run.run).await?
    );
    assert_eq!(run.exit_code, Some(0));
    assert_eq!(run.base.as_deref(), Some(base.as_str()));
    let branch = run.branch.as_ref().expect("a branch").as_str().to_owned();
    assert_eq!(branch, format!("lazaret/{}", run.run));
    assert!(station.output(&run.run).await?.contains("testing"));

    let diff = station.diff(&run.run).await?;
    assert_eq!(diff.base, base);
    assert!(
        diff.diff.contains("+changed") && diff.diff.contains("added.txt"),
        "{}",
        diff.diff
    );

    // The work is committed on the run's branch; the base branch is where it was.
    let head = station
        .exec(
            &run.run,
            &[
                "git",
                "-C",
                "/workspace/demo",
                "rev-parse",
                "--abbrev-ref",
                "HEAD",
            ],
        )
        .await?;
    assert_eq!(head.stdout.trim(), branch, "{head:?}");
    let main = station
        .exec(
            &run.run,
            &["git", "-C", "/workspace/demo", "rev-parse", "origin/HEAD"],
        )
        .await?;
    assert_eq!(main.stdout.trim(), base, "{main:?}");

    // It went through the gateway's git route, and nothing in the clone holds a credential.
    assert!(
        git.asked()
            .iter()
            .any(|asked| asked.path.ends_with("/git-upload-pack")),
        "{:?}",
        git.asked()
    );
    let config = station
        .exec(&run.run, &["cat", "/workspace/demo/.git/config"])
        .await?;
    assert!(
        !config.stdout.to_lowercase().contains("authorization"),
        "{}",
        config.stdout
    );

    station.teardown(&run.run).await?;
    station.leftovers().await?.assert_none();
    // What the run produced outlives its sandbox.
    assert_eq!(station.diff(&run.run).await?, diff);
    Ok(())
}

#[tokio::test]
async fn a_command_runs_unprivileged_with_an_environment_of_its_own() -> anyhow::Result<()> {
    let station = Station::plan().open().await?;
    let run = station
        .run_to_end(
            &["sh", "-c", "id -u; id -G; pwd; env | cut -d= -f1 | sort"],
            None,
        )
        .await?;
    assert_eq!(run.outcome, Some(Outcome::Succeeded), "{run:#?}");
    let output = station.output(&run.run).await?;
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("1000"), "{output}");
    assert_eq!(lines.next(), Some("1000"), "{output}");
    assert_eq!(lines.next(), Some("/workspace"), "{output}");
    let names: Vec<&str> = lines.collect();
    for name in &names {
        assert!(
            [
                "HOME", "PATH", "TERM", "LANG", "TMPDIR", "USER", "LOGNAME", "SHELL", "PWD", "_",
                "SHLVL", "OLDPWD"
            ]
            .contains(name)
                || name.starts_with("LAZARET_")
                || name.starts_with("GIT_"),
            "{name} is not on the list: {names:?}"
        );
    }

    // Nothing but the workspace, the home and the temporary directories can be written.
    for path in [
        "/etc/x",
        "/usr/x",
        "/opt/x",
        "/uploads/x",
        "/x",
        "/root/x",
        "/var/x",
    ] {
        let tried = station.exec(&run.run, &["touch", path]).await?;
        assert_ne!(tried.exit_code, Some(0), "{path} could be written");
    }
    for path in ["/workspace/x", "/home/agent/x", "/tmp/x"] {
        let tried = station.exec(&run.run, &["touch", path]).await?;
        assert_eq!(
            tried.exit_code,
            Some(0),
            "{path} could not be written: {tried:?}"
        );
    }
    station.teardown(&run.run).await?;
    Ok(())
}

#[tokio::test]
async fn the_exit_status_of_a_failing_command_is_the_run_s() -> anyhow::Result<()> {
    let station = Station::plan().open().await?;
    let run = station
        .run_to_end(&["sh", "-c", "echo to stderr >&2; exit 7"], None)
        .await?;
    assert_eq!(run.state, RunPhase::Done);
    assert_eq!(
        (run.outcome, run.exit_code),
        (Some(Outcome::Failed), Some(7))
    );
    assert!(run.cause.is_some());

    let events = station.events(&run.run).await?;
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(
        numbers,
        (1..=events.len() as u64).collect::<Vec<_>>(),
        "event numbers have no gaps"
    );
    assert!(matches!(
        events.last().expect("an event").body,
        EventBody::End {
            exit_code: Some(7),
            ..
        }
    ));
    assert!(events.iter().any(|event| {
        matches!(&event.body, EventBody::Log { stream, text } if stream == "stderr" && text.contains("to stderr"))
    }));

    let torn_down = station.teardown(&run.run).await?;
    assert_eq!(torn_down.outcome, Outcome::Failed);
    // Twice is as good as once.
    let again = station.teardown(&run.run).await?;
    assert!(again.removed);
    assert_eq!(again.outcome, Outcome::Failed);
    station.leftovers().await?.assert_none();
    Ok(())
}

#[tokio::test]
async fn two_runs_at_once_do_not_share_a_kernel() -> anyhow::Result<()> {
    let station = Station::plan().open().await?;
    let script = [
        "sh",
        "-c",
        "cat /proc/sys/kernel/random/boot_id; uname -r; cat /etc/machine-id; hostname",
    ];
    let (one, other) = tokio::try_join!(
        station.delegate(&script, None),
        station.delegate(&script, None)
    )?;
    let (one, other) =
        tokio::try_join!(station.wait_done(&one.run), station.wait_done(&other.run))?;
    let (said_one, said_other) =
        tokio::try_join!(station.output(&one.run), station.output(&other.run))?;
    let (said_one, said_other): (Vec<_>, Vec<_>) =
        (said_one.lines().collect(), said_other.lines().collect());
    assert_eq!(said_one.len(), 4, "{said_one:?}");

    let host_boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let host_kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    assert_ne!(said_one[0], said_other[0], "boot ids");
    assert_ne!(said_one[0], host_boot.trim());
    assert_ne!(said_other[0], host_boot.trim());
    assert_ne!(
        said_one[1],
        host_kernel.trim(),
        "the guest's kernel is its own"
    );
    assert_ne!(said_one[2], said_other[2], "machine ids");
    assert_ne!(said_one[3], said_other[3], "host names");
    let sandbox = one.sandbox.expect("a sandbox");
    assert_eq!(
        sandbox.boot_id.as_deref(),
        Some(said_one[0]),
        "what the API shows is what the guest has"
    );

    station.teardown(&one.run).await?;
    station.teardown(&other.run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}

#[tokio::test]
async fn a_cancelled_run_leaves_no_process_of_its_command() -> anyhow::Result<()> {
    let station = Station::plan().open().await?;
    let stubborn = "(trap '' TERM; echo $$ up; sleep 991) & (setsid sleep 992 &) ; sleep 993";
    let run = station.delegate(&["sh", "-c", stubborn], None).await?;
    station.wait_output(&run.run, "up").await?;
    station.cancel(&run.run).await?;
    let run = station.wait_done(&run.run).await?;
    assert_eq!(run.outcome, Some(Outcome::Cancelled));
    // One of them shrugs off SIGTERM; it is killed when its grace time is over.
    until("the command's processes to be gone", || async {
        let left = station
            .exec(&run.run, &["pgrep", "-a", "sleep"])
            .await
            .ok()?;
        left.stdout.is_empty().then_some(())
    })
    .await?;
    station.teardown(&run.run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}
