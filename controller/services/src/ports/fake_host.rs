//! A host in memory that behaves like one: idempotent by id, fenced, with framed output from any
//! offset, commands that run on, boots that fail, and a connection that can be cut.
//!
//! It counts real effects, so that a test can say that each happened once, and it outlives the
//! controller that uses it. A [`CrashPoint`] stops its caller for ever at the n-th call, before or
//! after the effect: what a SIGKILL does to a controller.

mod inside;
mod link;
mod play;

pub use play::{Boot, Play, commit_id, exited, ordinary};

use crate::ports::host_link::{HostAddress, HostLink, HostLinks, LinkState};
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_api::PROTOCOL;
use lazaret_api::frame::Frame;
use lazaret_api::guest::ExecExit;
use lazaret_api::host::{Accel, EgressRecord, End, Exec, ExecRequest, HostInfo, Sandbox};
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{Denial, DenialCode, ExecId, Fence, HostName, SandboxId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Decides what a command does.
pub type Script = dyn Fn(&ExecId, &ExecRequest) -> Play + Send + Sync;

/// Stops whoever passes it for the n-th time, for ever.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    left: Arc<AtomicI64>,
    hit: watch::Sender<bool>,
}

impl Default for CrashPoint {
    fn default() -> Self {
        Self {
            left: Arc::new(AtomicI64::new(i64::MAX)),
            hit: watch::Sender::new(false),
        }
    }
}

impl CrashPoint {
    /// Stops the caller that passes after so many others; `None`: nobody.
    pub fn arm(&self, after: Option<u32>) {
        self.left
            .store(after.map_or(i64::MAX, i64::from), Ordering::SeqCst);
        self.hit.send_replace(false);
    }

    /// Passes, or stays here for ever.
    pub async fn pass(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.hit.send_replace(true);
            std::future::pending::<()>().await;
        }
    }

    /// Waits until somebody was stopped.
    pub async fn reached(&self) {
        let mut hit = self.hit.subscribe();
        hit.wait_for(|hit| *hit).await.ok();
    }
}

/// One command of a fake sandbox.
pub(super) struct FakeExec {
    exec: Exec,
    request: ExecRequest,
    /// Framed output so far; the exit frame is its last.
    output: Vec<u8>,
}

/// One sandbox of a fake host.
pub(super) struct FakeSandbox {
    sandbox: Sandbox,
    fence: Fence,
    execs: BTreeMap<ExecId, FakeExec>,
    files: BTreeMap<String, Bytes>,
    egress: Vec<EgressRecord>,
}

/// How often each effect really happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Sandboxes made.
    pub created: BTreeMap<SandboxId, u32>,
    /// Commands started.
    pub started: BTreeMap<(SandboxId, ExecId), u32>,
    /// Sandboxes removed.
    pub destroyed: BTreeMap<SandboxId, u32>,
    /// Commands cancelled.
    pub cancelled: BTreeMap<(SandboxId, ExecId), u32>,
}

pub(super) struct State {
    sandboxes: BTreeMap<SandboxId, FakeSandbox>,
    effects: Effects,
    boot: Boot,
    script: Arc<Script>,
    info: HostInfo,
    /// Refuses the next creates with this.
    refuse_create: Option<Denial>,
    refuse_wake: Option<Denial>,
    /// Cuts a followed output after so many bytes, again and again.
    cut_after: Option<usize>,
    /// Takes calls and never answers them.
    hangs: bool,
    /// Refuses to tell decisions of the gateway.
    no_egress: bool,
    /// Sandboxes that cannot be removed.
    stuck: BTreeSet<SandboxId>,
}

pub(super) struct Inner {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    link: watch::Sender<LinkState>,
    key: String,
}

