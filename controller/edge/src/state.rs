//! What handlers share. Cheap to clone; nothing in it changes but counters.

use crate::auth::throttle::Throttle;
use crate::client::Client;
use crate::metrics::Counters;
use crate::places::{Places, Shares};
use crate::settings::EdgeSettings;
use lazaret_domain::KeyId;
use lazaret_services::Services;
use std::ops::Deref;
use std::sync::Arc;

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
    pub(crate) uploads: Places,
    pub(crate) streams: Places,
    /// Requests under way of each client and of each key.
    pub(crate) of_clients: Shares<Client>,
    pub(crate) of_keys: Shares<KeyId>,
}

impl Edge {
    pub(crate) fn new(services: Services, settings: EdgeSettings) -> Self {
        Self(Arc::new(Shared {
            throttle: Throttle::default(),
            counters: Counters::default(),
            uploads: Places::new("uploads", UPLOADS_AT_ONCE, settings.uploads_each),
            streams: Places::new("event streams", STREAMS_AT_ONCE, settings.streams_each),
            of_clients: Shares::of(settings.requests_each),
            of_keys: Shares::of(settings.requests_each),
            services,
            settings,
        }))
    }
}

impl Deref for Edge {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
