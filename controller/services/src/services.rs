//! The facade: everything a face can ask for, cheap to clone.

use crate::ports::clock::Clock;
use crate::ports::host_link::HostLinks;
use crate::ports::random::Random;
use crate::ports::store::Store;
use crate::{Hosts, Keys, Principal, Runs, ServicesSettings};
use lazaret_api::public::System;
use lazaret_domain::Denial;
use std::sync::Arc;

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
}

impl Services {
    /// Connects to all hosts, gives every unfinished run its driver back, and starts reconciling.
    ///
    /// # Errors
    /// `store_failed` if the store cannot be read.
    pub async fn start(ports: Ports, settings: ServicesSettings) -> Result<Self, Denial> {
        let _ = (ports, settings);
        Err(crate::unbuilt())
    }

    /// Ends all tasks in order. Runs are left as they are; the next start resumes them.
    pub async fn stop(&self) {}

    /// The state of the controller. Needs `operate`.
    ///
    /// # Errors
    /// `scope_too_narrow`, `store_failed`.
    pub async fn system(&self, by: &Principal) -> Result<System, Denial> {
        let _ = by;
        Err(crate::unbuilt())
    }
}