/// A host in memory. Clones are the same host.
#[derive(Clone)]
pub struct FakeHost {
    inner: Arc<Inner>,
    crash: CrashPoint,
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

/// The fingerprint that fake hosts present.
pub const FAKE_KEY: &str = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";

impl FakeHost {
    /// A host that is up and boots everything.
    #[must_use]
    pub fn new() -> Self {
        let info = HostInfo {
            version: "fake".to_owned(),
            protocol: PROTOCOL,
            accel: Ok(Accel::Kvm),
            vmm: Ok("fake 1.0".to_owned()),
            image: Ok("sha256:fake".to_owned()),
            disk_free: 1 << 40,
            clock: Timestamp::now(),
            boot_id: "host".to_owned(),
            max_sandboxes: 100,
        };
        let state = State {
            sandboxes: BTreeMap::new(),
            effects: Effects::default(),
            boot: Boot::Ready,
            script: Arc::new(ordinary),
            info,
            refuse_create: None,
            refuse_wake: None,
            cut_after: None,
            hangs: false,
            no_egress: false,
            stuck: BTreeSet::new(),
        };
        let inner = Inner {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            link: watch::Sender::new(LinkState::Up),
            key: FAKE_KEY.to_owned(),
        };
        Self {
            inner: Arc::new(inner),
            crash: CrashPoint::default(),
        }
    }

    /// The same, stopping callers at this point.
    #[must_use]
    pub fn with_crash(crash: &CrashPoint) -> Self {
        Self {
            crash: crash.clone(),
            ..Self::new()
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.inner.changed.send_modify(|count| *count += 1);
    }

    /// Changes what the host says of itself.
    pub fn describe(&self, change: impl FnOnce(&mut HostInfo)) {
        change(&mut self.state().info);
    }

    /// How the next boots go.
    pub fn boots(&self, boot: Boot) {
        self.state().boot = boot;
        self.changed();
    }

    /// What commands do from now on.
    pub fn plays(&self, script: impl Fn(&ExecId, &ExecRequest) -> Play + Send + Sync + 'static) {
        self.state().script = Arc::new(script);
    }

    /// Refuses to wake anything from now on.
    pub fn refuses_wake(&self, denial: Option<Denial>) {
        self.state().refuse_wake = denial;
    }

    /// Puts a sandbox to sleep by itself, as for idleness.
    pub fn falls_asleep(&self, id: &SandboxId) {
        if let Ok(sandbox) = self.state().sandbox(id) {
            let _ = sandbox.rest(SandboxState::Asleep);
        }
        self.changed();
    }

    /// Refuses creates from now on.
    pub fn refuses_create(&self, denial: Option<Denial>) {
        self.state().refuse_create = denial;
    }

    /// Cuts every followed output after so many bytes.
    pub fn cuts_output_after(&self, bytes: Option<usize>) {
        self.state().cut_after = bytes;
    }

    /// Takes calls from now on and never answers them; the connection stays up.
    pub fn hangs(&self) {
        self.state().hangs = true;
    }

    /// Cannot remove this sandbox.
    pub fn sticks(&self, id: &SandboxId) {
        self.state().stuck.insert(id.clone());
    }

    /// Cuts the connection.
    pub fn goes_down(&self, code: DenialCode) {
        let reason = Denial::new(code, "the fake host was told to go away");
        self.inner.link.send_replace(LinkState::Down {
            since: Timestamp::now(),
            reason,
        });
        self.changed();
    }

    /// Restores the connection.
    pub fn comes_up(&self) {
        self.inner.link.send_replace(LinkState::Up);
        self.changed();
    }

    /// How often each effect really happened.
    #[must_use]
    pub fn effects(&self) -> Effects {
        self.state().effects.clone()
    }

    /// The sandboxes that are there.
    #[must_use]
    pub fn ids(&self) -> Vec<SandboxId> {
        self.state().sandboxes.keys().cloned().collect()
    }

    /// A file that was uploaded.
    #[must_use]
    pub fn uploaded(&self, id: &SandboxId, path: &str) -> Option<Bytes> {
        self.state().sandboxes.get(id)?.files.get(path).cloned()
    }

    /// Adds a decision of the gateway.
    pub fn decided(&self, id: &SandboxId, record: EgressRecord) {
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.egress.push(record);
        }
    }

