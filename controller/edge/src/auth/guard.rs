//! The one guard. Every request that matched a route passes it, whatever the route: data, streams,
//! MCP. What the route table does not know is refused.
//!
//! The order of refusals is part of the contract: no credential before a wrong scope, and both
//! before a method that the route does not have, so that nobody learns the routes by trying.

use crate::auth::{Caller, bearer, unauthenticated};
use crate::client::Client;
use crate::places::{held_by, too_many};
use crate::problem::Refusal;
use crate::state::Edge;
use crate::table::{Access, AccessTable};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use lazaret_domain::{Denial, DenialCode};
use std::sync::Arc;
use std::time::Instant;

/// The guard's knowledge: who may call what.
#[derive(Clone)]
pub(crate) struct Guard {
    edge: Edge,
    table: Arc<AccessTable>,
}

impl Guard {
    pub(crate) fn new(edge: Edge, table: AccessTable) -> Self {
        Self {
            edge,
            table: Arc::new(table),
        }
    }
}

/// Lets a request through with its [`Caller`], or refuses it.
pub(crate) async fn check(
    State(guard): State<Guard>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else {
        // No route: the answer is 404 for everybody.
        return Ok(next.run(request).await);
    };
    let needed = match guard.table.access(path.as_str(), request.method()) {
        Some(Access::Public) => return Ok(next.run(request).await),
        Some(Access::Scope(scope)) => Some(scope),
        None => None,
    };
    let client = request.extensions().get::<Client>().copied();
    let Some(client) = client else {
        return Err(Denial::new(DenialCode::Internal, "the client could not be told apart").into());
    };
    guard.edge.throttle.admit(client, Instant::now())?;
    let principal = match bearer(request.headers()) {
        None => Err(unauthenticated()),
        Some(presented) => {
            let found = guard.edge.services.keys.authenticate(&presented.0).await;
            request.extensions_mut().insert(presented);
            found
        }
    };
    let principal = principal.inspect_err(|denial| {
        if denial.code == DenialCode::Unauthenticated {
            guard.edge.counters.credential_failed();
            guard.edge.throttle.failed(client, Instant::now());
            tracing::info!(?client, "a credential was refused");
        }
    })?;
    if let Some(scope) = needed {
        principal.require(scope)?;
    }
    let under_way = guard.edge.of_keys.take(&principal.key);
    let under_way = under_way.ok_or_else(|| too_many("requests", "of this API key"))?;
    request.extensions_mut().insert(Caller(principal));
    Ok(held_by(next.run(request).await, under_way))
}
