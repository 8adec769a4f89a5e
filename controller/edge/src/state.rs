//! What handlers share. Cheap to clone; nothing in it changes but counters.

use crate::auth::throttle::Throttle;
use crate::metrics::Counters;
use crate::settings::EdgeSettings;
use lazaret_services::Services;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Uploads held in memory at the same time.
const UPLOADS_AT_ONCE: usize = 4;
/// Event streams open at the same time.
const STREAMS_AT_ONCE: usize = 512;

/// The shared part of the edge.
#[derive(Clone)]
pub(crate) struct Edge(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) services: Services,
    pub(crate) settings: EdgeSettings,
    pub(crate) throttle: Throttle,
    pub(crate) counters: Counters,
    pub(crate) uploads: Arc<Semaphore>,
    pub(crate) streams: Arc<Semaphore>,
}

impl Edge {
    pub(crate) fn new(services: Services, settings: EdgeSettings) -> Self {
        Self(Arc::new(Shared {
            services,
            settings,
            throttle: Throttle::default(),
            counters: Counters::default(),
            uploads: Arc::new(Semaphore::new(UPLOADS_AT_ONCE)),
            streams: Arc::new(Semaphore::new(STREAMS_AT_ONCE)),
        }))
    }
}

impl Deref for Edge {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
