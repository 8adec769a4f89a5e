//! The port's methods over anything that can carry a [`Call`].

use crate::calls::Call;
use crate::client::{CallError, HostClient, attentive, decode, stream, whole};
use async_trait::async_trait;
use futures::{Stream, StreamExt};
use http::Response;
use hyper::body::Incoming;
use lazaret_api::guest::Listing;
use lazaret_api::host::{
    Copied, EgressRecords, Exec, ExecRequest, HostInfo, Sandbox, SandboxSpec, WakeFrom,
};
use lazaret_domain::{Denial, DenialCode, ExecId, Fence, GuestPath, SandboxId};
use lazaret_services::ports::host_link::{Area, ByteStream, HostLink, LinkState};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// An answer that counts as in flight until it is dropped.
pub struct Answer {
    response: Response<Incoming>,
    in_flight: Option<OwnedSemaphorePermit>,
}

impl Answer {
    pub(crate) fn new(
        response: Response<Incoming>,
        in_flight: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self {
            response,
            in_flight,
        }
    }

    async fn json<T: DeserializeOwned>(self) -> Result<T, Denial> {
        decode(&whole(self.response.into_body()).await?)
    }

    async fn text(self) -> Result<String, Denial> {
        Ok(String::from_utf8_lossy(&whole(self.response.into_body()).await?).into_owned())
    }

    /// Reads the answer to its end, so that the host has done what it says.
    async fn done(self) -> Result<(), Denial> {
        whole(self.response.into_body()).await.map(drop)
    }

    /// The answer as it arrives, for as long as that takes: a command may be quiet.
    fn stream(self) -> ByteStream {
        Self::held(stream(self.response.into_body()), self.in_flight)
    }

    /// The answer as it arrives, unless it falls silent.
    fn file(self) -> ByteStream {
        Self::held(attentive(self.response.into_body()), self.in_flight)
    }

    fn held(stream: ByteStream, in_flight: Option<OwnedSemaphorePermit>) -> ByteStream {
        Box::pin(Held {
            stream,
            _in_flight: in_flight,
        })
    }
}

/// A stream that keeps its place among the requests in flight.
struct Held {
    stream: ByteStream,
    _in_flight: Option<OwnedSemaphorePermit>,
}

impl Stream for Held {
    type Item = <ByteStream as Stream>::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.stream.poll_next_unpin(cx)
    }
}

/// Carries calls to one host.
#[async_trait]
pub trait Exchange: Send + Sync + 'static {
    /// Whether the host can be asked.
    fn state(&self) -> watch::Receiver<LinkState>;

    /// Sends a call; the answer is a success.
    async fn exchange(&self, call: Call) -> Result<Answer, Denial>;
}

/// The port over an [`Exchange`].
pub struct Over<E>(pub E);

#[async_trait]
impl<E: Exchange> HostLink for Over<E> {
    fn state(&self) -> watch::Receiver<LinkState> {
        self.0.state()
    }

