//! The port to the store: everything that must outlive the controller.
//!
//! A run is changed by its driver alone, through [`Store::commit`]: one transaction that holds every
//! fact that belongs together (a journaled step, the events that tell of it, how far its output was
//! read), and that is refused if a newer driver has [taken](Store::take) the run since. So a driver
//! that was thought dead can do no harm, and no event is lost or written twice.

use crate::principal::IdempotencyKey;
use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_api::host::{Accel, Confinement, SandboxSpec};
use lazaret_api::public::{
    CreateRun, Diff, EgressChoice, Event, EventBody, HostAdmission, RunStages, Scope,
};
use lazaret_domain::run::{Ending, RunState};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, ExecId, Fence, HostName, KeyId, RunId, SandboxId, Span};
use serde::{Deserialize, Serialize};

/// What was wrong with a call to the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A newer driver has taken the run; nothing was written.
    #[error("a newer driver has taken the run")]
    Fenced,
    /// What is stored is not what was written: a damaged database, or one of another version.
    #[error("the store holds something that cannot be read: {0}")]
    Corrupt(String),
    /// The store cannot be read or written; nothing was written.
    #[error("the store cannot be used: {0}")]
    Failed(String),
}

impl From<StoreError> for Denial {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced => Self::new(
                DenialCode::StaleFence,
                "another driver has taken the run; try again",
            ),
            StoreError::Corrupt(_) | StoreError::Failed(_) => Self::new(
                DenialCode::StoreFailed,
                "the controller's store cannot be used, so nothing was done; see the controller's log, its disk space \
                 and its database file",
            ),
        }
    }
}

/// A run, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// Its id.
    pub id: RunId,
    /// The key that delegated it.
    pub by: KeyId,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// What is to be done; fixed at acceptance.
    pub plan: RunPlan,
    /// Where it stands.
    pub state: RunState,
    /// What became known on the way.
    pub facts: RunFacts,
    /// Whether it still counts against the cap: its sandbox is not known to be removed.
    pub holds: bool,
    /// The fence of its latest driver.
    pub fence: Fence,
    /// The number of its latest event.
    pub last_seq: u64,
}

/// What a run is to do, and with what. Nothing in it changes after acceptance, so a driver that
/// takes over asks the host for exactly the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// The request as it came.
    pub request: CreateRun,
    /// What it may reach, as it is shown.
    pub egress: EgressChoice,
    /// The host its sandbox is on.
    pub host: HostName,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// What the sandbox is to be.
    pub spec: SandboxSpec,
    /// The run that it is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
}

/// What a copy takes over from the run that was forked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The run.
    pub run: RunId,
    /// The commit that its work started from, if it had cloned by then.
    pub base: Option<String>,
}

/// What became known about a run on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// The commit its work starts from.
    pub base: Option<String>,
    /// What its host said about its sandbox.
    pub sandbox: Option<SandboxFacts>,
    /// How long each stage took.
    pub stages: RunStages,
    /// The longest duration of its command, which is to end before its sandbox does.
    pub command_limit: Option<Span>,
    /// How it is to end, once that is decided; then what must happen first is done.
    pub decided: Option<Ending>,
    /// Whether its sandbox is to be removed at once, because the work never began.
    pub discard: bool,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// When somebody asked to end the work.
    pub cancel_asked: Option<Timestamp>,
    /// When somebody asked to remove it.
    pub teardown_asked: Option<Timestamp>,
    /// When everything it held was removed, after a teardown.
    pub torn_down_at: Option<Timestamp>,
    /// The number of the latest decision of its gateway that is among its events.
    pub egress_after: u64,
}

impl RunFacts {
    /// Whether its sandbox sleeps, as far as is known.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        self.sandbox
            .as_ref()
            .is_some_and(|sandbox| sandbox.state == SandboxState::Asleep)
    }
}

