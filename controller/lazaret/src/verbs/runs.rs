//! Verbs about runs as a whole: `ls`, `status`, `cancel`, `teardown`, and those about rest.

use crate::cli::{Fork, Ls};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::table::{pairs, shortened, table};
use crate::output::{Output, Paint};
use lazaret_api::host::Accel;
use lazaret_api::public::{
    EgressChoice, EgressMode, ForkRun, Run, RunStages, SandboxView, TornDown,
};
use lazaret_domain::run::Outcome;
use lazaret_domain::sandbox::Reach;
use lazaret_domain::{Argv, RunId};

/// Lists runs.
///
/// # Errors
/// As the controller refuses, or where it cannot be reached; so for every verb here.
pub async fn ls(args: &Ls, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let list = client
        .runs(args.before.as_ref(), args.limit, args.active)
        .await?;
    if out.json {
        out.document(&list)?;
        return Ok(Exit::Done);
    }
    if list.runs.is_empty() {
        out.note("No runs. Delegate one with: lazaret delegate --wait -- uname -a")?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = list
        .runs
        .iter()
        .map(|run| {
            vec![
                run.run.to_string(),
                run.state.as_str().to_owned(),
                run.outcome.map_or("-", Outcome::as_str).to_owned(),
                run.created_at.strftime("%Y-%m-%d %H:%M").to_string(),
                run.repo
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), ToString::to_string),
                shortened(&what(run), 48),
            ]
        })
        .collect();
    out.line(table(
        &["RUN", "STATE", "OUTCOME", "CREATED", "REPO", "WHAT"],
        &rows,
    ))?;
    if let Some(next) = list.next {
        out.note(format!("There are more: lazaret ls --before {next}"))?;
    }
    Ok(Exit::Done)
}

/// Shows a run.
///
/// # Errors
/// As [`ls`].
pub async fn status(run: &RunId, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let run = client.run(run).await?;
    show(&run, out)
}

/// Cancels a run.
///
/// # Errors
/// As [`ls`].
pub async fn cancel(run: &RunId, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let run = client.cancel(run).await?;
    show(&run, out)
}

/// Forks a run.
///
/// # Errors
/// As [`ls`], and a command out of form.
pub async fn fork(args: &Fork, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let command = match args.command.as_slice() {
        [] => None,
        words => {
            Some(Argv::new(words.to_vec()).map_err(|denial| Failure::Usage(denial.to_string()))?)
        }
    };
    let request = ForkRun {
        n: Some(args.n),
        command,
    };
    let forked = client.fork(&args.run, &request).await?;
    if out.json {
        out.document(&forked)?;
        return Ok(Exit::Done);
    }
    for run in &forked.runs {
        out.line(&run.run)?;
    }
    if let Some(pause) = forked.pause_ms {
        out.note(format!("{} stood still for {pause} ms", args.run))?;
    }
    Ok(Exit::Done)
}

/// `sleep`, `wake`, `keep` and `unkeep`, with the words of the API.
///
/// # Errors
/// As [`ls`].
pub async fn rest(
    run: &RunId,
    verb: &str,
    from_disk: bool,
    client: &Client,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let run = client.rest(run, verb, from_disk).await?;
    show(&run, out)
}

/// Tears a run down.
///
/// # Errors
/// As [`ls`].
pub async fn teardown(runs: &[RunId], client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let mut answers = Vec::new();
    for run in runs {
        let answer = client.teardown(run).await?;
        if !out.json {
            told(&answer, out)?;
        }
        answers.push(answer);
    }
    match answers.as_slice() {
        [one] if out.json => out.document(one)?,
        all if out.json => out.document(&all)?,
        _ => {}
    }
    Ok(Exit::Done)
}

fn told(answer: &TornDown, out: &mut Output) -> Result<(), Failure> {
    let rest = if answer.removed {
        "everything it held is removed".to_owned()
    } else {
        format!("the removal goes on; see: lazaret status {}", answer.run)
    };
    out.line(format!(
        "{} is torn down ({}); {rest}",
        answer.run,
        answer.outcome.as_str()
    ))
}

fn show(run: &Run, out: &mut Output) -> Result<Exit, Failure> {
    if out.json {
        out.document(run)?;
        return Ok(Exit::Done);
    }
    out.line(describe(run))?;
    if run.sandbox.as_ref().and_then(|sandbox| sandbox.accel) == Some(Accel::Tcg) {
        let warning = "It runs under software emulation (tcg), which QEMU does not regard as a security boundary.";
        let warning = out.paint_note(Paint::Warn, warning);
        out.note(warning)?;
    }
    Ok(Exit::Done)
}

