//! A controller without its faces: services over a real store in a temporary directory, and a fake
//! host that outlives them.

use futures::StreamExt;
use lazaret_api::public::{CreateRun, EnrollHost, Event, EventBody, Run};
use lazaret_domain::{Argv, HostName, RunId};
use lazaret_services::ports::clock::SystemClock;
use lazaret_services::ports::fake_host::{FAKE_KEY, FakeHost, FakeLinks};
use lazaret_services::ports::random::SystemRandom;
use lazaret_services::ports::store::Store;
use lazaret_services::{Pace, Ports, Principal, Services, ServicesSettings};
use lazaret_store::SqliteStore;
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
        call: LONG,
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

    /// One where so many sandboxes may be awake.
    pub(crate) async fn of(max_sandboxes: u32) -> Self {
        Self::with(ServicesSettings {
            max_sandboxes,
            ..settings()
        })
        .await
    }

    pub(crate) async fn with(settings: ServicesSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("db"))
            .await
            .unwrap();
        Self::over(Arc::new(store), directory, settings).await
    }

    /// A controller over this store, which lies in the directory.
    pub(crate) async fn over(
        store: Arc<dyn Store>,
        directory: tempfile::TempDir,
        settings: ServicesSettings,
    ) -> Self {
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
