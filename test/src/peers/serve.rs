//! A small HTTP server that remembers what it was asked.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::{HeaderMap, Method, Uri};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A request as it arrived, without its body.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// The path alone.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
}

/// A server that ends when it is dropped.
pub struct Served {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _stop: DropGuard,
}

impl Served {
    /// Serves a router on a free port of loopback.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let router = router.layer(middleware::from_fn_with_state(Arc::clone(&asked), remember));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                ended = axum::serve(listener, router) => tracing::error!(?ended, "a peer's server ended"),
            }
        });
        Ok(Self {
            address,
            asked,
            _stop: stop.drop_guard(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was asked so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn remember(
    State(asked): State<Arc<Mutex<Vec<Asked>>>>,
    request: Request,
    next: Next,
) -> Response {
    asked
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Asked {
            method: request.method().clone(),
            uri: request.uri().clone(),
            path: request.uri().path().to_owned(),
            headers: request.headers().clone(),
        });
    next.run(request).await
}
