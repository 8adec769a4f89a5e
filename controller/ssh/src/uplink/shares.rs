//! Places that are counted for each sandbox apart, so that none can take those of the others.

use lazaret_domain::SandboxId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How many places each sandbox has taken. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    most: usize,
    taken: Arc<Mutex<HashMap<SandboxId, usize>>>,
}

/// A place that is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    sandbox: SandboxId,
    of: Shares,
}

impl Shares {
    /// So many places for each sandbox.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::default(),
        }
    }

    /// A place for that sandbox, unless it has all of its own.
    pub(super) fn take(&self, sandbox: &SandboxId) -> Option<Share> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(sandbox.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share {
            sandbox: sandbox.clone(),
            of: self.clone(),
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.sandbox) {
            *count = count.saturating_sub(1);
            // Sandboxes come and go; what is remembered of them must not grow.
            if *count == 0 {
                taken.remove(&self.sandbox);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sandbox_has_its_own_places_and_none_is_remembered_without() {
        let shares = Shares::new(2);
        let (a, b): (SandboxId, SandboxId) = (
            "s0000000000000001".parse().unwrap(),
            "s0000000000000002".parse().unwrap(),
        );
        let (first, second) = (shares.take(&a), shares.take(&a));
        assert!(first.is_some() && second.is_some());
        assert!(shares.take(&a).is_none());
        assert!(shares.take(&b).is_some(), "the other one is not concerned");
        drop(first);
        assert!(shares.take(&a).is_some());
        drop(second);
        assert!(shares.taken.lock().unwrap().is_empty());
    }
}
