//! A controller at work in a task of its own, watched: one that ends unasked is noticed at once, so
//! that no process stays behind in which nothing listens any more.

use crate::failure::Failure;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// The task, and how to stop it.
pub struct Running {
    task: JoinHandle<Result<(), Failure>>,
    stop: CancellationToken,
    over: bool,
}

impl Running {
    /// Starts a task that ends in order once its token is cancelled.
    pub fn start<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        Self {
            task: tokio::spawn(Box::pin(run(stop.clone()))),
            stop,
            over: false,
        }
    }

    /// Waits until the task ends though nobody asked it to, and says why it did. As long as all is
    /// well this waits for ever.
    pub async fn ended(&mut self) -> Failure {
        if self.over {
            return Failure::Failed("the controller has ended".into());
        }
        let ended = (&mut self.task).await;
        self.over = true;
        match ended {
            Ok(Ok(())) => Failure::Failed("the controller ended by itself".into()),
            Ok(Err(failure)) => failure,
            Err(error) => broken(&error),
        }
    }

    /// Ends the task in order.
    ///
    /// # Errors
    /// As the task, unless [`Running::ended`] has said so already.
    pub async fn stop(self) -> Result<(), Failure> {
        if self.over {
            return Ok(());
        }
        self.stop.cancel();
        self.task.await.map_err(|error| broken(&error))?
    }
}

fn broken(error: &JoinError) -> Failure {
    Failure::doing("the controller ended unexpectedly", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn why(running: &mut Running) -> String {
        let ended = tokio::time::timeout(Duration::from_secs(10), running.ended());
        ended.await.unwrap().to_string()
    }

    #[tokio::test]
    async fn a_task_that_ends_unasked_is_noticed_however_it_ends() {
        let mut refused = Running::start(|_| async { Err(Failure::Failed("no listener".into())) });
        assert_eq!(why(&mut refused).await, "no listener");
        let mut done = Running::start(|_| async { Ok(()) });
        assert!(why(&mut done).await.contains("by itself"));
        let mut broken = Running::start(|_| async { panic!("a bug") });
        assert!(why(&mut broken).await.contains("unexpectedly"));
        // What was said once is not said again.
        for running in [refused, done, broken] {
            running.stop().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_task_that_is_told_to_stop_ends_in_order() {
        let mut running = Running::start(|stop| async move {
            stop.cancelled().await;
            Ok(())
        });
        let waited = tokio::time::timeout(Duration::from_millis(20), running.ended()).await;
        assert!(waited.is_err());
        running.stop().await.unwrap();
    }
}
