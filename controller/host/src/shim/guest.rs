//! The guest agent as the shim sees it: HTTP/2 over the control port.
//!
//! Whatever comes back is the guest's word, and a guest may be hostile: answers are bounded in size,
//! and nothing in them changes more than this sandbox.

use crate::pipe::{Asker, ask_over};
use crate::vmm::Control;
use crate::wire::{denial_of, read_bytes};
use axum::body::Body;
use base64::Engine as _;
use http::{Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use jiff::Timestamp;
use lazaret_api::guest::{Adopt, Adopted, Clock, Health, Wake};
use lazaret_api::{PROTOCOL, PROTOCOL_HEADER};
use lazaret_domain::{Denial, DenialCode, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

/// The longest answer that is read whole.
const ANSWER: usize = 64 << 10;

/// A guest's clock that is so close is good, and one that is farther off is not, in nanoseconds.
const CLOCK_CLOSE: u64 = 250_000_000;
const CLOCK_RIGHT: u64 = 1_000_000_000;
/// How often a guest's clock is set at most.
const CLOCK_TRIES: u8 = 5;

/// A connection to a guest agent. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Guest {
    sender: SendRequest<Body>,
    lost: CancellationToken,
}

impl Guest {
    /// Speaks first on the control port.
    pub(crate) async fn connect(port: UnixStream) -> Result<Self, Denial> {
        let Asker { sender, driver } = ask_over(port).await.map_err(|error| unreachable(&error))?;
        let lost = CancellationToken::new();
        let loss = lost.clone();
        tokio::spawn(async move {
            let _ = driver.await;
            loss.cancel();
        });
        Ok(Self { sender, lost })
    }

    /// The same through a port that may have to be connected first.
    pub(crate) async fn through(control: &Control) -> Result<Self, Denial> {
        let port = control
            .connect()
            .await
            .map_err(|error| crate::state::internal("reach the guest's port", &error))?;
        Self::connect(port).await
    }

    /// Ends when the connection has ended.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.lost.clone().cancelled_owned()
    }

    /// Asks for its health.
    pub(crate) async fn health(&self) -> Result<Health, Denial> {
        self.value(Method::GET, "/v1/health", Body::empty()).await
    }

    /// Has it go through what every run goes through, before it is adopted: its adoption too, as
    /// somebody it is not to be.
    pub(crate) async fn warm(&self, rehearsed: &SandboxId) -> Result<(), Denial> {
        let adopt = adoption(rehearsed, NO_GIT);
        let _: serde_json::Value = self
            .value(Method::POST, "/v1/warm", json_body(&adopt)?)
            .await?;
        Ok(())
    }

    /// Tells it who it is, with fresh randomness and the time.
    pub(crate) async fn adopt(
        &self,
        sandbox: &SandboxId,
        git_base_url: &str,
    ) -> Result<Adopted, Denial> {
        let adopt = adoption(sandbox, git_base_url);
        self.value(Method::POST, "/v1/adopt", json_body(&adopt)?)
            .await
    }

    /// Has it stop all work where it stands and write its disk out.
    pub(crate) async fn nap(&self) -> Result<(), Denial> {
        let _: serde_json::Value = self.value(Method::POST, "/v1/nap", Body::empty()).await?;
        Ok(())
    }

    /// Has it take up its work again.
    pub(crate) async fn go_on(&self) -> Result<(), Denial> {
        let _: serde_json::Value = self.value(Method::POST, "/v1/go-on", Body::empty()).await?;
        Ok(())
    }

    /// Gives it fresh randomness and the time; its work still stands still. Says what its clock shows.
    pub(crate) async fn wake(&self) -> Result<i64, Denial> {
        let wake = Wake {
            wall_clock_ns: now_ns(),
            entropy: entropy(),
        };
        let clock: Clock = self
            .value(Method::POST, "/v1/wake", json_body(&wake)?)
            .await?;
        Ok(clock.wall_clock_ns)
    }

    /// Sets its clock again if it was set too late: how long a request is under way on a busy host
    /// cannot be told beforehand. `shown` is what the guest's clock showed a moment ago.
    ///
    /// # Errors
    /// As the guest refuses, or `guest_unreachable` if its clock cannot be brought close.
    pub(crate) async fn right_clock(&self, mut shown: i64) -> Result<(), Denial> {
        for _ in 0..CLOCK_TRIES {
            // What the answer was under way is in this difference too: it errs on the safe side.
            if now_ns().abs_diff(shown) <= CLOCK_CLOSE {
                return Ok(());
            }
            let clock = Clock {
                wall_clock_ns: now_ns(),
            };
            let answer: Clock = self
                .value(Method::PUT, "/v1/clock", json_body(&clock)?)
                .await?;
            shown = answer.wall_clock_ns;
        }
        if now_ns().abs_diff(shown) <= CLOCK_RIGHT {
            return Ok(());
        }
        Err(Denial::new(
            DenialCode::GuestUnreachable,
            "the guest's clock could not be set right",
        ))
    }

    /// Sends a request as it is and gives back the answer as it comes.
    pub(crate) async fn send(
        &self,
        method: Method,
        path_and_query: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Denial> {
        let uri: Uri = format!("http://guest{path_and_query}")
            .parse()
            .map_err(|_| {
                Denial::new(
                    DenialCode::InvalidRequest,
                    "the path cannot be sent to the guest",
                )
            })?;
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(PROTOCOL_HEADER, PROTOCOL)
            .body(body)
            .map_err(|error| crate::state::internal("make a request to the guest", &error))?;
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(|error| unreachable(&error))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| unreachable(&error))
    }

    async fn value<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<T, Denial> {
        let response = self.send(method, path, body).await?;
        if !response.status().is_success() {
            return Err(denial_of(response).await);
        }
        let bytes = read_bytes(response.into_body(), ANSWER).await?;
        serde_json::from_slice(&bytes).map_err(|_| {
            Denial::new(
                DenialCode::GuestUnreachable,
                "the guest answered in another form than documented",
            )
        })
    }
}

