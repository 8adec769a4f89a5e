//! The calls of the public API, one function each.

use super::Client;
use crate::failure::Failure;
use bytes::Bytes;
use lazaret_api::public::{
    CreateKey, CreateRun, Diff, EnrollHost, EventPage, ExecResult, ExecRun, FileList, ForkRun,
    Forked, Host, HostAdmission, HostList, Key, KeyList, NewKey, Run, RunList, SetAdmission,
    TornDown,
};
use lazaret_domain::{GuestPath, HostName, KeyId, RunId, UploadName};
use reqwest::Method;

impl Client {
    /// Delegates a task.
    ///
    /// # Errors
    /// As the controller refuses, or where it cannot be reached; so for every call here.
    pub async fn delegate(
        &self,
        request: &CreateRun,
        idempotency_key: Option<&str>,
    ) -> Result<Run, Failure> {
        let mut post = self
            .request(Method::POST, self.api(&["runs"]))
            .json(request);
        if let Some(key) = idempotency_key {
            post = post.header("idempotency-key", key);
        }
        self.json(post).await
    }

    /// A page of runs.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn runs(
        &self,
        before: Option<&RunId>,
        limit: u32,
        active: bool,
    ) -> Result<RunList, Failure> {
        let mut url = self.api(&["runs"]);
        url.query_pairs_mut()
            .append_pair("limit", &limit.to_string());
        if active {
            url.query_pairs_mut().append_pair("active", "true");
        }
        if let Some(before) = before {
            url.query_pairs_mut().append_pair("before", before.as_str());
        }
        self.json(self.request(Method::GET, url)).await
    }

    /// A run.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn run(&self, run: &RunId) -> Result<Run, Failure> {
        self.json(self.request(Method::GET, self.api(&["runs", run.as_str()])))
            .await
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn cancel(&self, run: &RunId) -> Result<Run, Failure> {
        self.json(self.request(Method::POST, self.api(&["runs", run.as_str(), "cancel"])))
            .await
    }

    /// Forks a run.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn fork(&self, run: &RunId, request: &ForkRun) -> Result<Forked, Failure> {
        let url = self.api(&["runs", run.as_str(), "fork"]);
        self.json(self.request(Method::POST, url).json(request))
            .await
    }

    /// `sleep`, `wake`, `keep` or `unkeep` of a run's sandbox; a wake from its disk if that is said.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn rest(&self, run: &RunId, verb: &str, from_disk: bool) -> Result<Run, Failure> {
        let mut url = self.api(&["runs", run.as_str(), verb]);
        if from_disk {
            url.query_pairs_mut().append_pair("from", "disk");
        }
        self.json(self.request(Method::POST, url)).await
    }

    /// Tears a run down.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn teardown(&self, run: &RunId) -> Result<TornDown, Failure> {
        self.json(self.request(Method::DELETE, self.api(&["runs", run.as_str()])))
            .await
    }

    /// Runs a command beside a run.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn exec(&self, run: &RunId, request: &ExecRun) -> Result<ExecResult, Failure> {
        self.json(
            self.request(Method::POST, self.api(&["runs", run.as_str(), "exec"]))
                .json(request),
        )
        .await
    }

    /// The last lines of a run's log.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn log_tail(&self, run: &RunId, lines: u32) -> Result<String, Failure> {
        let mut url = self.api(&["runs", run.as_str(), "log"]);
        url.query_pairs_mut()
            .append_pair("lines", &lines.to_string());
        let body = self.bytes(self.request(Method::GET, url)).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// A page of a run's events.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn events(&self, run: &RunId, after: u64, limit: u32) -> Result<EventPage, Failure> {
        let mut url = self.api(&["runs", run.as_str(), "events"]);
        url.query_pairs_mut()
            .append_pair("after", &after.to_string())
            .append_pair("limit", &limit.to_string());
        self.json(
            self.request(Method::GET, url)
                .header("accept", "application/json"),
        )
        .await
    }

    /// What a run changed.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn diff(&self, run: &RunId) -> Result<Diff, Failure> {
        self.json(self.request(Method::GET, self.api(&["runs", run.as_str(), "diff"])))
            .await
    }

    /// A directory of a run's workspace.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn files(&self, run: &RunId, path: &GuestPath) -> Result<FileList, Failure> {
        let mut url = self.api(&["runs", run.as_str(), "files"]);
        url.query_pairs_mut().append_pair("path", path.as_str());
        self.json(self.request(Method::GET, url)).await
    }

    /// A file of a run's workspace.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn artifact(&self, run: &RunId, path: &GuestPath) -> Result<Bytes, Failure> {
        let mut segments = vec!["runs", run.as_str(), "artifacts"];
        segments.extend(path.as_str().split('/'));
        self.bytes(self.request(Method::GET, self.api(&segments)))
            .await
    }

    /// Uploads a file into a run's uploads area.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn upload(
        &self,
        run: &RunId,
        name: &UploadName,
        body: reqwest::Body,
    ) -> Result<(), Failure> {
        let url = self.api(&["runs", run.as_str(), "files", name.as_str()]);
        let put = self
            .request(Method::PUT, url)
            .header("content-type", "application/octet-stream")
            .body(body);
        self.bytes(put).await.map(drop)
    }

    /// All hosts.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn hosts(&self) -> Result<HostList, Failure> {
        self.json(self.request(Method::GET, self.api(&["hosts"])))
            .await
    }

    /// Enrols a host.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn enroll(&self, request: &EnrollHost) -> Result<Host, Failure> {
        self.json(
            self.request(Method::POST, self.api(&["hosts"]))
                .json(request),
        )
        .await
    }

    /// Changes a host's admission.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn set_admission(
        &self,
        name: &HostName,
        admission: HostAdmission,
    ) -> Result<Host, Failure> {
        let url = self.api(&["hosts", name.as_str()]);
        self.json(
            self.request(Method::PATCH, url)
                .json(&SetAdmission { admission }),
        )
        .await
    }

    /// All keys.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn keys(&self) -> Result<KeyList, Failure> {
        self.json(self.request(Method::GET, self.api(&["keys"])))
            .await
    }

    /// Makes a key.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn create_key(&self, request: &CreateKey) -> Result<NewKey, Failure> {
        self.json(
            self.request(Method::POST, self.api(&["keys"]))
                .json(request),
        )
        .await
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// As [`Client::delegate`].
    pub async fn revoke_key(&self, id: &KeyId) -> Result<Key, Failure> {
        self.json(self.request(Method::DELETE, self.api(&["keys", id.as_str()])))
            .await
    }
}