/// A run, for people.
#[must_use]
pub fn describe(run: &Run) -> String {
    let state = match run.outcome {
        Some(outcome) => format!("{} ({})", run.state.as_str(), outcome.as_str()),
        None => run.state.as_str().to_owned(),
    };
    let repo = run.repo.as_ref().map(|repo| match &run.git_ref {
        Some(git_ref) => format!("{repo} at {git_ref}"),
        None => repo.to_string(),
    });
    let sandbox = run.sandbox.as_ref();
    pairs(&[
        ("run", Some(run.run.to_string())),
        ("state", Some(state)),
        (
            "cause",
            run.cause
                .as_ref()
                .map(|cause| format!("{} ({})", cause.message, cause.code)),
        ),
        ("exit status", run.exit_code.map(|code| code.to_string())),
        ("command", run.command.as_ref().map(Argv::display)),
        ("task", run.task.as_deref().map(|task| shortened(task, 200))),
        ("copy of", run.parent.as_ref().map(ToString::to_string)),
        ("repository", repo),
        ("base", run.base.clone()),
        ("branch", run.branch.as_ref().map(ToString::to_string)),
        ("egress", Some(egress(&run.egress))),
        ("sandbox", sandbox.map(place)),
        ("guest", sandbox.and_then(guest)),
        (
            "asleep since",
            sandbox
                .and_then(|sandbox| sandbox.asleep_since)
                .map(|at| at.strftime("%F %T UTC").to_string()),
        ),
        (
            "kept",
            sandbox
                .filter(|sandbox| sandbox.kept)
                .map(|_| "yes: it may sleep for ever".to_owned()),
        ),
        (
            "deadline",
            sandbox
                .and_then(|sandbox| sandbox.deadline)
                .map(|at| at.strftime("%F %T UTC").to_string()),
        ),
        (
            "created",
            Some(run.created_at.strftime("%F %T UTC").to_string()),
        ),
        (
            "ended",
            run.ended_at.map(|at| at.strftime("%F %T UTC").to_string()),
        ),
        (
            "torn down",
            run.torn_down_at
                .map(|at| at.strftime("%F %T UTC").to_string()),
        ),
        ("took", took(&run.stages)),
    ])
}

fn what(run: &Run) -> String {
    match (&run.task, &run.command) {
        (Some(task), _) => task.clone(),
        (None, Some(command)) => command.display(),
        (None, None) => "-".to_owned(),
    }
}

fn egress(choice: &EgressChoice) -> String {
    match choice {
        EgressChoice::Mode(EgressMode::Sealed) => "sealed".to_owned(),
        EgressChoice::Mode(EgressMode::Open) => "open".to_owned(),
        EgressChoice::Default => "the operator's setting".to_owned(),
        EgressChoice::Rules(rules) => rules
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn place(sandbox: &SandboxView) -> String {
    let state = format!("{:?}", sandbox.state).to_lowercase();
    let reach = match sandbox.reach {
        Reach::Reachable => String::new(),
        Reach::Unreachable { since } => format!(
            ", its host is unreachable since {}",
            since.strftime("%F %T UTC")
        ),
    };
    format!("{} on {}, {state}{reach}", sandbox.id, sandbox.host)
}

fn guest(sandbox: &SandboxView) -> Option<String> {
    let kernel = sandbox.kernel.as_deref()?;
    let accel = match sandbox.accel {
        Some(Accel::Kvm) => ", kvm",
        Some(Accel::Tcg) => ", tcg",
        None => "",
    };
    let boot = sandbox
        .boot_id
        .as_deref()
        .map(|id| format!(", boot {id}"))
        .unwrap_or_default();
    Some(format!("Linux {kernel}{accel}{boot}"))
}

fn took(stages: &RunStages) -> Option<String> {
    let total = stages.total_ms?;
    let parts: Vec<String> = [
        ("dispatch", stages.dispatch_ms),
        ("vmm", stages.boot.vmm_ms),
        ("kernel", stages.boot.kernel_ms),
        ("agent", stages.boot.agent_ms),
        ("clone", stages.clone_ms),
        ("command", stages.command_ms),
        ("diff", stages.diff_ms),
    ]
    .into_iter()
    .filter_map(|(name, ms)| ms.map(|ms| format!("{name} {}", seconds(ms))))
    .collect();
    let parts = if parts.is_empty() {
        String::new()
    } else {
        format!(" ({})", parts.join(", "))
    };
    Some(format!("{}{parts}", seconds(total)))
}

/// Milliseconds as seconds with one or three digits.
fn seconds(ms: u64) -> String {
    if ms < 1000 {
        format!("{ms} ms")
    } else {
        format!("{}.{} s", ms / 1000, ms % 1000 / 100)
    }
}
