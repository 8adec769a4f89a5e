//! Progress of a run that a caller waits for: how many lines it has printed, never the lines.

use futures::StreamExt;
use futures::stream::BoxStream;
use lazaret_api::public::{Event, EventBody};
use lazaret_domain::RunId;
use lazaret_services::{Principal, Services};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use std::time::{Duration, Instant};

/// Output is reported at most this often.
const EVERY: Duration = Duration::from_millis(500);

/// Watches a run for a caller that gave a progress token.
pub(super) struct Progress {
    token: ProgressToken,
    events: BoxStream<'static, Event>,
    state: &'static str,
    lines: usize,
    said: Option<Instant>,
}

impl Progress {
    /// None for a caller that gave no token.
    pub(super) async fn of(
        services: &Services,
        by: &Principal,
        run: &RunId,
        context: &RequestContext<RoleServer>,
    ) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        let events = services.runs.follow(by, run, 0).await.ok()?;
        Some(Self {
            token,
            events,
            state: "queued",
            lines: 0,
            said: None,
        })
    }

    /// The next notice worth sending; waits for ever once there is none. Nothing is lost when it is
    /// dropped while it waits.
    pub(super) async fn next(progress: &mut Option<Self>) -> ProgressNotificationParam {
        if let Some(progress) = progress {
            while let Some(event) = progress.events.next().await {
                if let Some(notice) = progress.notice(&event) {
                    return notice;
                }
            }
        }
        std::future::pending().await
    }

    fn notice(&mut self, event: &Event) -> Option<ProgressNotificationParam> {
        let turned = match &event.body {
            EventBody::Log { text, .. } => {
                self.lines += text.matches('\n').count();
                false
            }
            EventBody::State { state, .. } => {
                self.state = state.as_str();
                true
            }
            _ => false,
        };
        if !turned && self.said.is_some_and(|at| at.elapsed() < EVERY) {
            return None;
        }
        self.said = Some(Instant::now());
        // Numbers of events only grow, as the protocol asks of progress.
        let number = u32::try_from(event.seq).map_or(f64::MAX, f64::from);
        let message = format!("{}, {} lines of output", self.state, self.lines);
        Some(ProgressNotificationParam::new(self.token.clone(), number).with_message(message))
    }
}
