//! How long a verb that waits for the end of a run puts up with a controller that is away: one that
//! restarts, alone or behind a proxy, or that is asked too often. The run goes on meanwhile, so an
//! end of the waiting would say something about the controller and nothing about the run.

use super::Client;
use crate::failure::Failure;
use lazaret_api::public::Run;
use lazaret_domain::RunId;
use std::time::{Duration, Instant};

/// So often it is tried again, one after another: about 40 seconds where nobody asks for more.
const TRIES: u32 = 30;
/// However long the pauses are that the controller asks for, this is enough.
const LONGEST: Duration = Duration::from_secs(300);
/// A longer pause is not kept, whoever asks for it.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The patience with one outage.
#[derive(Default)]
pub(super) struct Patience {
    tries: u32,
    since: Option<Instant>,
}

impl Patience {
    /// The pause before the next try.
    ///
    /// # Errors
    /// The failure, where it does not pass or has gone on for too long.
    pub(super) fn spend(&mut self, failure: Failure) -> Result<Duration, Failure> {
        let Some(wanted) = failure.passes_after() else {
            return Err(failure);
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.tries >= TRIES || since.elapsed() >= LONGEST {
            return Err(failure);
        }
        self.tries += 1;
        let usual = Duration::from_millis(100 * u64::from(self.tries.min(20)));
        Ok(usual.max(wanted.min(LONGEST_PAUSE)))
    }
}

impl Client {
    /// A run, asked for until the controller answers.
    ///
    /// # Errors
    /// As [`Client::run`], once patience is at its end.
    pub async fn run_patiently(&self, run: &RunId) -> Result<Run, Failure> {
        let mut patience = Patience::default();
        loop {
            match self.run(run).await {
                Ok(run) => return Ok(run),
                Err(failure) => tokio::time::sleep(patience.spend(failure)?).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    fn refused(again: Option<u64>) -> Failure {
        Failure::Refused {
            code: "rate_limited".into(),
            message: "no".into(),
            exit: Exit::Refused,
            again: again.map(Duration::from_secs),
        }
    }

    #[test]
    fn it_is_kept_as_long_as_was_asked_for_and_has_an_end() {
        let mut patience = Patience::default();
        let pauses: Vec<u64> = [Some(0), Some(7), Some(3600)]
            .map(|again| patience.spend(refused(again)).unwrap().as_secs())
            .into();
        assert_eq!(pauses, [0, 7, 30]);
        let further = (0..).take_while(|_| patience.spend(refused(Some(0))).is_ok());
        assert_eq!(further.count(), 27);
    }

    #[test]
    fn what_does_not_pass_is_not_waited_for() {
        let mut patience = Patience::default();
        assert!(patience.spend(refused(None)).is_err());
        assert!(patience.spend(Failure::Failed("x".into())).is_err());
        assert_eq!(patience.tries, 0);
    }
}