    async fn info(&self) -> Result<HostInfo, Denial> {
        self.0.exchange(Call::info()).await?.json().await
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Denial> {
        self.0.exchange(Call::sandboxes()).await?.json().await
    }

    async fn create(
        &self,
        fence: Fence,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Sandbox, Denial> {
        self.0
            .exchange(Call::create(fence, id, spec)?)
            .await?
            .json()
            .await
    }

    async fn inspect(&self, id: &SandboxId) -> Result<Sandbox, Denial> {
        self.0.exchange(Call::inspect(id)).await?.json().await
    }

    async fn settled(&self, id: &SandboxId, wait: Duration) -> Result<Sandbox, Denial> {
        self.0.exchange(Call::settled(id, wait)).await?.json().await
    }

    async fn destroy(&self, fence: Fence, id: &SandboxId) -> Result<(), Denial> {
        match self.0.exchange(Call::destroy(fence, id)).await {
            Ok(answer) => answer.done().await,
            Err(denial) if denial.code == DenialCode::SandboxNotFound => Ok(()),
            Err(denial) => Err(denial),
        }
    }

    async fn sleep(&self, fence: Fence, id: &SandboxId) -> Result<Sandbox, Denial> {
        self.0.exchange(Call::sleep(fence, id)).await?.json().await
    }

    async fn wake(&self, fence: Fence, id: &SandboxId, from: WakeFrom) -> Result<Sandbox, Denial> {
        self.0
            .exchange(Call::wake(fence, id, from))
            .await?
            .json()
            .await
    }

    async fn copies(
        &self,
        fence: Fence,
        id: &SandboxId,
        copies: &[SandboxId],
    ) -> Result<Copied, Denial> {
        self.0
            .exchange(Call::copies(fence, id, copies)?)
            .await?
            .json()
            .await
    }

    async fn keep(&self, fence: Fence, id: &SandboxId, keep: bool) -> Result<Sandbox, Denial> {
        self.0
            .exchange(Call::keep(fence, id, keep)?)
            .await?
            .json()
            .await
    }

    async fn start_exec(
        &self,
        fence: Fence,
        id: &SandboxId,
        exec: &ExecId,
        request: &ExecRequest,
    ) -> Result<Exec, Denial> {
        self.0
            .exchange(Call::start_exec(fence, id, exec, request)?)
            .await?
            .json()
            .await
    }

    async fn exec(&self, id: &SandboxId, exec: &ExecId) -> Result<Exec, Denial> {
        self.0.exchange(Call::exec(id, exec)).await?.json().await
    }

    async fn output(
        &self,
        id: &SandboxId,
        exec: &ExecId,
        offset: u64,
        follow: bool,
    ) -> Result<ByteStream, Denial> {
        Ok(self
            .0
            .exchange(Call::output(id, exec, offset, follow))
            .await?
            .stream())
    }

    async fn cancel_exec(&self, fence: Fence, id: &SandboxId, exec: &ExecId) -> Result<(), Denial> {
        self.0
            .exchange(Call::cancel_exec(fence, id, exec))
            .await?
            .done()
            .await
    }

    async fn list_files(&self, id: &SandboxId, path: &GuestPath) -> Result<Listing, Denial> {
        self.0
            .exchange(Call::list_files(id, path))
            .await?
            .json()
            .await
    }

    async fn read_tar(&self, id: &SandboxId, path: &GuestPath) -> Result<ByteStream, Denial> {
        Ok(self.0.exchange(Call::read_tar(id, path)).await?.file())
    }

    async fn write_tar(
        &self,
        fence: Fence,
        id: &SandboxId,
        area: Area,
        path: &GuestPath,
        tar: ByteStream,
    ) -> Result<(), Denial> {
        self.0
            .exchange(Call::write_tar(fence, id, area, path, tar))
            .await?
            .done()
            .await
    }

    async fn console(&self, id: &SandboxId) -> Result<String, Denial> {
        self.0.exchange(Call::console(id)).await?.text().await
    }

    async fn egress(&self, id: &SandboxId, after: u64) -> Result<EgressRecords, Denial> {
        self.0.exchange(Call::egress(id, after)).await?.json().await
    }
}

/// One connection without an owner to renew it: for tools and tests that hold a socket to a host
/// API.
#[async_trait]
impl Exchange for HostClient {
    fn state(&self) -> watch::Receiver<LinkState> {
        watch::channel(LinkState::Up).1
    }

    async fn exchange(&self, call: Call) -> Result<Answer, Denial> {
        match self.call(call).await {
            Ok(response) => Ok(Answer::new(response, None)),
            Err(CallError::Denied(denial)) => Err(denial),
            Err(CallError::Broken(why)) => Err(Denial::new(
                DenialCode::HostUnreachable,
                format!("the connection to the host broke: {why}"),
            )),
        }
    }
}
