//! One at a time for each run.

use lazaret_domain::RunId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::OwnedMutexGuard;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<RunId, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the run's turn, which lasts until the answer is dropped.
    pub(crate) async fn turn(&self, run: &RunId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let taken = turns.get(run).and_then(Weak::upgrade);
            taken.unwrap_or_else(|| {
                let turn = Arc::default();
                turns.insert(run.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_run_s_turn_is_waited_for_and_that_of_another_is_not() {
        let (one, other) = ("r0000000000000001", "r0000000000000002");
        let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
        let turns = Turns::default();
        let first = turns.turn(&one).await;
        let mut second = Box::pin(turns.turn(&one));
        assert!((&mut second).now_or_never().is_none());
        drop(turns.turn(&other).await);
        drop(first);
        drop(second.await);
        drop(turns.turn(&other).await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "none is kept for ever");
    }
}