    /// Forgets a command and what it said, as a host does with those beside the work in time.
    pub fn forgets(&self, id: &SandboxId, exec: &ExecId) {
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.execs.remove(exec);
        }
        self.changed();
    }

    /// Has no decisions to tell any more: asking for them is refused.
    pub fn forgets_decisions(&self) {
        self.state().no_egress = true;
    }

    /// Adds output to a command that runs, or ends it.
    pub fn says(&self, id: &SandboxId, exec: &ExecId, frames: &[Frame], exit: Option<ExecExit>) {
        if let Some(exec) = self
            .state()
            .sandboxes
            .get_mut(id)
            .and_then(|sandbox| sandbox.execs.get_mut(exec))
        {
            exec.add(frames, exit);
        }
        self.changed();
    }

    /// Ends a sandbox, as its shim does, and the commands in it.
    pub fn ends(&self, id: &SandboxId, cause: EndCause) {
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.end(cause);
        }
        self.changed();
    }

    /// Loses a sandbox without a trace.
    pub fn loses(&self, id: &SandboxId) {
        self.state().sandboxes.remove(id);
        self.changed();
    }

    /// Waits until something holds of the host's sandboxes.
    pub async fn until<T>(&self, mut holds: impl FnMut(&Self) -> Option<T>) -> T {
        let mut changed = self.inner.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(value) = holds(self) {
                return value;
            }
            changed.changed().await.ok();
        }
    }

    /// Waits until a command of that id runs in some sandbox.
    pub async fn until_started(&self, exec: &str) -> SandboxId {
        let find = |host: &Self| {
            let started = host.effects().started;
            started
                .into_keys()
                .find(|(_, id)| id.as_str() == exec)
                .map(|(sandbox, _)| sandbox)
        };
        self.until(find).await
    }
}

impl FakeExec {
    fn add(&mut self, frames: &[Frame], exit: Option<ExecExit>) {
        if self.exec.exit.is_some() {
            return;
        }
        self.output.extend(frames.iter().flat_map(Frame::encode));
        if let Some(exit) = exit {
            let json = serde_json::to_vec(&exit).unwrap_or_default();
            self.output.extend(Frame::Exit(json.into()).encode());
            self.exec.exit = Some(exit);
        }
        self.exec.output_len = self.output.len() as u64;
    }
}

impl FakeSandbox {
    fn end(&mut self, cause: EndCause) {
        self.sandbox.state = SandboxState::Gone;
        self.sandbox.end = Some(End {
            cause,
            detail: String::new(),
            at: Timestamp::now(),
        });
        for exec in self.execs.values_mut() {
            exec.add(&[], Some(play::ended()));
        }
    }
}

/// Links to fake hosts, by name.
#[derive(Clone, Default)]
pub struct FakeLinks {
    hosts: Arc<Mutex<BTreeMap<HostName, FakeHost>>>,
}

impl FakeLinks {
    /// Adds a host under a name.
    #[must_use]
    pub fn with(self, name: &HostName, host: &FakeHost) -> Self {
        self.hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.clone(), host.clone());
        self
    }
}

impl HostLinks for FakeLinks {
    fn connect(&self, name: &HostName, address: &HostAddress) -> Arc<dyn HostLink> {
        let known = self
            .hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned();
        let host = known.unwrap_or_else(|| {
            let nobody = FakeHost::new();
            nobody.goes_down(DenialCode::HostUnreachable);
            nobody
        });
        if host.inner.key != address.host_key {
            let stranger = FakeHost::new();
            stranger.goes_down(DenialCode::HostKeyMismatch);
            return Arc::new(stranger);
        }
        Arc::new(host)
    }
}
