//! Progress of a run that a caller waits for: how many lines it has printed, never the lines.

use futures::StreamExt;
use lazaret_api::public::EventBody;
use lazaret_domain::RunId;
use lazaret_services::{Principal, Services};
use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use std::time::Duration;
use tokio::time::Instant;

/// Output is reported at most this often.
const EVERY: Duration = Duration::from_millis(500);

/// Reports until it is dropped. Does nothing for a caller that gave no progress token.
pub(super) async fn report(
    services: &Services,
    by: &Principal,
    run: &RunId,
    context: &RequestContext<RoleServer>,
) {
    if let Some(token) = context.meta.get_progress_token()
        && let Ok(mut events) = services.runs.follow(by, run, 0).await
    {
        let (mut lines, mut said) = (0_u64, None::<Instant>);
        let mut state = "queued";
        while let Some(event) = events.next().await {
            let turned = match &event.body {
                EventBody::Log { text, .. } => {
                    lines += u64::try_from(text.matches('\n').count()).unwrap_or(0);
                    false
                }
                EventBody::State { state: now, .. } => {
                    state = now.as_str();
                    true
                }
                EventBody::End { .. } => true,
                _ => false,
            };
            if !turned && said.is_some_and(|at| at.elapsed() < EVERY) {
                continue;
            }
            said = Some(Instant::now());
            // Numbers of events only grow, as the protocol asks of progress.
            let number = u32::try_from(event.seq).map_or(f64::MAX, f64::from);
            let notice = ProgressNotificationParam::new(token.clone(), number)
                .with_message(format!("{state}, {lines} lines of output"));
            if context.peer.notify_progress(notice).await.is_err() {
                break;
            }
        }
    }
    std::future::pending::<()>().await;
}
