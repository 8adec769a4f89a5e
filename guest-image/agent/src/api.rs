//! The routes of the guest API.
//!
//! A request is taken apart, checked, handed to one part of the agent, and answered. Every "no" is
//! a [`Denial`] as JSON. Until the guest is adopted, only health, warm, adopt and shutdown are answered:
//! no work may run before the machine knows who it is and has entropy of its own.

mod body;
mod nap;
mod query;

use crate::exec::Engine;
use crate::files::{self, Areas};
use crate::machine::Machine;
pub use body::Body;
use body::Input;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use lazaret_api::guest::{Clock, ExecSpec, MAX_SPEC};
use lazaret_domain::{Denial, DenialClass, DenialCode, SandboxId};
use nap::Nap;
use query::Query;
use serde::de::DeserializeOwned;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The largest body of a request about the machine itself.
const MAX_ADOPT: usize = 16 * 1024;

/// Who a guest is.
struct Identity {
    sandbox: SandboxId,
    boot_id: String,
}

/// A guest that answers requests.
pub struct Guest {
    machine: Box<dyn Machine>,
    engine: Engine,
    areas: Areas,
    adopted: Mutex<Option<Identity>>,
    nap: Nap,
    stopping: watch::Sender<bool>,
}

impl Guest {
    /// A guest that was not adopted yet.
    pub fn new(machine: impl Machine, engine: Engine, areas: Areas) -> Self {
        let (stopping, _) = watch::channel(false);
        Self {
            machine: Box::new(machine),
            engine,
            areas,
            adopted: Mutex::default(),
            nap: Nap::default(),
            stopping,
        }
    }

    /// Whether the guest naps, as that changes.
    #[must_use]
    pub fn napping(&self) -> Arc<AtomicBool> {
        self.nap.flag()
    }

    /// Whether the guest was told to shut down.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until the guest is told to shut down.
    pub async fn stopping(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self
            .stopping
            .subscribe()
            .wait_for(|stopping| *stopping)
            .await;
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display,
    {
        self.route(request)
            .await
            .unwrap_or_else(|denial| refusal(&denial))
    }

    async fn route<B>(&self, request: Request<B>) -> Result<Response<Body>, Denial>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display,
    {
        let (head, body) = request.into_parts();
        let query = Query::parse(head.uri.query().unwrap_or(""))?;
        let input = Input::new(body);
        match (&head.method, head.uri.path()) {
            (&Method::GET, "/v1/health") => {
                query.none()?;
                self.health()
            }
            (&Method::POST, "/v1/adopt") => {
                query.none()?;
                self.adopt(input).await
            }
            (&Method::POST, "/v1/warm") => {
                query.none()?;
                self.warm(input).await
            }
            (&Method::POST, "/v1/shutdown") => {
                query.none()?;
                self.stopping.send_replace(true);
                Ok(body::json(StatusCode::ACCEPTED, &serde_json::json!({})))
            }
            (&Method::POST, "/v1/nap") => {
                query.none()?;
                self.lie_down().await?;
                Ok(body::json(StatusCode::OK, &serde_json::json!({})))
            }
            (&Method::POST, "/v1/wake") => {
                query.none()?;
                self.wake(input).await
            }
            (&Method::POST, "/v1/go-on") => {
                query.none()?;
                self.get_up().await?;
                Ok(body::json(StatusCode::OK, &serde_json::json!({})))
            }
            (&Method::PUT, "/v1/clock") => {
                query.none()?;
                self.has_name()?;
                self.set_clock(input).await
            }
            (&Method::POST, "/v1/exec") => {
                query.none()?;
                self.ready()?;
                self.exec(input).await
            }
            (&Method::GET, "/v1/list") => {
                self.ready()?;
                let listing = files::list(&self.areas, query.path()?).await?;
                Ok(body::json(StatusCode::OK, &listing))
            }
            (&Method::GET, "/v1/files") => {
                self.ready()?;
                Ok(body::stream(
                    "application/x-tar",
                    files::read(&self.areas, query.path()?).await?,
                ))
            }
            (&Method::PUT, "/v1/files") => {
                self.ready()?;
                let (path, area) = query.path_and_area()?;
                files::write(&self.areas, area, path, input.pieces()).await?;
                Ok(body::json(StatusCode::OK, &serde_json::json!({})))
            }
            (
                _,
                "/v1/health" | "/v1/adopt" | "/v1/nap" | "/v1/wake" | "/v1/go-on" | "/v1/clock"
                | "/v1/shutdown" | "/v1/exec" | "/v1/list" | "/v1/files",
            ) => Err(Denial::new(
                DenialCode::MethodNotAllowed,
                "this route has other methods",
            )),
            _ => Err(Denial::new(
                DenialCode::NoSuchRoute,
                "the guest API has no such route",
            )),
        }
    }

    fn health(&self) -> Result<Response<Body>, Denial> {
        let mut health = self.machine.health().map_err(|error| {
            Denial::new(
                DenialCode::Internal,
                format!("the guest's state cannot be read: {error}"),
            )
        })?;
        if let Some(adopted) = &*self.identity() {
            health.adopted = true;
            health.boot_id = Some(adopted.boot_id.clone());
            health.napping = self.nap.napping();
        }
        Ok(body::json(StatusCode::OK, &health))
    }

    async fn set_clock<B>(&self, mut input: Input<B>) -> Result<Response<Body>, Denial>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let clock: Clock = from_json(&input.whole(MAX_ADOPT).await?)?;
        Ok(body::json(StatusCode::OK, &self.machine.set_clock(clock)?))
    }

    async fn exec<B>(&self, mut input: Input<B>) -> Result<Response<Body>, Denial>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display,
    {
        let spec: ExecSpec = from_json(&input.prefixed(MAX_SPEC).await?)?;
        let frames = self.engine.start(spec, input.until_broken());
        Ok(body::frames(frames))
    }

    fn is_adopted(&self) -> bool {
        self.identity().is_some()
    }

    fn identity(&self) -> MutexGuard<'_, Option<Identity>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was told who it is, and may or may not sleep.
    fn has_name(&self) -> Result<(), Denial> {
        if self.is_adopted() {
            return Ok(());
        }
        let why = "this guest was not adopted yet";
        Err(Denial::new(DenialCode::SandboxNotReady, why))
    }

    fn ready(&self) -> Result<(), Denial> {
        if self.is_stopping() {
            return Err(Denial::new(
                DenialCode::Stopping,
                "this guest is shutting down",
            ));
        }
        self.has_name()?;
        if self.nap.napping() {
            let why = "this guest sleeps";
            return Err(Denial::new(DenialCode::SandboxNotReady, why));
        }
        Ok(())
    }
}

fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Denial> {
    serde_json::from_slice(bytes).map_err(|error| {
        Denial::new(
            DenialCode::InvalidRequest,
            format!("the body is not as documented: {error}"),
        )
    })
}

fn refusal(denial: &Denial) -> Response<Body> {
    let status = match denial.class() {
        DenialClass::Invalid => StatusCode::BAD_REQUEST,
        DenialClass::Unauthenticated => StatusCode::UNAUTHORIZED,
        DenialClass::Forbidden => StatusCode::FORBIDDEN,
        DenialClass::NotFound => StatusCode::NOT_FOUND,
        DenialClass::Conflict => StatusCode::CONFLICT,
        DenialClass::Gone => StatusCode::GONE,
        DenialClass::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        DenialClass::Capacity => StatusCode::TOO_MANY_REQUESTS,
        DenialClass::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        DenialClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    body::json(status, denial)
}
