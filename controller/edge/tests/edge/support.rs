//! A whole controller without its socket: requests go straight into the router.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::request::Builder;
use axum::http::{HeaderMap, Request, StatusCode};
use lazaret_api::frame::Frame;
use lazaret_api::public::{CreateKey, CreateRun, EnrollHost, Run, Scope};
use lazaret_domain::{Argv, RunId};
use lazaret_edge::EdgeSettings;
use lazaret_services::ports::clock::SystemClock;
use lazaret_services::ports::fake_host::{FAKE_KEY, FakeHost, FakeLinks, Play, exited, ordinary};
use lazaret_services::ports::random::SystemRandom;
use lazaret_services::{Pace, Ports, Principal, Services, ServicesSettings};
use lazaret_store::SqliteStore;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Longer than anything here takes; reaching it fails the test.
pub const LONG: Duration = Duration::from_secs(60);
pub const PUBLIC: &str = "https://lazaret.example";
pub const LISTEN: &str = "127.0.0.1:7717";
/// A run id of good form that no run has.
pub const NO_RUN: &str = "r0000000000000000";

pub struct House {
    pub router: Router,
    pub services: Services,
    pub host: FakeHost,
    pub store: Arc<SqliteStore>,
    pub stop: CancellationToken,
    /// A token of scope `admin`.
    pub admin: String,
    _directory: tempfile::TempDir,
}

/// An answer, read to its end.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Status and problem code.
    pub fn refusal(&self) -> (u16, String) {
        assert_eq!(
            self.headers["content-type"],
            "application/problem+json",
            "{}",
            self.text()
        );
        (
            self.status.as_u16(),
            self.json()["code"].as_str().unwrap().to_owned(),
        )
    }
}

pub fn settings(stop: &CancellationToken) -> EdgeSettings {
    EdgeSettings::new(PUBLIC, LISTEN.parse().unwrap(), stop.clone()).unwrap()
}

impl House {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut EdgeSettings)) -> Self {
        let stop = CancellationToken::new();
        let mut settings = settings(&stop);
        change(&mut settings);
        let (services, host, store, directory) = services_and_store().await;
        let router = lazaret_edge::router(services.clone(), settings);
        let admin = token(&services, Scope::Admin).await;
        Self {
            router,
            services,
            host,
            store,
            stop,
            admin,
            _directory: directory,
        }
    }

    pub async fn token(&self, scope: Scope) -> String {
        token(&self.services, scope).await
    }

    /// Sends a request as the admin.
    pub async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Answer {
        self.raw(self.request(method, path).body(body.into()).unwrap())
            .await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let request = self
            .request("POST", path)
            .header("content-type", "application/json");
        self.raw(request.body(Body::from(body.to_string())).unwrap())
            .await
    }

    /// A request of the admin.
    pub fn request(&self, method: &str, path: &str) -> Builder {
        request(method, path).header("authorization", format!("Bearer {}", self.admin))
    }

    pub async fn raw(&self, request: Request<Body>) -> Answer {
        answer(&self.router, request).await
    }

    pub async fn run(&self, request: CreateRun) -> Run {
        self.services
            .runs
            .delegate(&Principal::controller(), None, request)
            .await
            .unwrap()
    }

    pub async fn done(&self, run: &RunId) -> Run {
        let run = self
            .services
            .runs
            .wait(&Principal::controller(), run, LONG)
            .await
            .unwrap();
        assert!(run.outcome.is_some(), "not done in time: {run:?}");
        run
    }

    /// A run that said this and is done.
    pub async fn finished(&self, said: &'static str) -> Run {
        self.host.plays(move |exec, request| match exec.as_str() {
            "turn-1" => Play {
                frames: vec![Frame::Stdout(said.into())],
                exit: Some(exited(0)),
            },
            _ => ordinary(exec, request),
        });
        let run = self.run(command()).await;
        self.done(&run.run).await
    }

    /// Commands run on until they are told to end.
    pub fn hold_commands(&self) {
        self.host.plays(|exec, request| match exec.as_str() {
            "turn-1" => Play {
                frames: vec![Frame::Stdout("begun\n".into())],
                exit: None,
            },
            _ => ordinary(exec, request),
        });
    }

    /// Ends the command that was held.
    pub async fn release(&self, said: &'static str) {
        let sandbox = self.host.until_started("turn-1").await;
        let exec = "turn-1".parse().unwrap();
        self.host.says(
            &sandbox,
            &exec,
            &[Frame::Stdout(said.into())],
            Some(exited(0)),
        );
    }
}

pub async fn answer(router: &Router, request: Request<Body>) -> Answer {
    let response = tokio::time::timeout(LONG, router.clone().oneshot(request))
        .await
        .unwrap()
        .unwrap();
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(LONG, to_bytes(body, 64 << 20))
        .await
        .expect("an answer that ends")
        .unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

/// A request without a credential, from a client of its own.
pub fn request(method: &str, path: &str) -> Builder {
    let peer: SocketAddr = "192.0.2.1:4000".parse().unwrap();
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", LISTEN)
        .extension(ConnectInfo(peer))
}

pub async fn token(services: &Services, scope: Scope) -> String {
    let wanted = CreateKey {
        scope,
        name: None,
        expires: None,
    };
    services
        .keys
        .create(&Principal::controller(), None, wanted)
        .await
        .unwrap()
        .token
}

pub async fn services() -> (Services, FakeHost, tempfile::TempDir) {
    let (services, host, _, directory) = services_and_store().await;
    (services, host, directory)
}

async fn services_and_store() -> (Services, FakeHost, Arc<SqliteStore>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let (host, name) = (FakeHost::new(), "box".parse().unwrap());
    let path = directory.path().join("db");
    let store = Arc::new(SqliteStore::open(&path).await.unwrap());
    let ports = Ports {
        store: store.clone(),
        links: Arc::new(FakeLinks::default().with(&name, &host)),
        clock: Arc::new(SystemClock),
        random: Arc::new(SystemRandom),
    };
    let short = Duration::from_millis(1);
    let pace = Pace {
        retry_min: short,
        retry_max: short * 5,
        gather: short,
        look: short * 3,
        ..Pace::default()
    };
    let settings = ServicesSettings {
        pace,
        max_sandboxes: 50,
        ..ServicesSettings::default()
    };
    let services = Services::start(ports, settings).await.unwrap();
    let enroll = EnrollHost {
        name: Some(name),
        address: "lazaret@box".into(),
        host_key: FAKE_KEY.into(),
    };
    services
        .hosts
        .enroll(&Principal::controller(), enroll)
        .await
        .unwrap();
    (services, host, store, directory)
}

pub fn command() -> CreateRun {
    CreateRun {
        command: Some(Argv::of(["make", "test"]).unwrap()),
        ..CreateRun::default()
    }
}
