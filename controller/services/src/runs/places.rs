//! Who holds a place among the sandboxes that are awake.
//!
//! The store knows, but for those that are being woken: their hosts have not said yet that they are
//! awake. They are named here, and counted with the others.

use crate::ports::store::Cap;
use lazaret_domain::RunId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The places that the store does not know of yet.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Runs that are being woken, and how often at once.
    waking: Mutex<BTreeMap<RunId, u32>>,
    /// Held from looking whether there is a place until it is taken.
    turn: tokio::sync::Mutex<()>,
}

/// A run's place while its sandbox is being woken, until this is dropped.
pub(crate) struct Place<'a> {
    places: &'a Places,
    run: RunId,
}

impl Places {
    /// Waits until nobody else is between looking for a place and taking it.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Gives a run a place, whether or not there is one.
    pub(crate) fn give(&self, run: &RunId) -> Place<'_> {
        *self.waking_now().entry(run.clone()).or_default() += 1;
        Place {
            places: self,
            run: run.clone(),
        }
    }

    /// The runs that are being woken.
    pub(crate) fn waking(&self) -> Vec<RunId> {
        self.waking_now().keys().cloned().collect()
    }

    /// The cap as it is to be kept now.
    pub(crate) fn cap(&self, most: u32) -> Cap {
        Cap {
            most,
            waking: self.waking(),
        }
    }

    fn waking_now(&self) -> MutexGuard<'_, BTreeMap<RunId, u32>> {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waking = self.places.waking_now();
        if let Some(times) = waking.get_mut(&self.run) {
            *times -= 1;
            if *times == 0 {
                waking.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_woken_twice_at_once_has_one_place_until_both_are_through() {
        let places = Places::default();
        let run = "r0000000000000001".parse().unwrap();
        let (one, other) = (places.give(&run), places.give(&run));
        assert_eq!(places.waking(), std::slice::from_ref(&run));
        drop(one);
        assert_eq!(places.waking(), [run]);
        drop(other);
        assert!(places.waking().is_empty());
    }
}
