//! One call of a tool: read the arguments, ask the services, write the answer.

use crate::decode;
use crate::detached::detached;
use crate::mcp::args::{self, Delegate, Directory, File, OneRun, Status, Watch};
use crate::mcp::catalog::Kind;
use crate::mcp::progress::Progress;
use crate::mcp::reply::{self, Reply};
use crate::mcp::tools::Tools;
use lazaret_api::public::Run;
use lazaret_domain::{Denial, DenialCode, RunId};
use lazaret_services::Principal;
use rmcp::RoleServer;
use rmcp::model::JsonObject;
use rmcp::service::RequestContext;
use serde_json::Value;
use std::time::Duration;

/// Every call answers within this time.
pub(crate) const LIMIT: Duration = Duration::from_secs(50);

type Context = RequestContext<RoleServer>;

/// Carries out a call. An effect that takes too long goes on; only its answer is not waited for.
pub(super) async fn call(
    tools: &Tools,
    kind: Kind,
    by: Principal,
    arguments: JsonObject,
    context: &Context,
) -> Result<Reply, Denial> {
    tokio::time::timeout(LIMIT, dispatch(tools, kind, by, arguments, context))
        .await
        .unwrap_or_else(|_| {
            Err(Denial::new(
                DenialCode::HostBusy,
                "this takes longer than a call may; ask again",
            )
            .retry_after(5))
        })
}

async fn dispatch(
    tools: &Tools,
    kind: Kind,
    by: Principal,
    arguments: JsonObject,
    context: &Context,
) -> Result<Reply, Denial> {
    let value = || Value::Object(arguments.clone());
    let runs = &tools.services.runs;
    match kind {
        Kind::Delegate => {
            let Delegate { request, key, wait } = Delegate::read(arguments)?;
            let (services, caller) = (tools.services.clone(), by.clone());
            let run = detached(async move { services.runs.delegate(&caller, key, request).await })
                .await?;
            reply::delegated(settled(tools, &by, run, wait, context).await?)
        }
        Kind::Status => {
            let Status { run, wait_s } = decode::from_value(value())?;
            let wait = args::wait_of(wait_s)?;
            let run = runs.get(&by, &run).await?;
            reply::status(&settled(tools, &by, run, wait, context).await?)
        }
        Kind::Watch => {
            let Watch { run, after, lines } = decode::from_value(value())?;
            reply::watched(&runs.events(&by, &run, after, lines.unwrap_or(100)).await?)
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
        Kind::Teardown => {
            let OneRun { run } = decode::from_value(value())?;
            let services = tools.services.clone();
            reply::torn_down(
                &detached(async move { services.runs.teardown(&by, &run).await }).await?,
            )
        }
    }
}

/// The run once it is done or parked, or as it is when the wait is over, the caller has gone or the
/// server stops. None of these touches the run.
async fn settled(
    tools: &Tools,
    by: &Principal,
    run: Run,
    wait: Duration,
    context: &Context,
) -> Result<Run, Denial> {
    if wait.is_zero() || run.outcome.is_some() {
        return Ok(run);
    }
    let id: RunId = run.run.clone();
    let mut progress = Progress::of(&tools.services, by, &id, context).await;
    let mut settled = std::pin::pin!(tools.services.runs.wait(by, &id, wait));
    loop {
        let notice = tokio::select! {
            run = &mut settled => return run,
            () = context.ct.cancelled() => return Ok(run),
            () = tools.stop.cancelled() => return Ok(run),
            notice = Progress::next(&mut progress) => notice,
        };
        // Sent to its end, so that none can come after the answer.
        if context.peer.notify_progress(notice).await.is_err() {
            progress = None;
        }
    }
}
