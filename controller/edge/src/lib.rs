//! The controller's HTTP face: what callers, scripts and MCP clients talk to.
//!
//! ```text
//!  request ─► headers ─► panic ─► host/origin ─► rate, number ─► guard ─► route ─► one service call
//!             every      500 is    foreign names   of requests     bearer,  take, check,
//!             answer     JSON too  get 403         per client      scope    call, answer
//! ```
//!
//! A face decides nothing about runs. It parses at the door, asks the services, and writes the
//! answer down; a refusal travels as the [`Denial`](lazaret_domain::Denial) it was decided as.
//!
//! | module | role |
//! | --- | --- |
//! | [`settings`] | what an operator sets, checked before anything listens |
//! | [`server`] | accepting connections, and the orderly stop |
//! | `table` | routes, each with who may call it; there is no way to add one without |
//! | `auth` | the one guard, the bearer key, the throttle |
//! | `origin`, `client` | foreign `Host` and `Origin`; who a client is behind proxies |
//! | `headers`, `problem`, `limits` | what every answer carries; refusals; bounds |
//! | `places` | what there is little of, and the part of each client and key |
//! | `body` | reading bodies, in bounds of length and time |
//! | `decode`, `extract` | bodies, queries and paths into checked values |
//! | `routes`, `sse` | `/api/v1` |
//! | [`mcp`] | `/mcp` |
//! | `openapi` | the document made from the routes |
#![forbid(unsafe_code)]

mod auth;
mod body;
mod client;
mod decode;
mod detached;
mod extract;
mod headers;
mod limits;
pub mod mcp;
mod metrics;
mod openapi;
mod origin;
mod places;
mod problem;
mod routes;
pub mod server;
pub mod settings;
mod sse;
mod state;
mod table;

pub use openapi::document;
pub use server::{Deadlines, serve};
pub use settings::EdgeSettings;
pub use table::{Access, RouteAccess};

use crate::state::Edge;
use axum::Router;
use axum::middleware::{from_fn_with_state, map_response_with_state};
use lazaret_services::Services;
use rmcp::ServerHandler;
use tower_http::catch_panic::CatchPanicLayer;

/// The whole HTTP face of the controller.
pub fn router(services: Services, settings: EdgeSettings) -> Router {
    let tools = mcp::Tools::new(services.clone(), settings.stop.clone());
    router_with_mcp(services, settings, move || tools.clone())
}

/// The same with another MCP handler behind `/mcp`. The conformance fixture serves its named
/// fixtures so, through the product's own guard, limits and settings.
pub fn router_with_mcp<H: ServerHandler>(
    services: Services,
    settings: EdgeSettings,
    handler: impl Fn() -> H + Send + Sync + 'static,
) -> Router {
    let edge = Edge::new(services, settings);
    let (routes, access) = routes::table(mcp::mount::service(&edge, handler)).split();
    let guard = auth::guard::Guard::new(edge.clone(), access);
    routes
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::method_not_allowed)
        // Layers run from the last to the first.
        .layer(from_fn_with_state(guard, auth::guard::check))
        .layer(from_fn_with_state(edge.clone(), limits::at_once))
        .layer(tower::util::option_layer(limits::rate(&edge)))
        .layer(from_fn_with_state(edge.clone(), client::identify))
        .layer(from_fn_with_state(edge.clone(), origin::check))
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(map_response_with_state(edge.clone(), headers::finish))
        .with_state(edge)
}

/// Every route with who may call it, as the guard sees it.
#[must_use]
pub fn route_access() -> Vec<RouteAccess> {
    routes::table(axum::routing::any(problem::no_such_route)).access()
}
