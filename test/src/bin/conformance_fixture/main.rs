//! The server that the official MCP conformance suite is run against.
//!
//! The suite wants tools, prompts and resources of certain names, which the product has no use for.
//! They are served here in place of the product's tools, and by nothing else of ours: the router,
//! the guard, the limits, the settings and the transport are the product's own.
//!
//! The suite cannot send a header. So there is one more thing before the router: it adds the bearer
//! token that the suite would send if it could. The guard then checks it as ever.
//!
//! ```text
//! conformance_fixture [--sessions]     prints {"url": …} and serves until its input ends
//! ```
#![forbid(unsafe_code)]
#![expect(
    deprecated,
    reason = "the 2025 scenarios ask for what the 2026 revision removed"
)]

mod ask_back;
mod content;
mod handler;
mod prompts;
mod resources;
mod tools;

use anyhow::Context;
use axum::Router;
use axum::http::{HeaderValue, Request, header::AUTHORIZATION};
use handler::Fixture;
use lazaret_api::public::{CreateKey, Scope};
use lazaret_edge::EdgeSettings;
use lazaret_services::ports::clock::SystemClock;
use lazaret_services::ports::fake_host::FakeLinks;
use lazaret_services::ports::random::SystemRandom;
use lazaret_services::{Ports, Principal, Services, ServicesSettings};
use lazaret_store::SqliteStore;
use serde_json::json;
use std::io::Write as _;
use std::sync::Arc;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();
    let data = tempfile::tempdir()?;
    let services = services(data.path()).await?;
    let token = services
        .keys
        .create(
            &Principal::controller(),
            None,
            CreateKey {
                scope: Scope::Read,
                name: None,
                expires: None,
            },
        )
        .await?
        .token;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let mut settings = EdgeSettings::new(&format!("http://{address}"), address, stop.clone())?;
    settings.mcp_sessions = std::env::args().any(|argument| argument == "--sessions");

    let fixture = Fixture::new(settings.mcp_sessions)?;
    let product =
        lazaret_edge::router_with_mcp(services.clone(), settings.clone(), move || fixture.clone());
    writeln!(
        std::io::stdout(),
        "{}",
        json!({ "url": format!("http://{address}/mcp") })
    )?;
    tokio::spawn({
        let stop = stop.clone();
        async move {
            // Whoever started this holds the other end of its input.
            let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
            stop.cancel();
        }
    });
    lazaret_edge::serve(listener, with_bearer(product, &token)?, &settings).await?;
    services.stop().await;
    Ok(())
}

/// The use cases over an empty store. No host is ever asked for anything.
async fn services(data: &std::path::Path) -> anyhow::Result<Services> {
    let store = SqliteStore::open(&data.join("conformance.db")).await?;
    let ports = Ports {
        store: Arc::new(store),
        links: Arc::new(FakeLinks::default()),
        clock: Arc::new(SystemClock),
        random: Arc::new(SystemRandom),
    };
    Ok(Services::start(ports, ServicesSettings::default()).await?)
}

/// Adds the token to every request before the product's router sees it.
fn with_bearer(product: Router, token: &str) -> anyhow::Result<Router> {
    let value =
        HeaderValue::from_str(&format!("Bearer {token}")).context("a token is visible ASCII")?;
    let add = move |mut request: Request<axum::body::Body>| {
        request.headers_mut().insert(AUTHORIZATION, value.clone());
        request
    };
    Ok(Router::new().fallback_service(ServiceBuilder::new().map_request(add).service(product)))
}
