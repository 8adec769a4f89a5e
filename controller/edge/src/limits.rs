//! The request rate of one client, and how many of its requests are under way at the same time. What
//! is counted is the client that [`crate::client`] made out, never a header it wrote itself.

use crate::client::Client;
use crate::places::{held_by, too_many};
use crate::problem::Refusal;
use crate::state::Edge;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use governor::middleware::NoOpMiddleware;
use lazaret_domain::{Denial, DenialCode};
use std::sync::Arc;
use std::time::Duration;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

/// How often clients that have been quiet are forgotten.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// Reads the client that was noted in the request.
#[derive(Clone, Debug)]
pub(crate) struct CountedClient;

impl KeyExtractor for CountedClient {
    type Key = Client;

    fn extract<T>(&self, request: &Request<T>) -> Result<Client, GovernorError> {
        request
            .extensions()
            .get::<Client>()
            .copied()
            .ok_or(GovernorError::UnableToExtractKey)
    }
}

/// The layer that refuses a client that asks too often.
pub(crate) fn rate(edge: &Edge) -> Option<GovernorLayer<CountedClient, NoOpMiddleware, Body>> {
    let period = Duration::from_secs(1) / edge.settings.requests_per_second.max(1);
    let config = GovernorConfigBuilder::default()
        .key_extractor(CountedClient)
        .period(period)
        .burst_size(edge.settings.request_burst.max(1))
        .finish()
        .map(Arc::new)?;
    // The table of clients stays as small as the number of those that were busy lately.
    let (watched, stop) = (Arc::downgrade(config.limiter()), edge.settings.stop.clone());
    tokio::spawn(async move {
        while stop
            .run_until_cancelled(tokio::time::sleep(TIDY_EVERY))
            .await
            .is_some()
        {
            let Some(limiter) = watched.upgrade() else {
                break;
            };
            limiter.retain_recent();
        }
    });
    Some(GovernorLayer::new(config).error_handler(|error| refuse(&error).into_response()))
}

fn refuse(error: &GovernorError) -> Refusal {
    let denial = match error {
        GovernorError::TooManyRequests { wait_time, .. } => {
            let seconds = u32::try_from(wait_time.saturating_add(1)).unwrap_or(u32::MAX);
            Denial::new(
                DenialCode::RateLimited,
                "too many requests from this client",
            )
            .retry_after(seconds)
        }
        _ => Denial::new(DenialCode::Internal, "the client could not be told apart"),
    };
    Refusal(denial)
}

/// Refuses a client of which too many requests are under way: those that wait for something (a
/// command, a run, an event) and those whose answer is taken slowly.
pub(crate) async fn at_once(
    State(edge): State<Edge>,
    request: axum::extract::Request,
    next: Next,
) -> Result<Response, Refusal> {
    let client = request.extensions().get::<Client>();
    let under_way = client.and_then(|client| edge.of_clients.take(client));
    let under_way = under_way.ok_or_else(|| too_many("requests", "of this client"))?;
    Ok(held_by(next.run(request).await, under_way))
}