/// What a host said about a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxFacts {
    /// Its state.
    pub state: SandboxState,
    /// The accelerator in use.
    pub accel: Option<Accel>,
    /// The guest's boot id.
    pub boot_id: Option<String>,
    /// The guest's kernel release.
    pub kernel: Option<String>,
    /// When the host ends it; never, while it sleeps and is kept.
    #[serde(default)]
    pub deadline: Option<Timestamp>,
    /// Since when it sleeps.
    #[serde(default)]
    pub asleep_since: Option<Timestamp>,
    /// Whether it is exempt from its sleep TTL.
    #[serde(default)]
    pub kept: bool,
    /// What confines its VMM.
    pub confinement: Confinement,
}

/// A run to accept.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Its id.
    pub id: RunId,
    /// The key that delegates it.
    pub by: KeyId,
    /// Now.
    pub at: Timestamp,
    /// What is to be done.
    pub plan: RunPlan,
    /// The caller's name for this request, and the request's digest.
    pub idempotency: Option<(IdempotencyKey, String)>,
    /// The name of its first step, whose intent is stored with it.
    pub first_step: &'static str,
}

/// How many runs may hold a sandbox that is awake.
#[derive(Clone, Debug)]
pub struct Cap {
    /// So many.
    pub most: u32,
    /// Runs whose sandbox is being woken: they count, also while they are still known to sleep.
    pub waking: Vec<RunId>,
}

/// What became of a run to accept.
#[derive(Clone, Debug, PartialEq)]
pub enum Accepted {
    /// It is stored, with its first event, the intent of its first step and a fence higher than all
    /// before: accepting it was taking it.
    New(Box<Taken>),
    /// The same request was accepted before, as this run.
    Before(Box<RunRecord>),
}

/// Why runs are not accepted. Nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAccepted {
    /// The idempotency key belongs to another request.
    OtherRequest,
    /// The cap is reached, or would be passed; so many runs held a sandbox before.
    CapReached(u32),
}

/// What became of runs to accept: of each in their order, or why of none.
pub type AllAccepted = Result<Vec<Accepted>, NotAccepted>;

/// A request under the name that its caller gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The key that asks; names of different keys have nothing to do with each other.
    pub by: KeyId,
    /// The name.
    pub name: IdempotencyKey,
    /// The request's digest.
    pub digest: String,
}

/// What is known of a request by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named<T> {
    /// Nothing was; it is stored now.
    New,
    /// The same request was stored before, as this.
    Before(T),
    /// The name belongs to another request.
    OtherRequest,
}

/// A command beside a run that was asked for under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedExec {
    /// Its id in the run's sandbox.
    pub exec: ExecId,
    /// Whether the host is known to have started it. Then it is not started again, whatever the host
    /// remembers of it.
    pub started: bool,
}

/// One effect in the journal of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its place in the order in which steps were begun, from 0.
    pub position: u32,
    /// Its name.
    pub name: String,
    /// How far its output was read, where it has output.
    pub cursor: Cursor,
    /// Its outcome as JSON, once it is done.
    pub outcome: Option<String>,
}

/// How far the output of a command was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cursor {
    /// The offset in framed output.
    pub offset: u64,
    /// The first bytes of a character of standard output whose rest has not come.
    pub stdout_rest: Vec<u8>,
    /// The same of standard error.
    pub stderr_rest: Vec<u8>,
}

/// A run in the hands of its driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The run, with the fence of this driver.
    pub run: RunRecord,
    /// Its journal, in order.
    pub steps: Vec<StepRecord>,
}

/// One thing that became true. Facts of one commit become true together.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The run's state.
    State(RunState),
    /// What is known about the run now.
    Facts(Box<RunFacts>),
    /// A step is about to have its effect.
    Begun(String),
    /// A step had its effect; its outcome as JSON.
    Done(String, String),
    /// So far its output was read.
    Read(String, Cursor),
    /// The next event.
    Event(EventBody),
    /// What the run changed.
    Diff(Diff),
    /// Its sandbox is known to be removed; it no longer counts against the cap.
    Released,
}

