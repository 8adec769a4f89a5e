//! The port to one host: the host API as a trait.
//!
//! Every method is one call over the connection of that host. A call that cannot be made fails
//! within ten seconds with `host_unreachable`, `host_key_mismatch`, `host_refused` or
//! `host_version`; a refusal of the host arrives as the host's own [`Denial`].

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use lazaret_api::guest::Listing;
use lazaret_api::host::{
    Copied, EgressRecords, Exec, ExecRequest, HostInfo, Sandbox, SandboxSpec, WakeFrom,
};
use lazaret_domain::{Denial, ExecId, Fence, GuestPath, HostName, SandboxId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Bytes as they arrive; an error ends the stream.
pub type ByteStream = BoxStream<'static, Result<Bytes, Denial>>;

/// Which part of the guest's file system a tar stream goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Where the work lies.
    Workspace,
    /// The area that the agent can only read.
    Uploads,
}

/// Whether a host can be asked at this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// No connection was tried yet.
    Connecting,
    /// It answers.
    Up,
    /// It does not, since then, for this reason.
    Down {
        /// Since when.
        since: Timestamp,
        /// Why.
        reason: Denial,
    },
}

/// One host.
#[async_trait]
pub trait HostLink: Send + Sync + 'static {
    /// Whether it can be asked, now and as it changes.
    fn state(&self) -> watch::Receiver<LinkState>;

    /// What the host is and has.
    async fn info(&self) -> Result<HostInfo, Denial>;

    /// All sandboxes it has a directory for.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Denial>;

    /// Creates a sandbox, or finds the one of that id.
    async fn create(
        &self,
        fence: Fence,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Sandbox, Denial>;

    /// A sandbox as it is now.
    async fn inspect(&self, id: &SandboxId) -> Result<Sandbox, Denial>;

    /// A sandbox once it is no longer forking, or as it is after `wait`.
    async fn settled(&self, id: &SandboxId, wait: Duration) -> Result<Sandbox, Denial>;

    /// Ends a sandbox and removes all it held. Idempotent; one that is not there is success.
    async fn destroy(&self, fence: Fence, id: &SandboxId) -> Result<(), Denial>;

    /// Puts a sandbox to sleep. Idempotent.
    async fn sleep(&self, fence: Fence, id: &SandboxId) -> Result<Sandbox, Denial>;

    /// Wakes a sandbox. Idempotent.
    async fn wake(&self, fence: Fence, id: &SandboxId, from: WakeFrom) -> Result<Sandbox, Denial>;

    /// Makes copies of a sandbox as it is at one moment, or finds those of these ids.
    async fn copies(
        &self,
        fence: Fence,
        id: &SandboxId,
        copies: &[SandboxId],
    ) -> Result<Copied, Denial>;

    /// Exempts a sandbox from its sleep TTL, or no longer.
    async fn keep(&self, fence: Fence, id: &SandboxId, keep: bool) -> Result<Sandbox, Denial>;

    /// Starts a command once, or finds the one of that id.
    async fn start_exec(
        &self,
        fence: Fence,
        id: &SandboxId,
        exec: &ExecId,
        request: &ExecRequest,
    ) -> Result<Exec, Denial>;

    /// A command as it is now.
    async fn exec(&self, id: &SandboxId, exec: &ExecId) -> Result<Exec, Denial>;

    /// Its framed output from `offset` on. With `follow` the stream ends after the exit frame; a
    /// stream that ends without one was cut off.
    async fn output(
        &self,
        id: &SandboxId,
        exec: &ExecId,
        offset: u64,
        follow: bool,
    ) -> Result<ByteStream, Denial>;

    /// Ends a command. Idempotent.
    async fn cancel_exec(&self, fence: Fence, id: &SandboxId, exec: &ExecId) -> Result<(), Denial>;

    /// A directory of the workspace.
    async fn list_files(&self, id: &SandboxId, path: &GuestPath) -> Result<Listing, Denial>;

    /// A file or tree of the workspace as a tar stream.
    async fn read_tar(&self, id: &SandboxId, path: &GuestPath) -> Result<ByteStream, Denial>;

    /// Unpacks a tar stream into a directory of that area.
    async fn write_tar(
        &self,
        fence: Fence,
        id: &SandboxId,
        area: Area,
        path: &GuestPath,
        tar: ByteStream,
    ) -> Result<(), Denial>;

    /// What the serial console showed.
    async fn console(&self, id: &SandboxId) -> Result<String, Denial>;

    /// The gateway's decisions after a number.
    async fn egress(&self, id: &SandboxId, after: u64) -> Result<EgressRecords, Denial>;
}

/// What is needed to reach a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The account there.
    pub user: String,
    /// A host name or an address.
    pub host: String,
    /// The SSH port.
    pub port: u16,
    /// The pinned host key, `SHA256:…`.
    pub host_key: String,
}

/// Makes links to hosts and keeps them up until they are dropped.
pub trait HostLinks: Send + Sync + 'static {
    /// A link that connects by itself, at once and again after every loss.
    fn connect(&self, name: &HostName, address: &HostAddress) -> Arc<dyn HostLink>;
}
