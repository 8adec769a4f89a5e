//! One call of a tool: read the arguments, ask the services, write the answer.

use crate::decode;
use crate::detached::detached;
use crate::mcp::args::{self, Delegate, Directory, File, OneRun, Status, Watch};
use crate::mcp::catalog::Kind;
use crate::mcp::progress::Progress;
use crate::mcp::reply::{self, Reply};
use crate::mcp::tools::Tools;
use lazaret_api::public::ForkRun;
use lazaret_api::public::Run;
use lazaret_domain::{Denial, DenialCode, RunId};
use lazaret_services::Principal;
use rmcp::RoleServer;
use rmcp::model::JsonObject;
use rmcp::service::RequestContext;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Every call answers within this time.
pub(crate) const LIMIT: Duration = Duration::from_secs(50);
/// A call stops waiting for its run so long before: the rest is for writing the answer.
const MARGIN: Duration = Duration::from_secs(2);

type Context = RequestContext<RoleServer>;

/// Carries out a call. An effect that takes too long goes on; only its answer is not waited for.
pub(super) async fn call(
    tools: &Tools,
    kind: Kind,
    by: Principal,
    arguments: JsonObject,
    context: &Context,
) -> Result<Reply, Denial> {
    let end = Instant::now() + LIMIT;
    let waiting = Waiting {
        until: end - MARGIN,
        context,
    };
    timeout_at(end, dispatch(tools, kind, by, arguments, waiting))
        .await
        .unwrap_or_else(|_| Err(too_long(kind)))
}

fn too_long(kind: Kind) -> Denial {
    let message = match kind {
        Kind::Delegate => {
            "this takes longer than a call may and goes on; find the run with list_runs, or ask again under the same \
             idempotency_key"
        }
        _ => "this takes longer than a call may; ask again",
    };
    Denial::new(DenialCode::HostBusy, message).retry_after(5)
}

/// How a call waits for a run.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    /// It stops then, however long it was asked to wait.
    until: Instant,
    context: &'a Context,
}

async fn dispatch(
    tools: &Tools,
    kind: Kind,
    by: Principal,
    arguments: JsonObject,
    waiting: Waiting<'_>,
) -> Result<Reply, Denial> {
    let value = || Value::Object(arguments.clone());
    let runs = &tools.services.runs;
    match kind {
        Kind::Delegate => {
            let Delegate { request, key, wait } = Delegate::read(arguments)?;
            let (services, caller) = (tools.services.clone(), by.clone());
            let run = detached(async move { services.runs.delegate(&caller, key, request).await })
                .await?;
            // From here on the caller gets the run's id, whatever becomes of the waiting.
            reply::delegated(settled(tools, &by, run, wait, waiting).await)
        }
        Kind::Status => {
            let Status { run, wait_s } = decode::from_value(value())?;
            let wait = args::wait_of(wait_s)?;
            let run = runs.get(&by, &run).await?;
            reply::status(&settled(tools, &by, run, wait, waiting).await)
        }
        Kind::Watch => {
            let Watch { run, after, lines } = decode::from_value(value())?;
            reply::watched(runs.events(&by, &run, after, lines.unwrap_or(100)).await?)
        }
        Kind::Diff => {
            let OneRun { run } = decode::from_value(value())?;
            reply::diff(&runs.diff(&by, &run).await?)
        }
        Kind::ListFiles => {
            let Directory { run, path } = decode::from_value(value())?;
            reply::files(&runs.files(&by, &run, &path).await?)
        }
        Kind::ReadFile => {
            let File { run, path } = decode::from_value(value())?;
            reply::file(&runs.read_file(&by, &run, &path).await?)
        }
        Kind::ListRuns => {
            let args::Runs {
                before,
                limit,
                active,
            } = decode::from_value(value())?;
            reply::runs(&runs.list(&by, before, limit.unwrap_or(20), active).await?)
        }
        Kind::Cancel => {
            let OneRun { run } = decode::from_value(value())?;
            let services = tools.services.clone();
            reply::status(&detached(async move { services.runs.cancel(&by, &run).await }).await?)
        }
        Kind::Fork => {
            let args::Fork { run, n, command } = decode::from_value(value())?;
            let services = tools.services.clone();
            let request = ForkRun { n, command };
            reply::forked(
                &detached(async move { services.runs.fork(&by, &run, None, request).await })
                    .await?,
            )
        }
        Kind::Teardown => {
            let OneRun { run } = decode::from_value(value())?;
            let services = tools.services.clone();
            reply::torn_down(
                &detached(async move { services.runs.teardown(&by, &run).await }).await?,
            )
        }
    }
}

/// The run once it is done or parked, or as it was last known when the wait is over, the caller has
/// gone, the server stops or the store fails. None of these touches the run.
async fn settled(
    tools: &Tools,
    by: &Principal,
    run: Run,
    wait: Duration,
    waiting: Waiting<'_>,
) -> Run {
    if wait.is_zero() || run.outcome.is_some() {
        return run;
    }
    let until = waiting.until.min(Instant::now() + wait);
    let news = news(tools, by, &run.run, until, waiting.context);
    // Another end besides, for what could hold up the waiting itself: a caller that does not take
    // its notices, say.
    or_known(run.clone(), waiting.until + MARGIN / 2, news).await
}

/// What comes of `news` by `until`, or else what is known.
async fn or_known<T>(
    known: T,
    until: Instant,
    news: impl Future<Output = Result<Option<T>, Denial>>,
) -> T {
    match timeout_at(until, news).await {
        Ok(Ok(Some(newer))) => newer,
        Ok(Ok(None)) | Err(_) => known,
        Ok(Err(denial)) => {
            tracing::warn!(code = %denial.code, reason = denial.message, "waiting for a run failed");
            known
        }
    }
}

/// The run once it is done or parked, or as it is at `until`. None if the caller has gone or the
/// server stops.
async fn news(
    tools: &Tools,
    by: &Principal,
    run: &RunId,
    until: Instant,
    context: &Context,
) -> Result<Option<Run>, Denial> {
    let mut progress = Progress::of(&tools.services, by, run, context).await;
    let wait = until.saturating_duration_since(Instant::now());
    let mut settled = std::pin::pin!(tools.services.runs.wait(by, run, wait));
    loop {
        let notice = tokio::select! {
            run = &mut settled => return run.map(Some),
            () = context.ct.cancelled() => return Ok(None),
            () = tools.stop.cancelled() => return Ok(None),
            notice = Progress::next(&mut progress) => notice,
        };
        // Sent to its end, so that none can come after the answer.
        if context.peer.notify_progress(notice).await.is_err() {
            progress = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_told_whatever_becomes_of_the_waiting() {
        let begun = Instant::now();
        let until = begun + LIMIT - MARGIN;
        assert_eq!(or_known(1, until, pending()).await, 1);
        assert_eq!(begun.elapsed(), Duration::from_secs(48));
        let later = begun + LIMIT;
        let failed = Err(Denial::new(DenialCode::StoreFailed, "the disk is full"));
        assert_eq!(or_known(1, later, async { failed }).await, 1);
        assert_eq!(or_known(1, later, async { Ok(None) }).await, 1);
        assert_eq!(or_known(1, later, async { Ok(Some(2)) }).await, 2);
    }
}
