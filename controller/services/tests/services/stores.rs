//! A store that fails its caller at a chosen point.

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_api::public::{Diff, Event, EventBody};
use lazaret_domain::{ExecId, Fence, KeyId, RunId, SandboxId};
use lazaret_services::IdempotencyKey;
use lazaret_services::ports::fake_host::CrashPoint;
use lazaret_services::ports::store::{
    AllAccepted, Asked, Cap, Counts, Fact, HostRecord, KeyRecord, Named, NamedExec, NewRun,
    RunRecord, Store, StoreError, Taken,
};
use lazaret_store::SqliteStore;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a store does at the commit of a run's end, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    /// Writes it and never answers.
    Stall,
    /// Panics.
    Panic,
}

/// A store that stops its caller at the n-th write, before or after it is on disk, or does something
/// at the commit of a run's end.
pub(crate) struct CrashingStore {
    pub(crate) inner: SqliteStore,
    pub(crate) crash: CrashPoint,
    pub(crate) at_end: Mutex<Option<AtEnd>>,
    /// How many commits there were, and how often a kept diff was looked for.
    pub(crate) commits: AtomicU32,
    pub(crate) diff_reads: AtomicU32,
}

impl CrashingStore {
    pub(crate) async fn open(path: &Path, crash: CrashPoint) -> Self {
        Self {
            inner: SqliteStore::open(path).await.unwrap(),
            crash,
            at_end: Mutex::default(),
            commits: AtomicU32::new(0),
            diff_reads: AtomicU32::new(0),
        }
    }
}

#[async_trait]
impl Store for CrashingStore {
    async fn accept(&self, new: Vec<NewRun>, cap: Cap) -> Result<AllAccepted, StoreError> {
        self.crash.pass().await;
        let answer = self.inner.accept(new, cap).await;
        self.crash.pass().await;
        answer
    }
    async fn take(&self, id: &RunId) -> Result<Option<Taken>, StoreError> {
        self.crash.pass().await;
        self.inner.take(id).await
    }
    async fn commit(
        &self,
        id: &RunId,
        fence: Fence,
        at: Timestamp,
        facts: Vec<Fact>,
    ) -> Result<u64, StoreError> {
        self.crash.pass().await;
        self.commits.fetch_add(1, Ordering::SeqCst);
        let end = |fact: &Fact| matches!(fact, Fact::Event(EventBody::End { .. }));
        let at_end = match facts.iter().any(end) {
            true => self.at_end.lock().unwrap().take(),
            false => None,
        };
        assert_ne!(at_end, Some(AtEnd::Panic), "as the test wants it");
        let answer = self.inner.commit(id, fence, at, facts).await;
        if at_end == Some(AtEnd::Stall) {
            std::future::pending::<()>().await;
        }
        self.crash.pass().await;
        answer
    }
    async fn accepted_before(
        &self,
        by: &KeyId,
        name: &IdempotencyKey,
    ) -> Result<Option<(String, RunRecord)>, StoreError> {
        self.inner.accepted_before(by, name).await
    }
    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, StoreError> {
        self.inner.run(id).await
    }
    async fn run_of(&self, sandbox: &SandboxId) -> Result<Option<RunRecord>, StoreError> {
        self.inner.run_of(sandbox).await
    }
    async fn runs(
        &self,
        before: Option<&RunId>,
        limit: u32,
        active: bool,
    ) -> Result<Vec<RunRecord>, StoreError> {
        self.inner.runs(before, limit, active).await
    }
    async fn open_runs(&self) -> Result<Vec<RunRecord>, StoreError> {
        self.inner.open_runs().await
    }
    async fn counts(&self, waking: &[RunId]) -> Result<Counts, StoreError> {
        self.inner.counts(waking).await
    }
    async fn fence(&self) -> Result<Fence, StoreError> {
        self.inner.fence().await
    }
    async fn events(&self, id: &RunId, after: u64, limit: u32) -> Result<Vec<Event>, StoreError> {
        self.inner.events(id, after, limit).await
    }
    async fn log_before(
        &self,
        id: &RunId,
        before: u64,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        self.inner.log_before(id, before, limit).await
    }
    async fn diff(&self, id: &RunId) -> Result<Option<Diff>, StoreError> {
        let diff = self.inner.diff(id).await;
        self.diff_reads.fetch_add(1, Ordering::SeqCst);
        diff
    }
    async fn hosts(&self) -> Result<Vec<HostRecord>, StoreError> {
        self.inner.hosts().await
    }
    async fn put_host(&self, host: &HostRecord) -> Result<(), StoreError> {
        self.inner.put_host(host).await
    }
    async fn name_exec(
        &self,
        run: &RunId,
        asked: &Asked,
        exec: &ExecId,
    ) -> Result<Named<NamedExec>, StoreError> {
        self.crash.pass().await;
        let answer = self.inner.name_exec(run, asked, exec).await;
        self.crash.pass().await;
        answer
    }
    async fn exec_started(&self, run: &RunId, asked: &Asked) -> Result<(), StoreError> {
        self.crash.pass().await;
        let answer = self.inner.exec_started(run, asked).await;
        self.crash.pass().await;
        answer
    }
    async fn add_key(
        &self,
        key: &KeyRecord,
        asked: Option<&Asked>,
    ) -> Result<Named<KeyId>, StoreError> {
        self.inner.add_key(key, asked).await
    }
    async fn key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.inner.key(id).await
    }
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.inner.keys().await
    }
    async fn revoke_key(&self, id: &KeyId, at: Timestamp) -> Result<Option<KeyRecord>, StoreError> {
        self.inner.revoke_key(id, at).await
    }
}