/// A host, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRecord {
    /// Its name.
    pub name: HostName,
    /// The account there.
    pub user: String,
    /// A host name or an address.
    pub host: String,
    /// The SSH port.
    pub port: u16,
    /// The pinned host key.
    pub host_key: String,
    /// Whether new sandboxes go to it.
    pub admission: HostAdmission,
}

/// An API key, as it is stored: never its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its id.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
    /// SHA-256 of the whole token.
    pub hash: Vec<u8>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// How many runs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that are not done.
    pub active: u32,
    /// Runs that hold a sandbox which is awake or being woken.
    pub holding: u32,
}

/// The store. Each method is one transaction.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Accepts runs and takes them, those that were not accepted before; none if the cap would be
    /// passed.
    async fn accept(&self, new: Vec<NewRun>, cap: Cap) -> Result<AllAccepted, StoreError>;
    /// The run that this request was accepted as before, and the digest of that request.
    async fn accepted_before(
        &self,
        by: &KeyId,
        name: &IdempotencyKey,
    ) -> Result<Option<(String, RunRecord)>, StoreError>;
    /// One run.
    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, StoreError>;
    /// The run that a sandbox belongs to.
    async fn run_of(&self, sandbox: &SandboxId) -> Result<Option<RunRecord>, StoreError>;
    /// Runs older than `before`, newest first; with `active` only those not done.
    async fn runs(
        &self,
        before: Option<&RunId>,
        limit: u32,
        active: bool,
    ) -> Result<Vec<RunRecord>, StoreError>;
    /// All runs that need a driver: not done, or with a sandbox that is not known to be removed.
    async fn open_runs(&self) -> Result<Vec<RunRecord>, StoreError>;
    /// How many runs there are. Those of `waking` count as holding, also while they are still known to
    /// sleep.
    async fn counts(&self, waking: &[RunId]) -> Result<Counts, StoreError>;

    /// Takes a run with a fence higher than all before, which ends the power of earlier drivers.
    async fn take(&self, id: &RunId) -> Result<Option<Taken>, StoreError>;
    /// A fence higher than all before, for an effect that belongs to no run.
    async fn fence(&self) -> Result<Fence, StoreError>;
    /// Makes facts true, together, and answers the number of the run's latest event.
    async fn commit(
        &self,
        id: &RunId,
        fence: Fence,
        at: Timestamp,
        facts: Vec<Fact>,
    ) -> Result<u64, StoreError>;

    /// Events after a number that are still kept, oldest first.
    async fn events(&self, id: &RunId, after: u64, limit: u32) -> Result<Vec<Event>, StoreError>;
    /// Log events before a number that are still kept, latest first.
    async fn log_before(
        &self,
        id: &RunId,
        before: u64,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError>;
    /// The stored diff.
    async fn diff(&self, id: &RunId) -> Result<Option<Diff>, StoreError>;

    /// Stores which command beside a run a request is, unless its name was used for that run before.
    async fn name_exec(
        &self,
        run: &RunId,
        asked: &Asked,
        exec: &ExecId,
    ) -> Result<Named<NamedExec>, StoreError>;
    /// Notes that the host has started the command of that name.
    async fn exec_started(&self, run: &RunId, asked: &Asked) -> Result<(), StoreError>;

    /// All hosts, by name.
    async fn hosts(&self) -> Result<Vec<HostRecord>, StoreError>;
    /// Stores a host, or changes the one of that name.
    async fn put_host(&self, host: &HostRecord) -> Result<(), StoreError>;

    /// Stores a new key, unless one was made before under the same name.
    async fn add_key(
        &self,
        key: &KeyRecord,
        asked: Option<&Asked>,
    ) -> Result<Named<KeyId>, StoreError>;
    /// One key.
    async fn key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError>;
    /// All keys, oldest first.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;
    /// Revokes a key, once, and answers it.
    async fn revoke_key(&self, id: &KeyId, at: Timestamp) -> Result<Option<KeyRecord>, StoreError>;
}
