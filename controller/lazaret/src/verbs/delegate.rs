//! `lazaret delegate`: hands a task over, and with `--wait` stays until its end.

use crate::cli::delegate::Delegate;
use crate::client::Client;
use crate::client::events::{Follower, News};
use crate::failure::{Exit, Failure};
use crate::output::inert::inert_line;
use crate::output::{Output, Paint};
use lazaret_api::public::{Event, EventBody, Run};
use lazaret_domain::run::Outcome;
use std::time::Duration;

/// After Ctrl-C the run's state is asked for this long.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Delegates. Without `--wait`: the run's id on standard output, hints on standard error. With it:
/// the command's output, and 0 only where the command exited 0.
///
/// # Errors
/// As the controller refuses, or where it cannot be reached.
pub async fn delegate(args: &Delegate, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let request = args.request()?;
    let run = client
        .delegate(&request, args.idempotency_key.as_deref())
        .await?;
    if args.wait {
        wait(&run, client, out, ctrl_c()).await
    } else {
        hand_over(&run, out)
    }
}

fn hand_over(run: &Run, out: &mut Output) -> Result<Exit, Failure> {
    if out.json {
        out.document(run)?;
        return Ok(Exit::Done);
    }
    let id = &run.run;
    out.line(id.as_str())?;
    out.note(format!("follow it  lazaret logs {id} -f"))?;
    out.note(format!("its state  lazaret status {id}"))?;
    out.note(format!("end it     lazaret teardown {id}"))?;
    Ok(Exit::Done)
}

/// Follows a run to its end, or until `interrupt`. The exit status is the run's: a reader of the
/// output that goes away changes nothing about it.
///
/// # Errors
/// As the controller refuses, or where it stays out of reach.
pub async fn wait(
    run: &Run,
    client: &Client,
    out: &mut Output,
    interrupt: impl Future<Output = ()>,
) -> Result<Exit, Failure> {
    out.outlive_readers();
    out.note(format!("run {}", run.run))?;
    let mut follower = client.follow(&run.run, 0);
    let ended = tokio::select! {
        outcome = show(&mut follower, out) => Some(outcome?),
        () = interrupt => None,
    };
    let Some(outcome) = ended else {
        out.note(format!(
            "No longer waiting; the run goes on. Cancel it with: lazaret cancel {}",
            run.run
        ))?;
        if out.json {
            let now = tokio::time::timeout(LAST_LOOK, client.run(&run.run)).await;
            match now {
                Ok(Ok(now)) => out.document(&now)?,
                // A document was promised; this is the last that is known.
                Ok(Err(_)) | Err(_) => out.document(run)?,
            }
        }
        return Ok(Exit::Failed);
    };
    if out.json {
        out.document(&client.run_patiently(&run.run).await?)?;
    }
    Ok(if outcome == Some(Outcome::Succeeded) {
        Exit::Done
    } else {
        Exit::Failed
    })
}

/// Ctrl-C, for as long as it can be heard.
async fn ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Shows everything up to the end, and gives the outcome.
async fn show(follower: &mut Follower<'_>, out: &mut Output) -> Result<Option<Outcome>, Failure> {
    let mut outcome = None;
    while let Some(news) = follower.next().await? {
        if let News::Event(Event {
            body: EventBody::End { outcome: how, .. },
            ..
        }) = &news
        {
            outcome = Some(*how);
        }
        tell(&news, out)?;
    }
    Ok(outcome)
}

/// Shows what there is to say about a run that is followed.
///
/// # Errors
/// Where the output cannot be written.
pub fn tell(news: &News, out: &mut Output) -> Result<(), Failure> {
    match news {
        News::Event(event) => print(event, out),
        News::Away(why) => note(
            out,
            &format!(
                "the controller is away ({}); the run goes on; trying again",
                inert_line(why)
            ),
        ),
    }
}

/// Shows an event: the command's standard output on standard output (not under `--json`, where
/// the document has it to itself), all else on standard error.
///
/// # Errors
/// Where the output cannot be written.
pub fn print(event: &Event, out: &mut Output) -> Result<(), Failure> {
    match &event.body {
        EventBody::Log { stream, text } if stream == "stdout" && !out.json => out.guest(text),
        EventBody::Log { text, .. } => out.guest_error(text),
        EventBody::State { state, detail } => {
            let detail = detail
                .as_deref()
                .map(|text| format!(": {}", inert_line(text)))
                .unwrap_or_default();
            note(out, &format!("{}{detail}", state.as_str()))
        }
        EventBody::Egress { record } => {
            let verdict = if record.allowed { "allowed" } else { "refused" };
            let port = record
                .port
                .map(|port| format!(":{port}"))
                .unwrap_or_default();
            let what = inert_line(&format!(
                "{} {}{port} ({})",
                record.kind, record.destination, record.reason
            ));
            note(out, &format!("egress {verdict}: {what}"))
        }
        EventBody::Note { text } => note(out, &inert_line(text)),
        EventBody::Gap { missing, unit } => {
            note(out, &format!("{missing} {unit} are missing here"))
        }
        EventBody::End {
            outcome,
            cause,
            exit_code,
        } => {
            let paint = if *outcome == Outcome::Succeeded {
                Paint::Good
            } else {
                Paint::Bad
            };
            // A cause of `exit` says the status itself.
            let said = exit_code.filter(|_| cause.code != "exit");
            let status = said
                .map(|code| format!(", exit status {code}"))
                .unwrap_or_default();
            let word = out.paint_note(paint, outcome.as_str());
            note(
                out,
                &format!("{word}: {}{status}", inert_line(&cause.message)),
            )
        }
    }
}

fn note(out: &mut Output, text: &str) -> Result<(), Failure> {
    out.note(format!("== {text}"))
}
