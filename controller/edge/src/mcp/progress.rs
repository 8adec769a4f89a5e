//! Progress of a run that a caller waits for: how many lines it has printed meanwhile, never the
//! lines.

use futures::StreamExt;
use futures::stream::BoxStream;
use lazaret_api::public::{Event, EventBody};
use lazaret_domain::RunId;
use lazaret_domain::run::RunPhase;
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
    /// The number of the last event that was seen.
    number: u64,
    state: RunPhase,
    lines: usize,
    said: Option<Instant>,
}

impl Progress {
    /// None for a caller that gave no token. It begins with what happens from now on: a run may have
    /// printed for hours before, and a caller may ask every minute.
    pub(super) async fn of(
        services: &Services,
        by: &Principal,
        run: &RunId,
        context: &RequestContext<RoleServer>,
    ) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        // After a number that no event has, a page is empty and names the last one that there is.
        let page = services.runs.events(by, run, u64::MAX, 1).await.ok()?;
        let events = services.runs.follow(by, run, page.last).await.ok()?;
        let state = services.runs.get(by, run).await.ok()?.state;
        Some(Self {
            token,
            events,
            number: page.last,
            state,
            lines: 0,
            said: None,
        })
    }

    /// The next notice worth sending, the first at once; waits for ever once there is none. Nothing
    /// is lost when it is dropped while it waits.
    pub(super) async fn next(progress: &mut Option<Self>) -> ProgressNotificationParam {
        if let Some(progress) = progress {
            if progress.said.is_none() {
                return progress.notice();
            }
            while let Some(event) = progress.events.next().await {
                if progress.is_news(&event) {
                    return progress.notice();
                }
            }
        }
        std::future::pending().await
    }

    /// Takes an event in; whether it is worth a notice.
    fn is_news(&mut self, event: &Event) -> bool {
        self.number = event.seq;
        match &event.body {
            EventBody::State { state, .. } => {
                self.state = *state;
                return true;
            }
            EventBody::Log { text, .. } => self.lines += text.matches('\n').count(),
            _ => {}
        }
        self.said.is_none_or(|at| at.elapsed() >= EVERY)
    }

    fn notice(&mut self) -> ProgressNotificationParam {
        self.said = Some(Instant::now());
        // Numbers of events only grow, as the protocol asks of progress.
        let number = u32::try_from(self.number).map_or(f64::MAX, f64::from);
        let message = format!(
            "{}, {} new lines of output",
            self.state.as_str(),
            self.lines
        );
        ProgressNotificationParam::new(self.token.clone(), number).with_message(message)
    }
}
