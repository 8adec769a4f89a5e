//! A controller without its faces: services over a real store in a temporary directory, and a fake
//! host that outlives them.

use async_trait::async_trait;
use futures::StreamExt;
use jiff::Timestamp;
use lazaret_api::public::{CreateRun, Diff, EnrollHost, Event, EventBody, Run};
use lazaret_domain::{Argv, Fence, HostName, KeyId, RunId, SandboxId};
use lazaret_services::ports::clock::SystemClock;
use lazaret_services::ports::fake_host::{CrashPoint, FAKE_KEY, FakeHost, FakeLinks};
use lazaret_services::ports::random::SystemRandom;
use lazaret_services::ports::store::{
    Accepted, Counts, Fact, HostRecord, KeyRecord, NewRun, RunRecord, Store, StoreError, Taken,
};
use lazaret_services::{IdempotencyKey, Pace, Ports, Principal, Services, ServicesSettings};
use lazaret_store::SqliteStore;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything here takes; reaching it fails the test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn settings() -> ServicesSettings {
    let short = Duration::from_millis(1);
    let pace = Pace {
        retry_min: short,
        retry_max: short * 5,
        gather: short,
        look: short * 3,
        reconcile: short * 10,
        stray_grace: LONG,
        lost_grace: LONG,
        patience: Duration::from_secs(20),
    };
    ServicesSettings {
        pace,
        ..ServicesSettings::default()
    }
}

/// Everything of one controller.
pub(crate) struct House {
    pub(crate) services: Services,
    pub(crate) host: FakeHost,
    pub(crate) by: Principal,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) directory: tempfile::TempDir,
}

pub(crate) fn host_name() -> HostName {
    "box".parse().unwrap()
}

pub(crate) async fn services(
    store: Arc<dyn Store>,
    host: &FakeHost,
    settings: ServicesSettings,
) -> Services {
    let ports = Ports {
        store,
        links: Arc::new(FakeLinks::default().with(&host_name(), host)),
        clock: Arc::new(SystemClock),
        random: Arc::new(SystemRandom),
    };
    Services::start(ports, settings).await.unwrap()
}

pub(crate) async fn enroll(services: &Services) {
    let request = EnrollHost {
        name: Some(host_name()),
        address: "lazaret@box".to_owned(),
        host_key: FAKE_KEY.to_owned(),
    };
    services
        .hosts
        .enroll(&Principal::controller(), request)
        .await
        .unwrap();
}

impl House {
    pub(crate) async fn new() -> Self {
        Self::with(settings()).await
    }

    pub(crate) async fn with(settings: ServicesSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(
            SqliteStore::open(&directory.path().join("db"))
                .await
                .unwrap(),
        );
        let host = FakeHost::new();
        let services = services(Arc::clone(&store), &host, settings).await;
        enroll(&services).await;
        Self {
            services,
            host,
            by: Principal::controller(),
            store,
            directory,
        }
    }

    /// Stops the controller in order and starts another over the same store.
    pub(crate) async fn restart(&mut self, settings: ServicesSettings) {
        self.services.stop().await;
        self.services = services(Arc::clone(&self.store), &self.host, settings).await;
    }

    pub(crate) async fn delegate(&self, request: CreateRun) -> Run {
        self.services
            .runs
            .delegate(&self.by, None, request)
            .await
            .unwrap()
    }

    pub(crate) async fn done(&self, run: &RunId) -> Run {
        let run = self.services.runs.wait(&self.by, run, LONG).await.unwrap();
        assert!(
            run.outcome.is_some() && run.cause.is_some(),
            "not done in time: {run:?}"
        );
        run
    }

    /// The run once something holds of it.
    pub(crate) async fn until(&self, run: &RunId, holds: impl Fn(&Run) -> bool) -> Run {
        tokio::time::timeout(LONG, async {
            loop {
                let seen = self.services.runs.get(&self.by, run).await.unwrap();
                if holds(&seen) {
                    return seen;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap()
    }

    pub(crate) async fn all_events(&self, run: &RunId) -> Vec<Event> {
        all_events(&self.services, run).await
    }
}

/// All events of a run that is done, by following it.
pub(crate) async fn all_events(services: &Services, run: &RunId) -> Vec<Event> {
    let stream = services
        .runs
        .follow(&Principal::controller(), run, 0)
        .await
        .unwrap();
    tokio::time::timeout(LONG, stream.collect()).await.unwrap()
}

/// Asserts that events count from 1 without gap, and end with the end.
pub(crate) fn assert_whole(events: &[Event]) {
    let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    let ends = events
        .iter()
        .filter(|event| matches!(event.body, EventBody::End { .. }))
        .count();
    assert_eq!(ends, 1);
    assert!(
        matches!(events.last().unwrap().body, EventBody::End { .. }),
        "{:?}",
        events.last()
    );
}

/// The text of one stream.
pub(crate) fn text(events: &[Event], name: &str) -> String {
    let logs = events.iter().filter_map(|event| match &event.body {
        EventBody::Log { stream, text } if stream == name => Some(text.as_str()),
        _ => None,
    });
    logs.collect()
}

pub(crate) fn command(words: &[&str]) -> CreateRun {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    CreateRun {
        command: Some(Argv::new(words).unwrap()),
        ..CreateRun::default()
    }
}

pub(crate) fn on_repo() -> CreateRun {
    CreateRun {
        repo: Some("acme/demo".parse().unwrap()),
        ..command(&["make", "test"])
    }
}

/// A store that stops its caller at the n-th write, before or after it is on disk.
pub(crate) struct CrashingStore {
    pub(crate) inner: SqliteStore,
    pub(crate) crash: CrashPoint,
}

impl CrashingStore {
    pub(crate) async fn open(path: &Path, crash: CrashPoint) -> Self {
        Self {
            inner: SqliteStore::open(path).await.unwrap(),
            crash,
        }
    }
}

#[async_trait]
impl Store for CrashingStore {
    async fn accept(&self, new: NewRun) -> Result<Accepted, StoreError> {
        self.crash.pass().await;
        let answer = self.inner.accept(new).await;
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
        let answer = self.inner.commit(id, fence, at, facts).await;
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
    async fn counts(&self) -> Result<Counts, StoreError> {
        self.inner.counts().await
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
        self.inner.diff(id).await
    }
    async fn hosts(&self) -> Result<Vec<HostRecord>, StoreError> {
        self.inner.hosts().await
    }
    async fn put_host(&self, host: &HostRecord) -> Result<(), StoreError> {
        self.inner.put_host(host).await
    }
    async fn add_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        self.inner.add_key(key).await
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
