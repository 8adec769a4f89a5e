//! What a caller does with a run, in one line each.

use super::{ASK_EVERY, PATIENCE, Station, until};
use anyhow::Context;
use lazaret_api::public::{
    CreateRun, Diff, Event, EventBody, EventPage, ExecResult, ExecRun, Run, TornDown,
};
use lazaret_domain::run::RunPhase;
use lazaret_domain::{Argv, RunId};

impl Station {
    /// Delegates a command, in a repository or an empty workspace.
    ///
    /// # Errors
    /// As the controller refuses; so for every verb here.
    pub async fn delegate(&self, command: &[&str], repo: Option<&str>) -> anyhow::Result<Run> {
        let command = Argv::new(
            command
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>(),
        )?;
        let repo = repo.map(str::parse).transpose()?;
        self.delegate_with(&CreateRun {
            command: Some(command),
            repo,
            ..CreateRun::default()
        })
        .await
    }

    /// Delegates what the request says.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn delegate_with(&self, request: &CreateRun) -> anyhow::Result<Run> {
        self.client().post("/api/v1/runs", request).await?.ok()
    }

    /// Delegates and waits for the end; the log is in the error where the run does not end.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn run_to_end(&self, command: &[&str], repo: Option<&str>) -> anyhow::Result<Run> {
        let run = self.delegate(command, repo).await?;
        self.wait_done(&run.run).await
    }

    /// A run as it is now.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn run(&self, run: &RunId) -> anyhow::Result<Run> {
        self.client()
            .get(&format!("/api/v1/runs/{run}"))
            .await?
            .ok()
    }

    /// Waits until a run is over. The controller may be killed and started again meanwhile.
    ///
    /// # Errors
    /// After [`PATIENCE`], with all that is known of it.
    pub async fn wait_done(&self, run: &RunId) -> anyhow::Result<Run> {
        self.wait_until(run, "be done", |run| run.state == RunPhase::Done)
            .await
    }

    /// Waits until a run is as wanted.
    ///
    /// # Errors
    /// After [`PATIENCE`], with all that is known of it.
    pub async fn wait_until(
        &self,
        run: &RunId,
        what: &str,
        wanted: impl Fn(&Run) -> bool,
    ) -> anyhow::Result<Run> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.run(run).await {
                Ok(now) if wanted(&now) => return Ok(now),
                now if tokio::time::Instant::now() >= deadline => {
                    let log = self
                        .log(run)
                        .await
                        .unwrap_or_else(|error| format!("(no log: {error:#})"));
                    anyhow::bail!(
                        "{run} did not {what}: {now:#?}\nits log: {log}\n{}",
                        self.controller.last_words()
                    );
                }
                _ => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    }

    /// Waits until the output of a run's command holds a text.
    ///
    /// # Errors
    /// After [`PATIENCE`].
    pub async fn wait_output(&self, run: &RunId, text: &str) -> anyhow::Result<()> {
        until(&format!("{text:?} in the output of {run}"), || async {
            self.output(run)
                .await
                .ok()
                .filter(|output| output.contains(text))
                .map(drop)
        })
        .await
    }

    /// All events so far.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn events(&self, run: &RunId) -> anyhow::Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            let path = format!("/api/v1/runs/{run}/events?after={after}&limit=1000");
            let page: EventPage = self.client().get(&path).await?.ok()?;
            if page.events.is_empty() {
                return Ok(events);
            }
            after = page.last;
            events.extend(page.events);
        }
    }

    /// What the run's command wrote, both streams as they came.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn output(&self, run: &RunId) -> anyhow::Result<String> {
        let events = self.events(run).await?;
        Ok(events
            .into_iter()
            .filter_map(|event| match event.body {
                EventBody::Log { stream, text } if stream != "setup" => Some(text),
                _ => None,
            })
            .collect())
    }

    /// The end of the log, set-up included.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn log(&self, run: &RunId) -> anyhow::Result<String> {
        Ok(self
            .client()
            .get(&format!("/api/v1/runs/{run}/log?lines=200"))
            .await?
            .text())
    }

    /// What the run changed.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn diff(&self, run: &RunId) -> anyhow::Result<Diff> {
        self.client()
            .get(&format!("/api/v1/runs/{run}/diff"))
            .await?
            .ok()
    }

    /// Runs a command beside the run.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn exec(&self, run: &RunId, command: &[&str]) -> anyhow::Result<ExecResult> {
        let command = Argv::new(
            command
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>(),
        )?;
        let request = ExecRun {
            command,
            stdin: None,
            max_duration: None,
        };
        self.client()
            .post(&format!("/api/v1/runs/{run}/exec"), &request)
            .await?
            .ok()
    }

    /// Ends a run's work.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn cancel(&self, run: &RunId) -> anyhow::Result<Run> {
        let path = format!("/api/v1/runs/{run}/cancel");
        self.client()
            .send(self.client().request(http::Method::POST, &path))
            .await?
            .ok()
    }

    /// Ends a run and removes everything it holds, and waits until that is done.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub async fn teardown(&self, run: &RunId) -> anyhow::Result<TornDown> {
        until(&format!("the removal of {run}"), || async {
            match self
                .client()
                .delete(&format!("/api/v1/runs/{run}"))
                .await
                .and_then(|answer| answer.ok::<TornDown>())
            {
                Ok(torn_down) if torn_down.removed => Some(Ok(torn_down)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            }
        })
        .await?
        .context("tear the run down")
    }
}
