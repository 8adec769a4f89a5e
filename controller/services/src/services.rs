//! The facade: everything a face can ask for, cheap to clone.

use crate::core::Core;
use crate::driver::{self, Drivers};
use crate::feed::Feeds;
use crate::hosts::{Registry, address_of};
use crate::ports::clock::Clock;
use crate::ports::host_link::HostLinks;
use crate::ports::random::Random;
use crate::ports::store::Store;
use crate::runs::{LiveDiffs, Places, Turns};
use crate::{Hosts, Keys, Principal, Runs, ServicesSettings, reconcile};
use lazaret_api::public::{HostAdmission, Scope, System};
use lazaret_domain::Denial;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What the use cases act through.
#[derive(Clone)]
pub struct Ports {
    /// Where everything that must outlive the controller is kept.
    pub store: Arc<dyn Store>,
    /// Makes links to hosts.
    pub links: Arc<dyn HostLinks>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Gives randomness.
    pub random: Arc<dyn Random>,
}

/// All use cases.
#[derive(Clone)]
pub struct Services {
    /// Runs.
    pub runs: Runs,
    /// API keys.
    pub keys: Keys,
    /// Hosts.
    pub hosts: Hosts,
    core: Arc<Core>,
}

impl Services {
    /// Connects to all hosts, gives every unfinished run its driver back, and starts reconciling.
    ///
    /// # Errors
    /// `store_failed` if the store cannot be read.
    pub async fn start(ports: Ports, settings: ServicesSettings) -> Result<Self, Denial> {
        let started_at = ports.clock.now();
        let core = Arc::new(Core {
            ports,
            settings,
            feeds: Feeds::default(),
            hosts: Registry::default(),
            drivers: Drivers::default(),
            diffs: LiveDiffs::default(),
            forks: Turns::default(),
            places: Places::default(),
            started_at,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        for record in core.ports.store.hosts().await? {
            if record.admission != HostAdmission::Retired {
                let link = core.ports.links.connect(&record.name, &address_of(&record));
                core.hosts.adopt(&core, record, link);
            }
        }
        for run in core.ports.store.open_runs().await? {
            tracing::info!(run = %run.id, state = run.state.phase().as_str(), "run resumed");
            driver::start(&core, &run.id);
        }
        core.spawn(reconcile::forever(Arc::clone(&core)));
        Ok(Self {
            runs: Runs {
                core: Arc::clone(&core),
            },
            keys: Keys::new(
                Arc::clone(&core.ports.store),
                Arc::clone(&core.ports.clock),
                Arc::clone(&core.ports.random),
            ),
            hosts: Hosts {
                core: Arc::clone(&core),
            },
            core,
        })
    }

    /// Ends all tasks in order. Runs are left as they are; the next start resumes them.
    pub async fn stop(&self) {
        self.core.stop.cancel();
        self.core.tasks.close();
        self.core.tasks.wait().await;
    }

    /// The state of the controller. Needs `operate`.
    ///
    /// # Errors
    /// `scope_too_narrow`, `store_failed`.
    pub async fn system(&self, by: &Principal) -> Result<System, Denial> {
        by.require(Scope::Operate)?;
        let counts = self
            .core
            .ports
            .store
            .counts(&self.core.places.waking())
            .await?;
        Ok(System {
            version: self.core.settings.version.clone(),
            started_at: self.core.started_at,
            active_runs: counts.active,
            sandboxes: counts.holding,
            max_sandboxes: self.core.settings.max_sandboxes,
            hosts: self.hosts.all().await?,
        })
    }
}
