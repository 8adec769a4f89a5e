//! `lazaret serve`: the tale of start and stop.
//!
//! ```text
//!   settings ─► log ─► lock ─► store ─► an active key? ─► listener ─► edge's settings ─► SSH links
//!                       │                    │ no: refuse, nothing listens      ─► services ─► edge
//!                       │ another has it: refuse, it goes on undisturbed
//!   SIGTERM, SIGINT ─► no new connections ─► requests end ─► drivers end ─► store closed ─► 0
//! ```
//!
//! A stop ends no run: what a host has begun goes on there, and the next start takes each run up
//! again from the journal.

mod grants;
mod running;

use crate::failure::{Exit, Failure};
use crate::lock::Lock;
use crate::logging;
use crate::settings::{Settings, environment};
use grants::LateGrants;
use lazaret_api::public::{CreateKey, NewKey};
use lazaret_edge::EdgeSettings;
use lazaret_github::{GitBase, GitRoute};
use lazaret_services::ports::clock::SystemClock;
use lazaret_services::ports::random::SystemRandom;
use lazaret_services::{Keys, Ports, Principal, Services};
use lazaret_ssh::{ClientKey, SshLinks, SshSettings};
use lazaret_store::SqliteStore;
pub use running::Running;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tower::util::BoxCloneSyncService;

/// Runs the controller until it is told to stop.
///
/// # Errors
/// Where it refuses to start, saying why, or ends without having been told to.
pub async fn serve(config: &Path) -> Result<Exit, Failure> {
    let settings = Settings::load(config, &environment())?;
    logging::start(&settings);
    let mut signals = Signals::listen()?;
    let lock = Lock::of_store(&settings.store)?;
    let controller = Controller::start(settings, &config.display().to_string(), lock).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "serving on {}",
        controller.url()
    );
    let mut running = Running::start(|stop| controller.run(stop));
    let which = tokio::select! {
        which = signals.next() => which,
        failure = running.ended() => return Err(failure),
    };
    tracing::info!("{which}: stopping; runs go on and are taken up at the next start");
    running.stop().await?;
    tracing::info!("stopped");
    Ok(Exit::Done)
}

/// Makes a key in the store of these settings, without a controller.
///
/// # Errors
/// Where the settings or the store cannot be read, or the request is out of form.
pub async fn create_key(config: &Path, request: CreateKey) -> Result<NewKey, Failure> {
    let settings = Settings::load(config, &environment())?;
    let store = open_store(&settings).await?;
    let new = keys_of(store.clone())
        .create(&Principal::controller(), None, request)
        .await;
    store.close().await;
    Ok(new?)
}

/// A controller that has everything it needs and listens; [`Controller::run`] lets it answer.
pub struct Controller {
    settings: Settings,
    store: Arc<SqliteStore>,
    services: Services,
    grants: LateGrants,
    listener: TcpListener,
    edge: EdgeSettings,
    /// Held until the store is closed: no other controller works on it.
    lock: Lock,
}

impl Controller {
    /// Goes through the start up to the point where it could answer: nothing that the settings say
    /// is left to go wrong after it. `lock` is that of the store.
    ///
    /// # Errors
    /// Where a step fails. Nothing is left running then.
    pub async fn start(settings: Settings, config: &str, lock: Lock) -> Result<Self, Failure> {
        let store = open_store(&settings).await?;
        let started = Self::start_on(settings, config, store.clone(), lock).await;
        if started.is_err() {
            store.close().await;
        }
        started
    }

    async fn start_on(
        mut settings: Settings,
        config: &str,
        store: Arc<SqliteStore>,
        lock: Lock,
    ) -> Result<Self, Failure> {
        require_key(store.clone(), config).await?;
        let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
            Failure::Usage(format!(
                "server.listen: cannot listen on {}: {error}",
                settings.listen
            ))
        })?;
        // Port 0 asks for any free one; callers need to know which.
        settings.listen = listener.local_addr().map_err(|error| {
            Failure::doing("cannot tell the address that is listened on", error)
        })?;
        let edge = edge_settings(&settings)?;
        let key = ClientKey::load(&settings.ssh_key)
            .map_err(|denial| Failure::Usage(format!("host.ssh_key: {}", denial.message)))?;
        let base: GitBase = settings
            .services
            .git_base_url
            .parse()
            .map_err(|denial: lazaret_domain::Denial| Failure::Usage(denial.to_string()))?;
        let grants = LateGrants::default();
        let routes = BoxCloneSyncService::new(GitRoute::new(base, Arc::new(grants.clone()))?);
        let links = SshLinks::new(key, routes, SshSettings::default());
        let ports = Ports {
            store: store.clone(),
            links: Arc::new(links),
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
        };
        let services = Services::start(ports, settings.services.clone()).await?;
        grants.ask(services.runs.clone());
        Ok(Self {
            settings,
            store,
            services,
            grants,
            listener,
            edge,
            lock,
        })
    }

    /// The URL under which it answers.
    #[must_use]
    pub fn url(&self) -> String {
        self.settings.url()
    }

    /// The use cases.
    #[must_use]
    pub fn services(&self) -> Services {
        self.services.clone()
    }

    /// Answers until `stop`, then ends in order.
    ///
    /// # Errors
    /// Where the server cannot run.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let mut edge = self.edge;
        edge.stop = stop;
        let router = lazaret_edge::router(self.services.clone(), edge.clone());
        let served = lazaret_edge::serve(self.listener, router, &edge).await;
        let grace = self.settings.stop_grace.duration();
        if tokio::time::timeout(grace, self.services.stop())
            .await
            .is_err()
        {
            tracing::warn!(
                ?grace,
                "some tasks did not end in time; the next start resumes what they did"
            );
        }
        self.grants.forget();
        self.store.close().await;
        drop(self.lock);
        served.map_err(|error| Failure::doing("cannot serve", error))
    }
}

/// The signals that mean an orderly stop.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over from here on.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn listen() -> Result<Self, Failure> {
        let take =
            |kind| signal(kind).map_err(|error| Failure::doing("cannot handle signals", error));
        Ok(Self {
            terminate: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
        })
    }

    /// Waits for one and names it.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The keys of a store, without a controller.
pub(crate) fn keys_of(store: Arc<SqliteStore>) -> Keys {
    Keys::new(store, Arc::new(SystemClock), Arc::new(SystemRandom))
}

/// Opens the store of these settings.
pub(crate) async fn open_store(settings: &Settings) -> Result<Arc<SqliteStore>, Failure> {
    let file = &settings.store;
    SqliteStore::open(file)
        .await
        .map(Arc::new)
        .map_err(|error| {
            Failure::Failed(format!("cannot open the store {}: {error}", file.display()))
        })
}

/// What the edge is told; its token for the stop comes with [`Controller::run`].
fn edge_settings(settings: &Settings) -> Result<EdgeSettings, Failure> {
    let mut edge = EdgeSettings::new(&settings.url(), settings.listen, CancellationToken::new())
        .map_err(|denial| Failure::Usage(format!("server.public_url: {}", denial.message)))?;
    edge.trusted_proxies.clone_from(&settings.trusted_proxies);
    Ok(edge)
}

/// A controller without a key that works would be one that nobody can use, or one that everybody
/// can: it is refused before anything listens.
async fn require_key(store: Arc<SqliteStore>, config: &str) -> Result<(), Failure> {
    if keys_of(store).any_active().await? {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "there is no API key that works, so nobody could use the controller. Make one with: \
         lazaret key create --scope admin --config {config}"
    )))
}

#[cfg(test)]
mod tests;