/// Where git goes in a guest that is nobody's: nowhere.
const NO_GIT: &str = "https://git.invalid/";

/// What a guest is told to become, with the time, fresh randomness and a fresh machine id.
fn adoption(sandbox: &SandboxId, git_base_url: &str) -> Adopt {
    let machine_id: u128 = rand::random();
    Adopt {
        sandbox: sandbox.clone(),
        wall_clock_ns: now_ns(),
        entropy: entropy(),
        machine_id: format!("{machine_id:032x}"),
        git_base_url: git_base_url.to_owned(),
    }
}

/// Fresh randomness as it is sent.
fn entropy() -> String {
    let bytes: [u8; 64] = rand::random();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The wall clock in nanoseconds since 1970.
fn now_ns() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

fn json_body<T: Serialize>(value: &T) -> Result<Body, Denial> {
    serde_json::to_vec(value)
        .map(Body::from)
        .map_err(|error| crate::state::internal("write a request to the guest", &error))
}

fn unreachable(error: &hyper::Error) -> Denial {
    Denial::new(
        DenialCode::GuestUnreachable,
        format!("the guest agent does not answer: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Json;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A guest whose clock shows what it is set to, less `behind`, from the `until`th time on right.
    async fn guest(behind: i64, until: u32) -> (Guest, Arc<AtomicU32>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let set = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&set);
        let route = axum::routing::put(move |body: bytes::Bytes| async move {
            let mut clock: Clock = serde_json::from_slice(&body).unwrap();
            if counted.fetch_add(1, Ordering::SeqCst) + 1 < until {
                clock.wall_clock_ns -= behind;
            }
            Json(clock)
        });
        let router = axum::Router::new().route("/v1/clock", route);
        tokio::spawn(crate::pipe::serve(theirs, router));
        (Guest::connect(ours).await.unwrap(), set)
    }

    const SECOND: i64 = 1_000_000_000;

    #[tokio::test]
    async fn a_clock_that_was_set_late_is_set_again_until_it_is_right() {
        let (guest, set) = guest(3 * SECOND, 2).await;
        guest.right_clock(now_ns() - 5 * SECOND).await.unwrap();
        assert_eq!(set.load(Ordering::SeqCst), 2);
        guest.right_clock(now_ns()).await.unwrap();
        assert_eq!(set.load(Ordering::SeqCst), 2, "a right one is let alone");
        guest.right_clock(now_ns() + 5 * SECOND).await.unwrap();
        assert_eq!(set.load(Ordering::SeqCst), 3, "one that is ahead is not");
    }

    #[tokio::test]
    async fn a_guest_whose_clock_stays_wrong_is_not_taken() {
        let (guest, set) = guest(3 * SECOND, u32::MAX).await;
        let denial = guest.right_clock(0).await.unwrap_err();
        assert_eq!(denial.code, DenialCode::GuestUnreachable);
        assert_eq!(set.load(Ordering::SeqCst), u32::from(CLOCK_TRIES));
    }
}
